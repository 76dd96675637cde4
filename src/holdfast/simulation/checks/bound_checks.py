"""Everything is bounded (I17): during the faults the limits of the rules hold, and at rest nothing is left over.

Most limits are far above what a run of a minute can reach. So the world has small ones where they are settings, and
the checker also tests at rest that finished things are forgotten: sessions, waiting requests, commands, connections,
tasks, records behind the snapshots. Anything that grows with every failover shows after one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.core.primary.session_book import MAX_COMMANDS
from holdfast.core.rules import REMEMBERED_ANSWERS
from holdfast.core.state.state import State
from holdfast.ids import COPIES
from holdfast.master.engine.engine import MAX_PENDING_BYTES, Engine
from holdfast.messages.records import RangesGranted
from holdfast.messages.shapes import Record
from holdfast.replication.renewals import PREFIX, SPACING_MS, BadRenewals, decode_value
from holdfast.simulation.checks.log_checks import Report
from holdfast.simulation.world.masters import MasterMachine
from holdfast.simulation.world.nodes import REFUSED_KEPT
from holdfast.simulation.world.world import World

MOST_TASKS = 40
"""Tasks of one process at rest: a master has some twenty."""
LINES_PER_NODE = 2
"""Connections per node: its session, and its reports of copies."""


@dataclass(slots=True)
class BoundChecks:
    world: World
    report: Report
    _published: int = 0
    _written_ms: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """By history and epoch: (number, time) of the last value of renewals."""

    def appended(self, record: Record, state: State) -> None:
        """A client holds at most its window of uncommitted memory, or one grant alone."""
        if not isinstance(record, RangesGranted) or record.grant.client == COPIES:
            return
        live = [grant for grant in state.grants.values() if grant.id.client == record.grant.client]
        left = sum(grant.left_bytes * len(grant.ranges) for grant in live)
        window = self.world.rules.write_window_bytes
        if len(live) > 1 and left > window:
            self.report(
                "I17", f"a client holds {left:,} granted bytes, and may hold {window:,}", f"grant {record.grant.serial}"
            )

    def published(self) -> None:
        """Renewals are not written to coordination more often than allowed, however many are urgent."""
        cluster = self.world.store.only
        if cluster.publishings == self._published:
            return
        for name, number in cluster.published_at.items():
            if number > self._published and name.startswith(PREFIX):
                self._renewals(cluster.published[name][0])
        self._published = cluster.publishings

    def _renewals(self, packed: bytes) -> None:
        try:
            value, _ = decode_value(packed)
        except BadRenewals as error:
            self.report("I18", f"a primary wrote renewals that nobody can read: {error}", "")
            return
        writer = value.log_id, value.epoch
        number, written_ms = self._written_ms.get(writer, (0, -SPACING_MS))
        if value.number == number + 1 and written_ms != value.written_ms < written_ms + SPACING_MS:
            self.report("I17", f"renewals were written {value.written_ms - written_ms} ms after the last ones", "store")
        self._written_ms[writer] = value.number, value.written_ms

    def look(self, name: str, engine: Engine) -> None:
        """Check the numeric limits. Called now and then."""
        sessions = engine.primary.sessions
        over = {
            "answers of removals": (len(engine.state.answers), REMEMBERED_ANSWERS),
            "bytes that wait for the log": (engine.log.bytes if engine.log is not None else 0, MAX_PENDING_BYTES),
            "commands for one node": (max((len(one.commands) for one in sessions), default=0), MAX_COMMANDS),
            "sessions": (len(sessions), len(self.world.nodes)),
        }
        for what, (count, most) in over.items():
            if count > most:
                self.report("I17", f"{name} keeps {count:,} {what}, and may keep {most:,}", name)
        # Besides the grants, one number per client and one for the copies.
        most = REFUSED_KEPT + 1 + sum(process.name in self.world.clients for process in self.world.clocks)
        for node, machine in self.world.nodes.items():
            if machine.alive is not None and (count := machine.alive.refused_kept) > most:
                self.report("I17", f"{node} keeps {count} refused grants, and may keep {most}", node)

    def left_over(self, leading: MasterMachine, engine: Engine) -> str:
        """At rest: the first thing that is kept though its use is over."""
        return next(self._kept(leading, engine), "")

    def _kept(self, leading: MasterMachine, engine: Engine) -> Iterator[str]:
        log, sessions = engine.log, engine.primary.sessions
        assert log is not None
        nodes = len(self.world.nodes)
        counts = {
            "sessions in its book": (len(sessions), nodes),
            "sessions in its state": (len(engine.state.sessions), nodes),
            "requests that wait for room": (engine.parked, 0),
            "bytes that wait for the log": (log.bytes, 0),
            "answers that wait for the log": (log.waiting, 0),
            "commands that nobody takes": (sum(len(one.commands) for one in sessions), 0),
            "things to say to nobody": (len(sessions.outgoing), 0),
        }
        for what, (count, most) in counts.items():
            if count > most:
                yield f"{leading.name} keeps {count} {what}; at rest there are {most}"
        yield from self._log_behind_snapshots(leading)
        yield from self._lines()
        for name, machine in self.world.machines.items():
            process = machine.process
            if process is not None and (tasks := process.tasks_under_way) > MOST_TASKS:
                yield f"{name} has {tasks} tasks under way, with nothing to do"

    def _log_behind_snapshots(self, leading: MasterMachine) -> Iterator[str]:
        cluster = self.world.store.only
        assert leading.alive is not None
        assert leading.alive.snapshots is not None
        engine = leading.alive.server.engine
        log_id = engine.state.log_id if engine is not None else 0
        through = leading.alive.snapshots.store.trim_through(log_id)
        behind = sum(1 for batch in cluster.batches if batch <= through and batch < cluster.last)
        if behind:
            yield f"the log keeps {behind} batches that {leading.name} has two snapshots behind"
        newest = leading.disk.newest_batch(log_id)
        since = sum(len(content) for batch, (_, content) in cluster.batches.items() if batch > newest)
        most = 3 * leading.plan.snapshot_bytes
        if since > most:
            yield f"{since:,} bytes of log since the newest snapshot of {leading.name}; {most:,} are to make one"

    def _lines(self) -> Iterator[str]:
        world = self.world
        # Another master may be fetching a snapshot.
        lines = LINES_PER_NODE
        if world.script.shape.disk_bytes:
            # Reports about its disk have a line, and so has the comparison of its files with a restored history.
            lines += 1 + world.script.restores
        most = lines * len(world.nodes) + len(world.masters) - 1
        for name, machine in world.masters.items():
            if machine.alive is not None and (count := len(machine.alive.server.connections)) > most:
                yield f"{name} has {count} connections open, and may have {most} now that every client has gone"
