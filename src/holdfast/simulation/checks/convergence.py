"""After the faults every process runs again, and the world must come to rest within a bound.

In order: one primary serves, every standby has its state and knows of every use, nodes are back, no call is under way;
then every client reads every key; then the clients hang up, the memory that they held comes back, and nothing else is
left over.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.master.engine.engine import Engine
from holdfast.simulation.checks.bound_checks import BoundChecks
from holdfast.simulation.checks.log_checks import LEFT_BY_ITSELF, LogChecks
from holdfast.simulation.checks.renewal_checks import RenewalChecks
from holdfast.simulation.checks.restore_checks import name_of
from holdfast.simulation.kernel.scheduler import MS
from holdfast.simulation.scripts.script import Operation
from holdfast.simulation.world.masters import MasterMachine
from holdfast.simulation.world.world import World

LOOK_NS = 200 * MS
VERIFYING = 100_000
"""Operations from this number on are the last reads."""


@dataclass(eq=False)
class Convergence:
    _world: World
    _log: LogChecks
    _bounds: BoundChecks
    _renewals: RenewalChecks
    _stage: int = 0
    _next_ns: int = 0
    _why: str = "nothing was looked at"
    _about: str = ""
    _reads: int = 0

    def __post_init__(self) -> None:
        self._stages = (self._converged, self._verified, self._returned, self._bounded)

    def begin(self) -> None:
        world = self._world
        for name, machine in world.machines.items():
            if machine.process is None or machine.process.dead:
                world.start(name)

    def done(self) -> bool:
        """Has the world come to rest? Called after every event; checks now and then."""
        now = self._world.scheduler.now_ns
        if now < self._next_ns:
            return False
        self._next_ns = now + LOOK_NS
        while self._stage < len(self._stages):
            self._why = self._stages[self._stage]()
            if self._why:
                return False
            self._stage += 1
            self._enter()
            if self._stage < len(self._stages):
                return False  # Something that was begun has not happened yet.
        return True

    def unfinished(self) -> tuple[str, str, str] | None:
        """The promise that was not kept in time, and how."""
        if self._stage == len(self._stages):
            return None
        promise = ("liveness", "I10", "I11", "I17")[self._stage]
        return promise, f"after the faults: {self._why}", self._about

    def _enter(self) -> None:
        if self._stage == 1:
            self._read_everything()
        elif self._stage == 2:
            self._hang_up()

    def _converged(self) -> str:
        world = self._world
        if world.restores.insists:  # The order replaces a history that was begun meanwhile, and what was read in it.
            return "the operator is about to order the restore again"
        for name, client in world.clients.items():
            if client.cache is None:
                return f"{name} has not connected"
            if client.running:
                return f"call {min(client.running)} of {name} has not ended"
        # A client may read older objects than the log's under a lease.
        if (lease := next(self._log.leases(), None)) is not None:
            return f"{lease.client} holds a lease on {lease.id:x}"
        leading = self._leading()
        if isinstance(leading, str):
            return leading
        machine, engine = leading
        master = machine.alive
        assert engine.log is not None
        for name, machine in world.masters.items():
            other = machine.alive
            if other is not None and other is not master and other.standby.position.index != engine.log.index:
                return f"{name} is at {other.standby.position.index}, the log at {engine.log.index}"
        return self._nodes_back(engine) or self._renewals.untold(*leading)

    def _leading(self) -> tuple[MasterMachine, Engine] | str:
        """The one primary, with everything durable; or the reason why there is none."""
        leading = [m for m in self._world.masters.values() if m.alive is not None and m.alive.server.engine is not None]
        if len(leading) != 1:
            return f"{len(leading)} masters lead"
        master = leading[0].alive
        engine = master.server.engine if master is not None else None
        if engine is None or engine.log is None or engine.log.index != engine.log.durable:
            return "the primary has records that are not durable"
        return leading[0], engine

    def _nodes_back(self, engine: Engine) -> str:
        """Each has mounted its present memory, under a session from which this primary has had a keepalive."""
        primary = engine.primary
        for name, node in self._world.nodes.items():
            session, member = primary.sessions.named(name), primary.members.get(name)
            if session is None or session.connection <= 0 or member is None or node.alive is None:
                return f"{name} is not back"
            if member.session != session.id or member.boot != node.alive.boot:
                return f"{name} has not mounted its memory"
            if node.disk is not None and not any(
                disk.name.node == name and not disk.away for disk in engine.state.disks()
            ):
                return f"{name} has not mounted its disk"
        # Until then a read reports that the bytes in a range differ, and asks to try again.
        if any(segment.handle in engine.state.unverified for segment in engine.state.memory_segments()):
            return "memory of an older history is not verified"
        return ""

    def _read_everything(self) -> None:
        world = self._world
        keys = sorted({key for operation in world.script.operations for key in operation.keys})
        number = VERIFYING
        keys = [key for key in keys if key]
        pries = bool(world.script.shape.tenants)
        self._reads = (len(keys) + pries) * len(world.clients)
        for index, client in enumerate(world.clients.values()):
            for key in keys:
                number += 1
                client.do(Operation(world.now_ms, index, "get", number, (key,)))
            if pries:
                number += 1
                client.do(Operation(world.now_ms, index, "pry", number, ()))

    def _verified(self) -> str:
        """I1: every object in the log can be read."""
        state = self._log.state
        there = {name_of(state, key) for key in state.catalogue.keys if key is not None}
        for name, client in self._world.clients.items():
            if client.running:
                return f"the last reads of {name} have not ended"
        reads = [call for call in self._world.history.calls if call.operation.number > VERIFYING]
        if len(reads) < self._reads:
            return "the last reads have not all begun"
        for call in reads:
            if call.operation.verb == "pry":
                continue
            key = call.operation.keys[0]
            if call.outcome != "done":
                return f"{key} could not be read: {call.error}"
            hidden = call.result is None and self._may_be_hidden(key)
            disagree = (call.result is not None) != (key in there)
            if disagree and not hidden and not self._left_since(key, call.result):
                self._about = key
                return f"{key} is {'' if key in there else 'not '}in the log, and was read as {call.result!r:.40}"
        return ""

    def _may_be_hidden(self, key: str) -> bool:
        """The log may hold it, and a read find nothing."""
        return not self._world.rules.logs_evictions or self._log.restores.is_lost_with_its_disk(self._log.state, key)

    def _left_since(self, key: str, value: object) -> bool:
        """May the object that was read have been evicted, or lost with its node, before this check?"""
        fates = [fate for fate in self._log.fates.values() if fate.key == key and fate.left in LEFT_BY_ITSELF]
        return isinstance(value, bytes) and any(fate.size_bytes == len(value) for fate in fates)

    def _hang_up(self) -> None:
        for client in self._world.clients.values():
            process, cache = client.process, client.cache
            if process is not None and cache is not None:
                process.spawn(cache.close)

    def _returned(self) -> str:
        """I11: memory of puts that were never finished comes back."""
        state = self._log.state
        doubtful = state.unsettled | state.unverified
        # A disk that is away stays so until it is given up.
        if any(handle in doubtful and not segment.away for handle, segment in state.segments.items()):
            return "memory or a disk of an older history is not settled and verified"
        if state.grants:
            return f"{len(state.grants)} grants are still held"
        return f"{len(state.quarantine)} ranges are still in quarantine" if state.quarantine else ""

    def _bounded(self) -> str:
        """I17: nothing is kept whose use is over."""
        leading = self._leading()
        return leading if isinstance(leading, str) else self._bounds.left_over(*leading)
