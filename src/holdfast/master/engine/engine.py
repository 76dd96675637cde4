"""Turns requests into replies: decide, apply and log in one step, so that the order of states is the log's order.

Callers pass `now`, and the engine does no I/O: the server gives it requests and deadlines, and sends the replies. Past
its leadership deadline a primary decides nothing (I12). A decision says everything that follows from it, and is carried
out here; things that have to wait are kept beside: replies and freed memory until their records are durable (I1, I9;
`durability`), puts until there is room (`waiting_room`), commands until their records are durable (`commands`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import partial
from typing import TypeAlias

from holdfast.core.decide import decide
from holdfast.core.live_settings import settings_changed
from holdfast.core.nodes.node_operations import revoke_clients
from holdfast.core.primary.decision import Clearing, Command, NextStep, Parked, Planned, Unfinished, asked_for
from holdfast.core.primary.primary import Absorbed, Primary
from holdfast.core.promotion import evicted_alone
from holdfast.core.state.state import State
from holdfast.core.tenants import defined
from holdfast.core.upkeep import duties, evict, plan_copies
from holdfast.errors import HoldfastError, LogFull, LogSlow, NotLeader, Settling, TryAgain
from holdfast.ids import GrantId
from holdfast.instant import Instant
from holdfast.master.engine.commands import Confirm, NodeCommands
from holdfast.master.engine.durability import Durability
from holdfast.master.engine.guard import Guard, UpkeepFailure
from holdfast.master.engine.shell import EngineShell
from holdfast.master.engine.waiting_room import Waiting, WaitingRoom
from holdfast.master.events import NOTABLE
from holdfast.master.object_events.events import ObjectEvents
from holdfast.master.succession.succession import Succession
from holdfast.messages.log_versions import LOG_VERSION, SUCCESSORS
from holdfast.messages.of_nodes import (
    AddReplicas,
    RegisterNode,
    ReportGone,
    ReportLostFiles,
    ReportUsage,
    ReportWriters,
    VerifyRanges,
)
from holdfast.messages.of_sessions import CloseSession, KeepAlive, OpenSession
from holdfast.messages.of_tenants import ChangeTenant, RemoveTenant
from holdfast.messages.records import EpochStarted, LogStarted, SettingsChanged, SuccessorNamed
from holdfast.messages.requests import (
    ChangeMode,
    ChangePins,
    ChangeSettings,
    CommitPuts,
    Done,
    Exists,
    Failed,
    GrantRanges,
    Locate,
    Remove,
    RemoveMatching,
    ResizeNode,
    ReturnGrants,
    RevokeWrites,
)
from holdfast.messages.shapes import Message, Record
from holdfast.replication.log_writer import PendingLog, Released
from holdfast.wire.codec import failed

MAX_PENDING_BYTES = 64 << 20
"""Puts are refused while the log is this far behind."""
_OF_NODES = frozenset(
    {RegisterNode, ReportWriters, ReportUsage, ReportGone, VerifyRanges, OpenSession, KeepAlive, CloseSession}
)
"""Requests whose caller is identified by its connection."""
_LOOKING = frozenset({Exists, Locate})
_PUTS = frozenset({GrantRanges, CommitPuts})
_OF_TENANTS = frozenset({ChangeTenant, RemoveTenant})
_OF_OBJECTS = frozenset({Remove, RemoveMatching, ChangePins})
_CHANGES = _PUTS | _OF_TENANTS | _OF_OBJECTS | {ChangeMode, ResizeNode, RevokeWrites, ChangeSettings}
"""Requests of clients and operators that need a record."""

Reply: TypeAlias = Message | Parked | Unfinished


class Engine:
    """One primary and its log. Without a log a record counts as durable as soon as it is applied."""

    def __init__(
        self,
        primary: Primary,
        log: PendingLog | None = None,
        durability: str = "durable",
        object_events: ObjectEvents | None = None,
        shell: EngineShell | None = None,
    ) -> None:
        self.primary = primary
        self.log = log
        self.shell = shell if shell is not None else EngineShell()
        self._is_stopped = False
        self.failures: Counter[str] = Counter()
        """Requests and commands that were refused, by the code of the error."""
        self.guard = Guard(self._report_failure)
        self.object_events = object_events
        if object_events is not None and log is None:
            object_events.follow(primary.state)
        self.succession = Succession(log, self._log_successor, self.leads_until) if log is not None else None
        self._durability = Durability(primary.state, log, durability, self.succession)
        self._room = WaitingRoom(primary, self._durability, self.failures, self._decide_parked)
        self._commands = NodeCommands(
            primary.sessions, self._durability, self.guard, self.failures, self._room.note_freed, self._cleared
        )

    @property
    def state(self) -> State:
        return self.primary.state

    def leads_until(self) -> Instant:
        """Past this it decides nothing (I12)."""
        return 0 if self._is_stopped else self.shell.leads_until()

    def stop_deciding(self) -> None:
        """Decide nothing from now on; what was decided is still written."""
        self._is_stopped = True

    @property
    def durable_index(self) -> int:
        return self._durability.durable

    @property
    def waits_for_log(self) -> bool:
        return self.log is not None and self.log.index != self.log.durable

    @property
    def replies_wait(self) -> bool:
        """Does anything wait for a record to become durable?"""
        return self.log is not None and self.log.waiting > 0

    @property
    def evicted(self) -> int:
        """Objects, since this primary began."""
        return self.primary.counts.evicted.total()

    @property
    def parked(self) -> int:
        return len(self._room.waiting)

    def start_log(self, log_id: int, cluster: str, secret: bytes, now: Instant) -> None:
        """Log the first records of a new history."""
        self.carry_out(Planned([LogStarted(log_id, cluster, secret)]), now)

    def start_epoch(self, epoch: int, now: Instant) -> None:
        rules = self.primary.rules
        longest = max(self.state.longest_lease_ms, rules.lease_ttl_ms)
        ttls = settings_changed(rules, self.state.changed, longest)
        self.carry_out(Planned([EpochStarted(epoch), ttls, *evicted_alone(self.state)]), now)

    def _log_successor(self, name: str, life: int, now: Instant) -> bool:
        """Log who holds the tail of the log. False if a master may lead next that would not understand that."""
        if self.primary.log_version < SUCCESSORS:
            return False
        self.carry_out(Planned([SuccessorNamed(name, life)]), now)
        return True

    def tenant(self, name: str, now: Instant) -> int:
        """The number of this tenant, which is defined if it is new. No reply need wait for that record: everything
        stored under the number is logged after it."""
        number = self.state.tenants.number_of(name)
        if number is None:
            if now >= self.leads_until() or (self.log is not None and self.log.full):
                raise self._not_leading()
            record = defined(self.state, name)
            self.carry_out(Planned([record]), now)
            number = record.number
        return number

    def revoke(self, clients: list[int], now: Instant) -> int:
        """End these clients. Returns the index to pass to `when_durable`: from then on no master lets them in."""
        if now >= self.leads_until() or (self.log is not None and self.log.full):
            raise self._not_leading()
        self.carry_out(revoke_clients(self.primary, clients), now)
        return self._durability.index

    def part_from(self, clients: Collection[int], now: Instant) -> None:
        """Their connections are closed: end what they were granted until then, and have their leases keep nobody from
        removing. The leases still keep the memory (I2)."""
        primary, catalogue = self.primary, self.state.catalogue
        late = sorted(client for client in clients if client in primary.grants_of)
        if late and now < self.leads_until():
            self.carry_out(revoke_clients(primary, late), now)
        for client in clients:
            primary.lessees.revoke(client, catalogue.lessees[: catalogue.top])

    # Requests.

    def handle(self, request: Message | NextStep, client: int, connection: int, now: Instant) -> tuple[Reply, int]:
        """The reply, and the index to pass to `when_durable` with it (0: it may be sent at once).

        Parked: it is a grant that must wait for room, or a keepalive to be answered later, so pass it to `park`.
        Unfinished: it takes several steps; pass its next one here when others had their turn.
        """
        if self._is_stopped or now >= self.shell.leads_until():
            return failed(self._not_leading()), 0
        kind = type(request)
        if kind in _LOOKING:
            return self._look(request, client, now)
        log = self.log
        if now < self.primary.doubt.until or (log is not None and (log.full or log.bytes > MAX_PENDING_BYTES)):
            refusal = self._refusal(request, client, now)
            if refusal is not None:
                return failed(refusal), 0
        if kind in _OF_NODES:
            self.primary.sessions.log_index = self.durable_index
            reply, after = self._decide(request, connection, now)
            self._commands.deliver(now)
        else:
            reply, after = self._decide(request, client, now)
        if self._room.waiting:
            if isinstance(request, GrantRanges | CommitPuts | ReturnGrants):
                self._room.withdraw(client, _ended_by(request))
            self._room.retry_if_freed(now)
        if kind is AddReplicas:  # The node is idle now, or soon will be.
            self.carry_out(plan_copies(self.primary, now), now)
        elif kind in _OF_TENANTS:
            self.shell.on_tenants_changed()
        elif isinstance(reply, Done) and reply.count and isinstance(asked := asked_for(request), ReportLostFiles):
            self.shell.on_lost_files(asked.node, reply.count, now)
        return reply, after

    def _not_leading(self) -> TryAgain:
        """The error for a request past the term. A full store does not take renewals of a term either: then that is the
        reason, and no master can lead."""
        if self.log is not None and self.log.full:
            return _full(self.log.full)
        return NotLeader("this master's term is over; nothing was changed. Ask the new primary")

    def _refusal(self, request: Message | NextStep, client: int, now: Instant) -> TryAgain | None:
        """Why this request is not even decided: the log takes no more, or it removes something that an earlier primary
        may still show."""
        log = self.log
        if log is not None and log.full and type(asked_for(request)) in _CHANGES:
            self.failures[LogFull.code] += 1
            return _full(log.full, isinstance(request, NextStep))
        if log is not None and log.bytes > MAX_PENDING_BYTES and type(request) in _PUTS:
            return LogSlow("the log cannot keep up with the puts; nothing was stored. Try again")
        if now < self.primary.doubt.until and self._takes_away(request, client):
            return Settling("an earlier primary may still answer reads; nothing was changed. Try again")
        return None

    def _takes_away(self, request: Message | NextStep, client: int) -> bool:
        """Would it remove something that an earlier primary may still show? Not if that primary has done it already,
        and the request is only a retry."""
        if isinstance(request, Remove | RemoveMatching):
            return (client, request.serial) not in self.state.answers
        return isinstance(request, ReportLostFiles) or (isinstance(request, CommitPuts) and request.upsert)

    def _look(self, request: Message | NextStep, client: int, now: Instant) -> tuple[Reply, int]:
        """Handle a read. It removes and frees nothing and commands no node, so it needs fewer steps than `handle`."""
        try:
            decision = decide(self.primary, request, client, now)
        except HoldfastError as error:
            self.failures[error.code] += 1
            return failed(error), 0
        if decision.records:
            self._log(decision.records, now)
        if decision.urgent:
            self.shell.on_urgent()
        log = self.log
        if log is None or log.index == log.durable:
            return decision.reply, 0
        return decision.reply, self._durability.required_index(request, decision.reply, log.index)

    def _decide(self, request: Message | NextStep, caller: int, now: Instant) -> tuple[Reply, int]:
        """Decide a request and carry the decision out. The reply, and the index that must be durable before it is
        sent."""
        before = self.log.index if self.log is not None else 0
        try:
            decision = decide(self.primary, request, caller, now)
            if self.state.log_version < LOG_VERSION:
                self.primary.check_log_version(decision.records)
        except HoldfastError as error:
            self.failures[error.code] += 1
            refused = failed(error)
            return refused, self._durability.required_index(request, refused, before)
        if decision.records or decision.commands:
            self._log_and_send(decision.records, decision.commands, now)
        if decision.freed:
            self._room.note_freed()
        if decision.given_up:
            self._room.lend_when_durable(decision.given_up, self._durability.index)
        if decision.urgent:
            self.shell.on_urgent()
        return decision.reply, self._durability.required_index(request, decision.reply, before)

    def _cleared(self, node: str, clearing: Clearing, is_done: bool) -> list[Command]:
        """Have the put that waits for this decided again. Returns what to tell the node next."""
        self._room.note_freed()
        return self.primary.former_tenants.confirmed(node, clearing, is_done)

    def _decide_parked(self, one: Waiting, now: Instant) -> tuple[Reply, int]:
        """Decide one waiting put again. A defect fails that put, with an error (I10), and no other that waits."""
        try:
            return self._decide(one.request, one.client, now)
        except Exception as error:  # noqa: BLE001 - It is reported to both sides.
            self.guard.failed("waiting put", str(one.client), error)
            return Failed("error", f"internal error: {type(error).__name__}: {error}"), self._durability.index

    # Records.

    def carry_out(self, plan: Planned, now: Instant) -> None:
        """Do what upkeep has decided."""
        if self.state.log_version < LOG_VERSION:
            self.primary.check_log_version(plan.records)
        if plan.records or plan.commands:
            self._log_and_send(plan.records, plan.commands, now)
        if plan.freed:
            self._room.note_freed()

    def _log_and_send(self, records: Sequence[Record], commands: Sequence[Command], now: Instant) -> None:
        """Apply and log these records; then send the commands, which wait for them, and those that follow from them."""
        hints = self._log(records, now)
        if commands or hints:
            self._commands.send([*commands, *hints], now)

    def _log(self, records: Sequence[Record], now: Instant) -> list[Command]:
        """Apply these records and add them to the log. Returns the commands that follow from them."""
        commands: list[Command] = []
        for record in records:
            if type(record) in NOTABLE:
                self.shell.note(self.state, record, now)
            absorbed = self._absorb(record, now)
            index = 0
            if self.log is not None:
                index = self._durability.add(record, absorbed.applied)
            if self.object_events is not None:
                self._tell_subscribers(self.object_events, index)
            if absorbed.freed:
                self._room.lend_when_durable(absorbed.freed, index)
            if type(record) is SettingsChanged:
                # No lease is given for longer than the log says.
                self._durability.when_durable(index, partial(self.primary.adopt, record.changed))
            if absorbed.commands:
                commands += absorbed.commands
        if self.log is not None and records:
            self.shell.on_record()
            if self.log.copied:
                self._send_to_successor()
        return commands

    def _send_to_successor(self) -> None:
        assert self.succession is not None, "there is a log"
        self.succession.send()

    def _absorb(self, record: Record, now: Instant) -> Absorbed:
        """Apply a record. A defect in the middle leaves half of it in the state and none in the log. If there is a log,
        the term ends then: the next primary, which may be this master, gets its state from the log (I5)."""
        try:
            return self.primary.absorb(record, now)
        except Exception:
            if self.log is not None:
                self.log.torn = type(record).__name__
                self.stop_deciding()
                self.shell.on_torn()
            raise

    def _tell_subscribers(self, events: ObjectEvents, index: int) -> None:
        if self.log is None:
            events.alone(self.state)
        else:
            events.applied(index, self.state)

    def when_durable(self, index: int, then: Released) -> None:
        """Have a reply sent once the record of this index is durable (I1)."""
        self._durability.when_durable(index, then)

    def after_durable(self, now: Instant) -> None:
        """Release commands that waited for these records, and retry parked puts: memory may have been freed."""
        if self.succession is not None and self.succession.waiting:
            self.succession.release(now)
        if self.object_events is not None and self.log is not None:
            self.object_events.durable(self.log.written.batch, self.log.durable)
        if self.primary.sessions.waits_for_log and now < self.leads_until():
            self._commands.deliver(now)
        if self._room.waiting and now < self.leads_until():
            self._room.retry_if_freed(now)
        self.shell.on_durable()

    def refuse_late(self, now: Instant) -> None:
        """While the log is full, send an error to callers whose deadline has passed."""
        if self.log is not None and self.log.full:
            self.log.refuse_late(now)

    # Whatever waits.

    def park(self, waiting: Waiting, now: Instant) -> None:
        """Keep a put until there is room for it or its deadline passes, and a keepalive until its reply is due."""
        if isinstance(waiting.request, KeepAlive):
            self.primary.sessions.hold(waiting.request.session, waiting.answer, waiting.deadline, now)
            self._commands.deliver(now)
        else:
            self._room.park(waiting, now)

    def notify(self, node: str, name: str, body: bytes, now: Instant, confirm: Confirm | None = None) -> int:
        """Send a command to the follower of this name. Returns the command's number. `confirm` is called when it has
        been handled (None), or with the reason why that will not be known."""
        if now >= self.leads_until():
            raise NotLeader("this master's term is over; nothing was sent")
        return self._commands.notify(node, name, body, now, confirm)

    def connection_lost(self, connection: int) -> None:
        """Drop the replies of a closed connection, and place nothing on a node behind it."""
        self.primary.sessions.connection_lost(connection)
        self._room.connection_lost(connection)

    def refuse_parked(self, error: HoldfastError) -> None:
        """Refuse all waiting puts with this error: the term or the process ends."""
        self.primary.sessions.end(error)
        self._commands.hand_out()
        self._room.refuse_all(error)

    # Upkeep.

    def tick(self, now: Instant) -> bool:
        """Do the work that is due by time. True: there is more to do, so tick again soon."""
        if now >= self.leads_until():
            return False
        self.primary.sessions.log_index = self.durable_index
        run = self.guard.run
        run("duties", "all", partial(self._do_duties, now))
        run("copies", "plan", lambda: self.carry_out(plan_copies(self.primary, now), now))
        run("keepalives", "due", partial(self._commands.answer_due, now))
        evicts = run("eviction", "step", partial(self._evict, now)) or False
        run("waiting puts", "all", partial(self._room.serve, now))
        run("late puts", "all", partial(self._room.refuse_late, now))
        return evicts or (self._room.freed and bool(self._room.waiting))

    def _do_duties(self, now: Instant) -> None:
        for duty in duties(self.primary, now):
            self.guard.run(duty.kind, duty.subject, lambda due=duty: self.carry_out(due.decide(), now))  # type: ignore[misc]

    def _report_failure(self, failure: UpkeepFailure) -> None:
        self.shell.on_upkeep_failure(failure)

    def _evict(self, now: Instant) -> bool:
        """Evict one step. True: it evicted something, and there may be more to evict."""
        goes_on, plan = evict(self.primary, now)
        self.carry_out(plan, now)
        return goes_on


def _full(why: str, goes_on: bool = False) -> LogFull:
    changed = "What it did until then counts" if goes_on else "This request changed nothing"
    return LogFull(f"the log is full: {why}. {changed}; it may be sent again")


def _ended_by(request: GrantRanges | CommitPuts | ReturnGrants) -> list[GrantId]:
    """The grants that its client is done with."""
    return request.grants if isinstance(request, ReturnGrants) else request.finished
