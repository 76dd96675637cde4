"""A primary without processes: the engine, a clock that the test turns, and a twin that applies the same records."""

from __future__ import annotations

import struct
from typing import TypeVar

import numpy as np

from holdfast.core.apply import Freed, apply, ranges_of
from holdfast.core.digest import digest
from holdfast.core.primary import Parked, Primary
from holdfast.core.rules import Rules
from holdfast.core.state import State
from holdfast.ids import GrantId, extent_of
from holdfast.instant import Instant
from holdfast.master.engine import Engine, Waiting
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from holdfast.messages.shapes import Attachment, Message, Record
from holdfast.wire.codec import expect

T = TypeVar("T", bound=Message)
CLIENT = 7


class TwinnedPrimary(Primary):
    """Applies every record to a second state too, as a standby would."""

    def __init__(self, state: State, rules: Rules) -> None:
        super().__init__(state, rules)
        self.twin = State()
        self.records: list[Record] = []

    def absorb(self, record: Record, now: Instant) -> Freed:
        self.records.append(record)
        apply(self.twin, record, now + 12_345)  # A standby's clock is another one.
        return super().absorb(record, now)


class World:
    def __init__(self, **rules: float) -> None:
        self.now = 1_000_000
        self.primary = TwinnedPrimary(State(), Rules(**rules))  # type: ignore[arg-type]
        self.engine = Engine(self.primary)
        self.engine.start_log(11, "test", b"secret", self.now)
        self.engine.start_epoch(1, self.now)
        self.serial = 0
        self.late: list[Message] = []

    @property
    def state(self) -> State:
        return self.engine.state

    def pass_time(self, ms: int) -> None:
        """Time passes; nodes that are connected go on beating."""
        self.now += ms
        for member in self.primary.members.values():
            if member.connection:
                member.last_heard = self.now
        while self.engine.tick(self.now):
            pass

    def send(
        self, request: Message, client: int = CLIENT, connection: int = 1, timeout_ms: int = 1_000
    ) -> Message | None:
        """The reply, or None while it waits; it is in `late` when it comes."""
        reply, _ = self.engine.handle(request, client, connection, self.now)
        if not isinstance(reply, Parked):
            return reply
        assert isinstance(request, q.GrantRanges)
        before = len(self.late)
        self.engine.park(Waiting(request, client, connection, self.now + timeout_ms, self.late.append), self.now)
        return self.late.pop() if len(self.late) > before else None

    def ask(self, kind: type[T], request: Message, client: int = CLIENT, connection: int = 1) -> T:
        reply = self.send(request, client, connection)
        assert reply is not None, "the request was parked"
        return expect(reply, kind)

    def node(
        self, name: str = "a", size: int = 1 << 20, boot: int = 5, connection: int = 100, segments: int = 1
    ) -> None:
        request = n.RegisterNode(name, boot, 0, "host", f"{name}:1", f"/{name}", [size] * segments)
        self.ask(n.Registered, request, connection=connection)

    def beat(self, name: str = "a", boot: int = 5, connection: int = 100, gone: tuple[int, ...] = (),
             cleaned: tuple[GrantId, ...] = ()) -> n.Beaten:  # fmt: skip
        return self.ask(n.Beaten, n.Beat(name, boot, list(gone), list(cleaned)), connection=connection)

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
        """I5: the twin agrees. I9: objects, grants, quarantine and free space partition each segment exactly."""
        state = self.state
        assert digest(state.catalogue) == digest(self.primary.twin.catalogue)
        assert state.catalogue.count == len(state.catalogue.by_key) == len(state.catalogue.live())
        assert state.quarantine == self.primary.twin.quarantine
        assert state.grants.keys() == self.primary.twin.grants.keys()
        taken: dict[int, list[tuple[int, int]]] = {handle: [] for handle in state.segments}
        live = state.catalogue.live().tolist()
        for handle, offsets, lengths in ranges_of(state, live) if live else []:
            taken[handle] += zip(offsets.tolist(), (offsets + lengths).tolist(), strict=True)
        for grant in state.grants.values():
            for place in grant.ranges:
                gaps = grant.taken.gaps(grant.length)
                taken[place.segment] += [(place.offset + start, place.offset + end) for start, end in gaps]
        for held in state.quarantine.values():
            taken[held.segment] += [(offset, offset + length) for offset, length in held.pieces]
        for handle, allocator in self.primary.allocators.items():
            allocator.check()
            free = [(start, start + size) for start, size in allocator.free_ranges()]
            spans = np.array(sorted(taken[handle] + free))
            assert spans[0, 0] == 0
            assert spans[-1, 1] == state.segments[handle].size_bytes
            assert (spans[1:, 0] == spans[:-1, 1]).all()
