"""Turns requests into replies: decide, apply and log in one step, so that the order of states is the log's order.

Callers pass `now`, and the engine does no I/O: the server gives it requests and deadlines, and sends the replies.
A reply waits until every record that it depends on is durable: its own, and those of the keys that it read. Freed
ranges are lent again only then (I9). A put that found no room is parked; it is decided again whenever memory was
freed, and refused at its deadline. Past its leadership deadline a primary decides nothing (I12).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from holdfast.core.decide import decide
from holdfast.core.live_settings import settings_changed
from holdfast.core.objects.placement import why_no_room
from holdfast.core.objects.puts import least_wanted_bytes
from holdfast.core.primary.copy_book import Command
from holdfast.core.primary.primary import Parked, Primary
from holdfast.core.promotion import evicted_alone
from holdfast.core.state.apply import Freed
from holdfast.core.state.state import State
from holdfast.core.upkeep import duties, evict, plan_copies
from holdfast.errors import CommandsWaiting, HoldfastError, LogFull, LogSlow, NotLeader, Settling, TryAgain, UnknownNode
from holdfast.instant import Instant
from holdfast.master.durability import rests_on
from holdfast.master.object_events.events import ObjectEvents
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
from holdfast.messages.records import (
    EpochStarted,
    LogStarted,
    MemoryVerified,
    NodeDrained,
    NodeModeChanged,
    ObjectsCommitted,
    ObjectsRemoved,
    ReplicaAdded,
    SegmentMounted,
    SegmentUnmounted,
    SessionClosed,
    SessionOpened,
    SettingsChanged,
)
from holdfast.messages.requests import (
    ChangeMode,
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
    RevokeWrites,
)
from holdfast.messages.rows import AddedRow
from holdfast.messages.shapes import Message, Record
from holdfast.replication.pending_log import PendingLog
from holdfast.wire.codec import failed

MAX_PARKED = 10_000
ROUNDS = 2
"""How often waiting puts are decided again in one step; the next tick continues."""
MAX_PENDING_BYTES = 64 << 20
"""Puts are refused while the log is this far behind."""
FOR_EVER: Instant = 1 << 62
T = TypeVar("T")
Answer = Callable[[Message], None]
_OF_NODES = frozenset(
    {RegisterNode, ReportWriters, ReportUsage, ReportGone, VerifyRanges, OpenSession, KeepAlive, CloseSession}
)
"""Requests whose caller is identified by its connection."""
_LOOKING = frozenset({Exists, Locate})
_NOTABLE = frozenset(
    {
        SessionOpened,
        SessionClosed,
        SegmentMounted,
        SegmentUnmounted,
        MemoryVerified,
        ObjectsRemoved,
        NodeModeChanged,
        NodeDrained,
    }
)
_PUTS = frozenset({GrantRanges, CommitPuts})
_CHANGES = _PUTS | {Remove, RemoveMatching, ChangeMode, ResizeNode, RevokeWrites, ChangeSettings}
"""Requests of clients and operators that need a record."""


class UpkeepFailure(NamedTuple):
    """A defect in one step of upkeep. Only that step failed; it is tried again at the next tick."""

    kind: str
    subject: str
    error: Exception


@dataclass(slots=True)
class Waiting:
    request: GrantRanges | KeepAlive
    client: int
    connection: int
    deadline: Instant
    answer: Answer


class Engine:
    """One primary and its log. Without a log a record counts as durable as soon as it is applied."""

    def __init__(
        self,
        primary: Primary,
        log: PendingLog | None = None,
        durability: str = "durable",
        object_events: ObjectEvents | None = None,
    ) -> None:
        self.primary = primary
        self.log = log
        self.leads_until: Callable[[], Instant] = lambda: FOR_EVER
        self.clients_wait_until: Callable[[], Instant] = lambda: FOR_EVER
        """Until when clients may usefully wait here for the log: the end of the term. A primary that hands over stops
        deciding earlier, but its decisions are still being written."""
        self.failures: Counter[str] = Counter()
        self.on_record: Callable[[], None] = lambda: None
        """Called when there is a record to write."""
        self.on_urgent: Callable[[], None] = lambda: None
        """Called when a lease that was about to end was renewed."""
        self.on_durable: Callable[[], None] = lambda: None
        """Called when records have become durable."""
        self.on_torn: Callable[[], None] = lambda: None
        """Called when a record was only partly applied: this primary decides nothing from then on."""
        self.upkeep_failures: Counter[str] = Counter()
        """Counts by kind."""
        self.on_upkeep_failure: Callable[[UpkeepFailure], None] = lambda failure: None
        """Called with each failure: this module writes no log lines."""
        self.note: Callable[[State, Record, Instant], None] = lambda state, record, now: None
        """Called with records of sessions and segments before they are applied."""
        self.on_lost_files: Callable[[str, int, Instant], None] = lambda node, count, now: None
        """Called with the number of replicas that were dropped because files on that node's disk were lost."""
        self.object_events = object_events
        if object_events is not None and log is None:
            object_events.follow(primary.state)
        self._durability = durability
        self._parked: list[Waiting] = []
        self._topology_index = 0
        """The index of the last record that changed which segments there are."""
        self._freed = False

    @property
    def state(self) -> State:
        return self.primary.state

    @property
    def durable_index(self) -> int:
        return self.log.durable if self.log is not None else self.state.index

    @property
    def waits_for_log(self) -> bool:
        return self.log is not None and self.log.index != self.log.durable

    @property
    def evicted(self) -> int:
        return self.primary.evicted

    @property
    def parked(self) -> int:
        return len(self._parked)

    def start_log(self, log_id: int, cluster: str, secret: bytes, now: Instant) -> None:
        """Log the first records of a new history."""
        self._log([LogStarted(log_id, cluster, secret)], now)

    def start_epoch(self, epoch: int, now: Instant) -> None:
        rules = self.primary.rules
        longest = max(self.state.longest_lease_ms, rules.lease_ttl_ms)
        ttls = settings_changed(rules, self.state.changed, longest)
        self._log([EpochStarted(epoch), ttls, *evicted_alone(self.state)], now)

    def handle(self, request: Message, client: int, connection: int, now: Instant) -> tuple[Message | Parked, int]:
        """The reply, and the index that must be durable before it is sent (0: none).

        Parked: it is a grant that must wait for room, or a keepalive to be answered later, so pass it to `park`.
        """
        if now >= self.leads_until():
            return failed(self._not_leading()), 0
        if type(request) in _LOOKING:
            return self._look(request, client, now)
        log = self.log
        if log is not None and log.full and type(request) in _CHANGES:
            self.failures[LogFull.code] += 1
            return failed(_full(log.full)), 0
        if log is not None and log.bytes > MAX_PENDING_BYTES and type(request) in _PUTS:
            return failed(LogSlow("the log cannot keep up with the puts; nothing was stored. Try again")), 0
        if now < self.primary.doubt.until and self._takes_away(request, client):
            return failed(Settling("an earlier primary may still answer reads; nothing was changed. Try again")), 0
        before = log.index if log is not None else 0
        if type(request) in _OF_NODES:
            reply = self._decide_of_nodes(request, connection, now)
        else:
            reply = self._decide(request, client, now)
        after = 0
        if log is not None:
            after = rests_on(log, request, reply, before, self._durability, self._topology_index)
        if self.primary.urgent:
            self.primary.urgent = False
            self.on_urgent()
        if self._freed and self._parked:
            self._retry_parked(now)
        if type(request) is AddReplicas:  # The node is idle now, or soon will be.
            self._log(plan_copies(self.primary, now), now)
        elif type(request) is ReportLostFiles and isinstance(reply, Done) and reply.count:
            self.on_lost_files(request.node, reply.count, now)
        if self.primary.copies.outbox:
            self._tell_nodes(now)
        return reply, after

    def _not_leading(self) -> TryAgain:
        """The error for a request past the term. A full store does not take renewals of a term either: then that is the
        reason, and no master can lead."""
        if self.log is not None and self.log.full:
            return _full(self.log.full)
        return NotLeader("this master's term is over; nothing was changed. Ask the new primary")

    def refuse_late(self, now: Instant) -> None:
        """While the log is full, send an error to callers whose deadline has passed."""
        if self.log is not None and self.log.full:
            self.log.refuse_late(now)

    def _look(self, request: Message, client: int, now: Instant) -> tuple[Message | Parked, int]:
        """Handle a read. It removes and frees nothing and commands no node, so it needs fewer steps than `handle`."""
        try:
            reply, records = decide(self.primary, request, client, now)
        except HoldfastError as error:
            self.failures[error.code] += 1
            return failed(error), 0
        if records:
            self._log(records, now)
        if self.primary.urgent:
            self.primary.urgent = False
            self.on_urgent()
        log = self.log
        if log is None or log.index == log.durable:
            return reply, 0
        return reply, rests_on(log, request, reply, log.index, self._durability, self._topology_index)

    def _decide_of_nodes(self, request: Message, connection: int, now: Instant) -> Message | Parked:
        sessions = self.primary.sessions
        sessions.log_index = self.durable_index
        reply = self._decide(request, connection, now)
        if sessions.returned or isinstance(request, RegisterNode):
            sessions.returned = False
            self._freed = True  # A node that is back brings room as well.
        self._deliver(now)
        return reply

    def _deliver(self, now: Instant) -> None:
        """Send the sessions' keepalive replies. One with a command waits until everything that the command may depend
        on is durable; one without waits for nothing: a slow log must not cost a node its session."""
        self.primary.sessions.say(self.durable_index, now)
        self._hand_out()

    def _hand_out(self) -> None:
        sessions = self.primary.sessions
        while sessions.outgoing:
            outgoing, sessions.outgoing = sessions.outgoing, []
            for then, what in outgoing:
                self._guard("answer", "a session's", partial(then, what))

    def notify(
        self,
        node: str,
        name: str,
        body: bytes,
        now: Instant,
        confirm: Callable[[HoldfastError | None], None] | None = None,
    ) -> int:
        """Send a command to the follower of this name. Returns the command's number. `confirm` is called when it has
        been handled (None), or with the reason why that will not be known."""
        if now >= self.leads_until():
            raise NotLeader("this master's term is over; nothing was sent")
        session = self.primary.sessions.named(node)
        if session is None:
            raise UnknownNode(f"nobody called {node!r} follows this master; nothing was sent")
        after = self.log.index if self.log is not None else 0
        number = self.primary.sessions.notify(session.id, name, body, confirm, after)
        self._deliver(now)
        return number

    def _takes_away(self, request: Message, client: int) -> bool:
        """Would it remove something that an earlier primary may still show? Not if that primary has done it already,
        and the request is only a retry."""
        if isinstance(request, Remove | RemoveMatching):
            return (client, request.serial) not in self.state.answers
        return isinstance(request, ReportLostFiles) or (isinstance(request, CommitPuts) and request.upsert)

    def when_durable(self, index: int, then: Callable[[], None]) -> None:
        assert self.log is not None, "without a log nothing has to wait"
        self.log.when_durable(index, then)

    def park(self, waiting: Waiting, now: Instant) -> None:
        """Keep a put until there is room for it or its deadline passes, and a keepalive until its reply is due."""
        if isinstance(waiting.request, KeepAlive):
            self.primary.sessions.hold(waiting.request.session, waiting.answer, waiting.deadline, now)
            self._deliver(now)
            return
        if len(self._parked) >= MAX_PARKED:
            waiting.answer(failed(TryAgain("too many puts wait for room; nothing was stored. Try again later")))
            return
        self._parked.append(waiting)
        if self._freed:
            self._retry_parked(now)

    def _decide(self, request: Message, caller: int, now: Instant) -> Message | Parked:
        gone = self.primary.evicted
        try:
            reply, records = decide(self.primary, request, caller, now)
        except HoldfastError as error:
            self.failures[error.code] += 1
            return failed(error)
        if self.primary.evicted != gone:
            self._freed = True  # An unlogged eviction: there is no record to wait for.
        if records:
            self._log(records, now)
        if isinstance(reply, Parked) and isinstance(request, GrantRanges) and request.grant in self.primary.claims:
            self._freed = True  # Another step can be made towards its room.
        if self.primary.given_up:
            self._lend_given_up()
        return reply

    def _log(self, records: list[Record], now: Instant) -> None:
        log = self.log
        departed = self.state.departed
        for record in records:
            gone, topology = departed.batches, self.state.topology
            if type(record) in _NOTABLE:
                self.note(self.state, record, now)
            freed = self._apply(record, now)
            if log is None:
                self._count(record, freed)
                if self.object_events is not None:
                    self.object_events.alone(self.state)
                continue
            keys = self._keys_of(record)
            index = log.add(record, [*keys, *departed.newest()] if departed.batches != gone else keys)
            if self.object_events is not None:
                self.object_events.applied(index, self.state)
            if self.state.topology != topology:
                self._topology_index = index
            if freed or isinstance(record, SettingsChanged):
                log.when_durable(index, partial(self._count_durable, record, self.primary.withhold(freed)))
        if log is not None and records:
            self.on_record()

    def _apply(self, record: Record, now: Instant) -> Freed:
        """Apply a record. A defect in the middle leaves half of it in the state and none in the log. If there is a log,
        the term ends then: the next primary, which may be this master, gets its state from the log (I5)."""
        try:
            return self.primary.absorb(record, now)
        except Exception:
            if self.log is not None:
                self.log.torn = type(record).__name__
                self.leads_until = lambda: 0
                self.on_torn()
            raise

    def _keys_of(self, record: Record) -> list[str]:
        """The keys for which this record may show readers a new place: their replies wait until it is durable. After a
        failover without it, the place of a replica that was being added is granted to others at once (I2)."""
        if isinstance(record, ObjectsCommitted):
            return record.keys
        if not isinstance(record, ReplicaAdded):
            return []
        catalogue = self.state.catalogue
        slots = catalogue.by_id.slots_of([oid for oid, _ in AddedRow.iter_unpack(record.rows)])
        return [key for slot in slots if (key := catalogue.keys[slot]) is not None]

    def _tell_nodes(self, now: Instant) -> None:
        """Send the commands that were decided for nodes. A node that cannot be reached now gets its commands when it is
        back: those that are not confirmed follow from the state, and are planned again."""
        outbox, self.primary.copies.outbox = self.primary.copies.outbox, []
        for command in outbox:
            self._guard("command", command.node, partial(self._tell_node, command, now))

    def _tell_node(self, command: Command, now: Instant) -> None:
        confirm = self._confirmed if command.confirm else None
        try:
            self.notify(command.node, command.name, command.body, now, confirm)
        except (UnknownNode, CommandsWaiting, NotLeader) as error:
            self.failures[error.code] += 1

    def _confirmed(self, error: HoldfastError | None) -> None:
        if error is not None:
            self.failures[error.code] += 1

    def _count_durable(self, record: Record, number: int) -> None:
        self._count(record, self.primary.release(number))

    def _count(self, record: Record, freed: Freed) -> None:
        """Let a durable record take effect: ranges that it freed are lent again, and its settings apply."""
        if isinstance(record, SettingsChanged):
            self.primary.adopt(record.changed)
        if freed:
            self.primary.reclaim(freed)
            self._freed = True

    def _lend_given_up(self) -> None:
        """Lend again the memory that was being cleared for puts that have ended, once its records are durable (I9)."""
        given_up, self.primary.given_up = self.primary.given_up, []
        for freed in given_up:
            if self.log is None:
                self._lend(freed)
            else:
                number = self.primary.withhold(freed)
                self.log.when_durable(self.log.index, partial(self._lend_withheld, number))

    def _lend_withheld(self, number: int) -> None:
        self._lend(self.primary.release(number))

    def _lend(self, freed: Freed) -> None:
        self.primary.reclaim(freed)
        self._freed = True

    def after_durable(self, now: Instant) -> None:
        """Release commands that waited for these records, and retry parked puts: memory may have been freed."""
        if self.object_events is not None and self.log is not None:
            self.object_events.durable(self.log.written.batch, self.log.durable)
        if self.primary.sessions.waits_for_log and now < self.leads_until():
            self._deliver(now)
        if self._freed and self._parked and now < self.leads_until():
            self._retry_parked(now)
        self.on_durable()

    def _retry_parked(self, now: Instant) -> None:
        """Decide waiting puts again, oldest first; each that still finds no room evicts some more."""
        for _ in range(ROUNDS):
            self._freed = False
            waiting, self._parked = self._parked, []
            for one in waiting:
                reply = self._decide_parked(one, now)
                if isinstance(reply, Parked):
                    self._parked.append(one)
                else:
                    self._answer(one, reply)
            if not (self._parked and self._freed):
                return

    def _retry_oldest(self, now: Instant) -> bool:
        """Decide the oldest waiting put of each length again, which evicts objects whose leases have ended since: the
        end of a lease frees nothing and wakes no put. True: one got its room, so others may too."""
        oldest: dict[int, Waiting] = {}
        for one in self._parked:
            assert isinstance(one.request, GrantRanges), "keepalives are held elsewhere"
            oldest.setdefault(least_wanted_bytes(one.request), one)
        for one in oldest.values():
            reply = self._decide_parked(one, now)
            if not isinstance(reply, Parked):
                self._parked.remove(one)
                self._answer(one, reply)
                self._freed = True
        return self._freed

    def _decide_parked(self, one: Waiting, now: Instant) -> Message | Parked:
        """Decide one waiting put again. A defect fails that put, with an error (I10), and no other that waits."""
        try:
            return self._decide(one.request, one.client, now)
        except Exception as error:  # noqa: BLE001 - It is reported to both sides.
            self._failed("waiting put", str(one.client), error)
            return Failed("error", f"internal error: {type(error).__name__}: {error}")

    def _answer(self, waiting: Waiting, reply: Message) -> None:
        if self.log is None:
            waiting.answer(reply)
        else:
            self.log.when_durable(self.log.index, partial(waiting.answer, reply))

    def tick(self, now: Instant) -> bool:
        """Do the work that is due by time. True: there is more to do, so tick again soon."""
        if now >= self.leads_until():
            return False
        self.primary.sessions.log_index = self.durable_index
        self._guard("duties", "all", partial(self._do_duties, now))
        self._guard("copies", "plan", lambda: self._log(plan_copies(self.primary, now), now))
        self._guard("keepalives", "due", partial(self._answer_due, now))
        evicts = self._guard("eviction", "step", partial(self._evict, now)) or False
        self._guard("commands", "all", partial(self._tell_nodes, now))
        self._guard("waiting puts", "all", partial(self._serve_parked, now))
        self._guard("late puts", "all", partial(self._refuse_late, now))
        return evicts or (bool(self._parked) and self._freed)

    def _guard(self, kind: str, subject: str, act: Callable[[], T]) -> T | None:
        """Do one step of upkeep. None if a defect ended it: the following steps still run."""
        try:
            return act()
        except Exception as error:  # noqa: BLE001 - It is counted and reported.
            self._failed(kind, subject, error)
            return None

    def _failed(self, kind: str, subject: str, error: Exception) -> None:
        self.upkeep_failures[kind] += 1
        self.on_upkeep_failure(UpkeepFailure(kind, subject, error))

    def _do_duties(self, now: Instant) -> None:
        for duty in duties(self.primary, now):
            self._guard(duty.kind, duty.subject, lambda due=duty: self._log(due.decide(), now))  # type: ignore[misc]

    def _answer_due(self, now: Instant) -> None:
        self.primary.sessions.answer_due(now)
        self._deliver(now)

    def _evict(self, now: Instant) -> bool:
        """Evict one step. True: it evicted something, and there may be more to evict."""
        gone, evictions = evict(self.primary, now)
        self._log(evictions, now)
        self._freed = self._freed or (gone > 0 and not evictions)
        return gone > 0

    def _serve_parked(self, now: Instant) -> None:
        if self._parked and not self.primary.unlent_bytes:
            self._freed = self._freed or self._retry_oldest(now)
        if self._parked and self._freed:
            self._retry_parked(now)

    def _refuse_late(self, now: Instant) -> None:
        late = [one for one in self._parked if one.deadline <= now]
        if not late:
            return
        self._parked = [one for one in self._parked if one.deadline > now]
        for one in late:
            assert isinstance(one.request, GrantRanges), "keepalives are held elsewhere"
            error = why_no_room(self.primary, least_wanted_bytes(one.request), one.request.replicas, now)
            self.failures[error.code] += 1
            one.answer(failed(error))
            self.primary.give_up(one.request.grant)
        self._lend_given_up()

    def connection_lost(self, connection: int) -> None:
        """Drop the replies of a closed connection, and place nothing on a node behind it."""
        self.primary.sessions.connection_lost(connection)
        for one in self._parked:
            if one.connection == connection and isinstance(one.request, GrantRanges):
                self.primary.give_up(one.request.grant)
        self._parked = [one for one in self._parked if one.connection != connection]
        self._lend_given_up()

    def refuse_parked(self, error: HoldfastError) -> None:
        """Refuse all waiting puts with this error: the term or the process ends."""
        self.primary.sessions.end(error)
        self._hand_out()
        parked, self._parked = self._parked, []
        for one in parked:
            one.answer(failed(error))


def _full(why: str) -> LogFull:
    return LogFull(f"the log is full: {why}. This request changed nothing; it may be sent again")
