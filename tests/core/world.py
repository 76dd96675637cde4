"""A primary without processes: the engine, a clock that the test turns, and a twin that applies the same records."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from holdfast.core.catalogue.catalogue import LIVE
from holdfast.core.catalogue.digest import digest
from holdfast.core.catalogue.holdings import Held, Holdings
from holdfast.core.objects.standby_eviction import evict_alone
from holdfast.core.primary.decision import Parked, Unfinished
from holdfast.core.primary.primary import Absorbed, Primary
from holdfast.core.primary.session_book import RESTORED
from holdfast.core.rules import Rules
from holdfast.core.state.applied import Applied
from holdfast.core.state.apply import apply
from holdfast.core.state.renewals import apply_renewed, take_renewed
from holdfast.core.state.state import State
from holdfast.ids import GrantId, extent_of
from holdfast.instant import Instant
from holdfast.master.engine.engine import Engine
from holdfast.master.engine.guard import UpkeepFailure
from holdfast.master.engine.shell import EngineShell
from holdfast.master.engine.waiting_room import Waiting
from holdfast.messages import commands as c
from holdfast.messages import of_nodes as n
from holdfast.messages import of_sessions as ss
from holdfast.messages import requests as q
from holdfast.messages.records import ObjectsCommitted
from holdfast.messages.shapes import Attachment, Message, Record
from holdfast.simulation.checks.log_checks import spans_of
from holdfast.wire.codec import expect
from tests.core.key_table import fingerprints_in, show

T = TypeVar("T", bound=Message)
CLIENT = 7
TWIN_AHEAD_MS = 12_345
"""A standby's clock is another one."""


class TwinnedPrimary(Primary):
    """Applies every record to a second state too, as a standby would."""

    def __init__(self, state: State, rules: Rules) -> None:
        super().__init__(state, rules)
        self.twin = State()
        self.records: list[Record] = []

    def absorb(self, record: Record, now: Instant) -> Absorbed:
        self.records.append(record)
        apply(self.twin, record, now + TWIN_AHEAD_MS)
        shape, entry = dict(self.state.segments), self.state.next_quarantine
        before = self.state.topology
        absorbed = super().absorb(record, now)
        self._check_what_it_says(record, absorbed.applied, before, entry)
        assert absorbed.applied.topology_changed or shape.keys() == self.state.segments.keys()
        return absorbed

    def _check_what_it_says(self, record: Record, applied: Applied, topology: int, entry: int) -> None:
        """What `apply` says that it did is what it did."""
        assert applied.topology_changed == (self.state.topology != topology)
        assert list(applied.quarantined) == list(range(entry, self.state.next_quarantine))
        if isinstance(record, ObjectsCommitted):
            assert set(applied.keys) >= set(record.keys)


class World:
    def __init__(self, **rules: float | str) -> None:
        self.now = 1_000_000
        self.primary = TwinnedPrimary(State(), Rules(**rules))  # type: ignore[arg-type]
        self.upkeep_failures: list[UpkeepFailure] = []
        self.note: Callable[[State, Record, Instant], None] = lambda state, record, now: None
        self.on_urgent: Callable[[], None] = lambda: None
        shell = EngineShell(
            on_urgent=lambda: self.on_urgent(),  # noqa: PLW0108 - a test may set it later.
            on_upkeep_failure=self.upkeep_failures.append,
            note=lambda *given: self.note(*given),  # noqa: PLW0108 - a test may set it later.
        )
        self.engine = Engine(self.primary, shell=shell)
        self.engine.start_log(11, "test", b"secret", self.now)
        self.engine.start_epoch(1, self.now)
        self.serial = 0
        self.late: list[Message] = []
        self.told: dict[int, int] = {}
        self.commands: list[tuple[int, str, bytes]] = []
        self.nodes_clear = True
        """Memory that goes to another tenant is cleared at once (ADR 55)."""
        self._shown = show(self.state.catalogue)

    def check_shown(self) -> None:
        """Clients of the same machine see the keys that there are."""
        if self.state.catalogue.key_table is None:  # Of a state that was promoted since.
            self._shown = show(self.state.catalogue)
        shown, words = self._shown
        while shown.catch_up():
            pass
        catalogue = self.state.catalogue
        slots = catalogue.by_key.slots_of([key for key in catalogue.keys if key is not None])
        assert fingerprints_in(words) == sorted(catalogue.key_hash_at[slot] for slot in slots if slot >= 0)

    @property
    def state(self) -> State:
        return self.engine.state

    def pass_time(self, ms: int) -> None:
        """Time passes; followers that are connected keep their sessions."""
        self.now += ms
        for session in list(self.primary.sessions):
            if session.connection not in (0, RESTORED):
                self.keep_alive(session.id, session.connection)
        while self.engine.tick(self.now):
            pass

    def keep_alive(self, session: int, connection: int = 100) -> Message | None:
        """Handles whatever it was told, and keeps the session."""
        found = self.primary.sessions.require(session)
        handled = self.told.get(session, 0)
        request = ss.KeepAlive(session, found.serial + 1, self.state.epoch, handled)
        return self.send(request, connection=connection)

    def hear(self, session: int, reply: Message) -> None:
        """The follower takes an answer to a keepalive."""
        if isinstance(reply, ss.KeptAlive):
            for command in reply.commands:
                if command.number > self.told.get(session, 0):
                    self.told[session] = command.number
                    self.commands.append((session, command.name, command.body))

    def pass_to_twin(self) -> None:
        """What a standby hears and does beside the log: renewals, and evictions of its own."""
        twin, now = self.primary.twin, self.now + TWIN_AHEAD_MS
        if self.primary.rules.lease_sync == "batched":
            apply_renewed(twin, take_renewed(self.state, self.now), 0, now)
        while evict_alone(twin, self.primary.rules, now):
            pass

    def send(
        self, request: Message, client: int = CLIENT, connection: int = 1, timeout_ms: int = 1_000
    ) -> Message | None:
        """The reply, or None while it waits; it is in `late` when it comes."""
        reply, _ = self.engine.handle(request, client, connection, self.now)
        while isinstance(reply, Unfinished):
            reply, _ = self.engine.handle(reply.step, client, connection, self.now)
        if not isinstance(reply, Parked):
            if isinstance(request, ss.KeepAlive):
                self.hear(request.session, reply)
            return reply
        if isinstance(request, ss.KeepAlive):
            answer = partial(self.hear, request.session)
            self.engine.park(Waiting(request, client, connection, self.now + 60_000, answer), self.now)
            return None
        assert isinstance(request, q.GrantRanges)
        before = len(self.late)
        self.engine.park(Waiting(request, client, connection, self.now + timeout_ms, self.late.append), self.now)
        if self.nodes_clear and request.grant in self.primary.former_tenants.awaited:
            self.obey()
        return self.late.pop() if len(self.late) > before else None

    def obey(self) -> None:
        """Nodes that are connected do what they were told, and confirm it."""
        for _ in range(2):
            for session in [one for one in self.primary.sessions if one.connection not in (0, RESTORED)]:
                self.keep_alive(session.id, session.connection)

    def ask(self, kind: type[T], request: Message, client: int = CLIENT, connection: int = 1) -> T:
        reply = self.send(request, client, connection)
        assert reply is not None, "the request was parked"
        return expect(reply, kind)

    def open(self, name: str, session: int, connection: int) -> ss.Opened:
        return self.ask(ss.Opened, ss.OpenSession(session, name), connection=connection)

    def offer(self, session: int, boot: int, sizes: list[int], log_id: int = 0, **more: object) -> n.Registered:
        name = self.primary.sessions.require(session).name
        request = n.RegisterNode(session, boot, log_id, "host", f"{name}:1", f"/{name}", sizes, **more)  # type: ignore[arg-type]
        return self.ask(n.Registered, request)

    def node(
        self, name: str = "a", size: int = 1 << 20, boot: int = 5, connection: int = 100, segments: int = 1
    ) -> None:
        """It opens the session whose number is its boot id, and mounts new memory."""
        self.open(name, boot, connection)
        self.offer(boot, boot, [size] * segments)

    def report(
        self, boot: int = 5, gone: tuple[int, ...] = (), cleaned: tuple[GrantId, ...] = (), session: int = 0
    ) -> int:
        return self.ask(q.Done, n.ReportWriters(session or boot, boot, list(gone), list(cleaned))).count

    def asked_to_clean(self, session: int = 5) -> list[GrantId]:
        """All that this node was told to clean, ever; it is told at a tick."""
        self.engine.tick(self.now)
        self.keep_alive(session)
        bodies = [c.decode_body(c.Clean, body) for to, name, body in self.commands if (to, name) == (session, c.CLEAN)]
        return [grant for body in bodies for grant in body.grants]

    def handle_of(self, node: str) -> int:
        return next(s.handle for s in self.state.segments.values() if s.name.node == node)

    def grant(self, *sizes: int, client: int = CLIENT, writer: int = 1, **more: object) -> tuple[GrantId, q.Granted]:
        """Memory for these sizes, written through shared memory as `writer` (0: over TCP)."""
        self.serial += 1
        grant = GrantId(client, self.serial)
        keys = more.pop("keys", [])
        if not keys:
            sizes = (sum(map(extent_of, sizes)),)
        attached = [Attachment(handle, writer) for handle in self.state.segments] if writer else []
        packed = struct.pack(f"<{len(sizes)}Q", *sizes)
        request = q.GrantRanges(grant, packed, keys=keys, attached=attached, **more)  # type: ignore[arg-type]
        return grant, self.ask(q.Granted, request, client)

    def commit(self, grant: GrantId, rows: list[tuple[str, int, int]], **more: object) -> list[bool]:
        """rows: (key, offset, size)"""
        flat = [word for _, offset, size in rows for word in (offset, size, size ^ 99)]
        request = q.CommitPuts(grant, [key for key, _, _ in rows], struct.pack(f"<{len(flat)}Q", *flat), **more)  # type: ignore[arg-type]
        return [bool(stored) for stored in self.ask(q.Committed, request, grant.client).stored]

    def put(self, *keys: str, size: int = 1_000, client: int = CLIENT, replicas: int = 1, **more: object) -> list[bool]:
        grant, _ = self.grant(*[size] * len(keys), client=client, replicas=replicas)
        stored = self.commit(grant, [(key, i * extent_of(size), size) for i, key in enumerate(keys)], **more)
        self.ask(q.Done, q.ReturnGrants([grant]), client)
        return stored

    def has(self, *keys: str) -> list[bool]:
        return [bool(found) for found in self.ask(q.Presence, q.Exists(list(keys))).found]

    def touch(self, *keys: str) -> list[bool]:
        """As `has`, with a lease on what is found."""
        return [bool(found) for found in self.ask(q.Presence, q.Exists(list(keys), touch=True)).found]

    def locate(self, *keys: str) -> list[tuple[int, ...]]:
        """(id, segment, offset, size, checksum) per key; id 0: absent."""
        rows = self.ask(q.Located, q.Locate(list(keys))).rows
        return list(struct.iter_unpack("<5Q", rows))

    def remove(self, *keys: str, force: bool = False) -> q.Removed:
        self.serial += 1
        return self.ask(q.Removed, q.Remove(list(keys), self.serial, force))

    def remove_matching(self, pattern: str = "", force: bool = False) -> int:
        total, cursor = 0, 0
        while True:
            self.serial += 1
            reply = self.ask(q.Removed, q.RemoveMatching(pattern, self.serial, cursor, force))
            total += reply.removed
            cursor = reply.cursor
            if not cursor:
                return total

    def check(self) -> None:
        """I5: the twin agrees. I9: the memory is accounted for."""
        state = self.state
        assert not self.upkeep_failures
        assert digest(state.catalogue) == digest(self.primary.twin.catalogue)
        assert state.catalogue.count == len(state.catalogue.live())
        assert state.objects == len(state.catalogue.by_key)
        further = Counter(place.segment for places in state.catalogue.others.values() for place in places)
        assert +state.catalogue.further == further
        assert state.quarantine == self.primary.twin.quarantine
        assert state.grants.keys() == self.primary.twin.grants.keys()
        assert state.sessions == self.primary.twin.sessions
        assert state.most_nodes == self.primary.twin.most_nodes
        assert state.drains == self.primary.twin.drains
        assert state.tenants.by_number == self.primary.twin.tenants.by_number
        assert list(state.revoked) == list(self.primary.twin.revoked)
        check_holdings(state)
        check_holdings(self.primary.twin)
        assert state.sessions == {session.id: session.name for session in self.primary.sessions}
        check_partition(self.primary)


def check_holdings(state: State) -> None:
    """The sums that are kept for each tenant are those of a fresh count."""
    kept = state.catalogue.holdings
    assert (kept is None) == (not state.tenants)
    if kept is not None:
        counted = Holdings(state.catalogue)
        top = state.catalogue.top
        live = state.catalogue.flags[:top] & LIVE != 0
        assert (kept.column[:top][live] == counted.column[:top][live]).all()
        nothing = Held()
        for number in kept.by_number.keys() | counted.by_number.keys():
            assert kept.by_number.get(number, nothing) == counted.by_number.get(number, nothing)


def check_partition(primary: Primary) -> None:
    """I9: objects, grants, quarantine and free space partition each segment exactly."""
    state = primary.state
    taken = spans_of(state)
    for handle, allocator in primary.allocators.items():
        allocator.check()
        free = [(start, start + size) for start, size in allocator.free_ranges()]
        # What is beyond the limit of a segment that shrinks is nobody's, once it is not an object's any more.
        usable = state.segments[handle].usable_bytes
        spans = np.array(sorted((a, min(b, usable)) for a, b in taken[handle] + free if a < usable))
        assert spans[0, 0] == 0
        assert spans[-1, 1] == usable
        assert (spans[1:, 0] == spans[:-1, 1]).all()
