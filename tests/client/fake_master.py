"""A master that keeps a dict: enough of one for a client, and it does what a test asks of it.

The memory is a real node's (tests.node.rig.Served); grants are cut from the front of a segment and never come back.
"""

from __future__ import annotations

import enum
import re
import struct
import threading
from collections.abc import Callable, Iterator

from holdfast.client.state.grants import lay_out
from holdfast.errors import HoldfastError, NoRoom
from holdfast.ids import MOST_TICKET_RANGES, GrantId, SegmentName
from holdfast.messages import requests as m
from holdfast.messages.shapes import Message, Range, SegmentPlace, Ticket
from holdfast.transport.host import this_host
from holdfast.wire.codec import failed
from tests.node.rig import SIZE, Served
from tests.ports import free_ports
from tests.scripted_server import HangUp, ScriptedServer
from tests.tickets import attach_ticket, read_ticket


def closed_port() -> str:
    """An address at which nobody listens."""
    return f"127.0.0.1:{free_ports(1)[0]}"


class Act(enum.Enum):
    USUAL = "answer as usual"
    DROP = "close the connection instead of doing it"
    DO_AND_DROP = "do it, then close the connection instead of answering"
    SILENCE = "never answer"


class FakeMaster(ScriptedServer):
    """`judge` looks at every request first and says what is to be done with it, or gives another answer."""

    def __init__(self, node: Served | None, local: bool = True) -> None:
        self.node = node
        self.log_id = 7
        self.lease_ttl_ms = 10_000
        self.grant_timeout_ms = 30_000
        self.grants_ahead = True
        self.host = this_host() if local else "another machine"
        self.judge: Callable[[Message], Act | Message] = lambda request: Act.USUAL
        self.objects: dict[str, tuple[int, int, int, int, int]] = {}
        """key -> (id, segment, offset, size, checksum)"""
        self.others: dict[str, list[tuple[int, int]]] = {}
        self.leased: set[str] = set()
        self.unleased: set[str] = set()
        """Keys whose objects get no lease: their tenant has leased its share."""
        self.grants: dict[GrantId, tuple[int, int, m.Granted]] = {}
        self.commits: dict[tuple[GrantId, int], int] = {}
        self.returned: list[tuple[GrantId, bool]] = []
        self.next_id = 1
        self.ends = {1: 0, 2: 0}
        self.topology = 1
        self.socket_path = "" if node is None else node.path
        self.pins: dict[str, str] = {}
        """By key: hard, soft or none."""
        self.dead: set[int] = set()
        """Segments whose node does not answer."""
        self.elsewhere: dict[int, str] = {}
        """Segments whose bytes are said to be at this address."""
        self._lock = threading.Lock()
        super().__init__()

    def respond(self, request: Message) -> Message | None:
        with self._lock:
            self.requests.append(request)
            verdict = self.judge(request)
            if verdict is Act.DROP:
                raise HangUp
            if verdict is Act.SILENCE:
                return None
            try:
                reply = verdict if isinstance(verdict, Message) else self.answer(request)
            except HoldfastError as error:
                reply = failed(error)
        if verdict is Act.DO_AND_DROP:
            raise HangUp
        return reply

    def answer(self, request: Message) -> Message:
        match request:
            case m.Hello():
                return m.Welcome(
                    self.log_id, 1, "fake", self.lease_ttl_ms, self.grant_timeout_ms, 1 << 22, 1 << 18, self.topology
                )
            case m.ListSegments():
                return m.SegmentList(self.topology, self.segments())
            case m.Exists(keys):
                return m.Presence(bytes(key in self.objects for key in keys))
            case m.Locate(keys, tickets):
                return self._locate(keys, tickets)
            case m.RenewLeases(rows):
                places = {row[:3] for row in self.objects.values()}
                ttl_ms = 0 if self.unleased else self.lease_ttl_ms
                return m.Presence(bytes(row in places for row in struct.iter_unpack("<3Q", rows)), ttl_ms)
            case m.GrantRanges():
                return self._grant(request)
            case m.CommitPuts():
                return self._commit(request)
            case m.ReturnGrants(grants, settled):
                self.returned += [(GrantId(*grant), settled) for grant in grants]
                return m.Done(len(grants))
            case m.ExtendGrants(grants):
                return m.Done(len(grants))
        return self._answer_about_keys(request)

    def _answer_about_keys(self, request: Message) -> Message:
        match request:
            case m.Remove([key], _, force):
                if key in self.leased and not force:
                    return m.Removed(0, leased=1, lease_left_ms=1234)
                return m.Removed(int(self.objects.pop(key, None) is not None))
            case m.RemoveMatching(pattern, _, cursor, _):
                return self._remove_matching(pattern, cursor)
            case m.ChangePins(keys, soft_pin, hard_pin):
                found = [key in self.objects for key in keys]
                kind = "hard" if hard_pin else "soft" if soft_pin else ""
                self.pins |= {key: kind for key, there in zip(keys, found, strict=True) if there}
                return m.Presence(bytes(found))
            case m.ListKeys(prefix, cursor):
                keys = sorted(self.objects)
                page = keys[cursor : cursor + 2]
                return m.KeyList(
                    [key for key in page if key.startswith(prefix)], (cursor + 2) % (len(keys) // 2 * 2 + 2)
                )
            case m.Stat(keys):
                return m.Stats([self._stat(key) for key in keys])
            case m.Explain(keys):
                return m.Explanations([self._stat(key) for key in keys], [["because"] for _ in keys])
            case m.ListNodes():
                return m.NodeList([])
        raise HoldfastError(f"the fake does not know {request!r}")

    def segments(self) -> list[SegmentPlace]:
        if self.node is None:
            return []
        return [self._place(handle) for handle in (1, 2)]

    def _place(self, handle: int) -> SegmentPlace:
        assert self.node is not None
        if handle in self.dead:
            return SegmentPlace(handle, self.segment_name(handle), SIZE, closed_port(), "", "a dead machine")
        address = self.elsewhere.get(handle, self.node.data.address)
        name = self.segment_name(handle)
        ticket = attach_ticket(self.node.tickets.key, name)
        return SegmentPlace(handle, name, SIZE, address, self.socket_path, self.host, attach=ticket)

    def segment_name(self, handle: int) -> SegmentName:
        assert self.node is not None
        return self.node.name(handle - 1)

    def _locate(self, keys: list[str], with_tickets: bool) -> Message:
        rows = b"".join(struct.pack("<5Q", *self.objects.get(key, (0,) * 5)) for key in keys)
        others = [(index, *place) for index, key in enumerate(keys) for place in self.others.get(key, ())]
        tickets = self._tickets(keys) if with_tickets else []
        if not self.unleased:
            return m.Located(rows, self.lease_ttl_ms, self.topology, others, tickets)
        leased = bytes(key not in self.unleased for key in keys) if len(keys) > 1 else b""
        ttl_ms = 0 if leased or keys[0] in self.unleased else self.lease_ttl_ms
        leased_ms = self.lease_ttl_ms if leased else 0
        return m.Located(rows, ttl_ms, self.topology, others, tickets, leased, leased_ms)

    def _tickets(self, keys: list[str]) -> list[Ticket]:
        """One for each 64 replicas of a segment, as a master gives them."""
        assert self.node is not None
        ranges: dict[int, list[tuple[int, int]]] = {}
        for key in keys:
            _, segment, start, size, _ = self.objects.get(key, (0,) * 5)
            for handle, offset in [(segment, start), *self.others.get(key, ())] if segment else []:
                ranges.setdefault(handle, []).append((offset, size))
        return [
            # Other segments are of no node here, and nobody reads from them.
            read_ticket(
                self.node.tickets.key,
                self.segment_name(handle if handle in (1, 2) else 1),
                *some[start : start + MOST_TICKET_RANGES],
                handle=handle,
            )
            for handle, some in ranges.items()
            for start in range(0, len(some), MOST_TICKET_RANGES)
        ]

    def _grant(self, request: m.GrantRanges) -> Message:
        self.returned += [(GrantId(*grant), True) for grant in request.finished]
        if request.grant in self.grants:
            return self.grants[request.grant][2]
        sizes = [size for (size,) in struct.iter_unpack("<Q", request.sizes)]
        taken = b""
        if request.keys:
            taken = bytes(key in self.objects and not request.upsert for key in request.keys)
            sizes = [size for size, is_taken in zip(sizes, taken, strict=True) if not is_taken]
        _, length = lay_out(sizes)
        if not length:
            return m.Granted(0, [], self.topology, self.grant_timeout_ms, taken)
        rank = {name: number for number, name in enumerate(request.prefer)}
        handles = sorted((1, 2), key=lambda handle: rank.get(str(self.segment_name(handle)), len(rank)))
        ranges = [self._range(handle, length, request) for handle in handles[: request.replicas]]
        granted = m.Granted(length, ranges, self.topology, self.grant_timeout_ms, taken)
        self.grants[request.grant] = (ranges[0].segment, ranges[0].offset, granted)
        return granted

    def _range(self, handle: int, length: int, request: m.GrantRanges) -> Range:
        offset = -(-self.ends[handle] // 4096) * 4096
        if offset + length > SIZE:
            raise NoRoom("the fake is full")
        self.ends[handle] = offset + length
        writer = {each.segment: each.writer for each in request.attached}.get(handle, 0)
        assert self.node is not None
        return Range(handle, offset, writer, self.node.mac(GrantId(*request.grant), offset, length, handle - 1))

    def _commit(self, request: m.CommitPuts) -> Message:
        self.returned += [(GrantId(*grant), True) for grant in request.finished]
        segment, start, granted = self.grants[request.grant]
        stored = bytearray()
        for key, (offset, size, checksum) in zip(request.keys, struct.iter_unpack("<3Q", request.rows), strict=True):
            if (request.grant, offset) in self.commits:
                stored.append(1)
            elif key in self.objects and not request.upsert:
                stored.append(0)
            else:
                self.objects[key] = (self.next_id, segment, start + offset, size, checksum)
                self.others[key] = [(each.segment, each.offset + offset) for each in granted.ranges[1:]]
                self.commits[request.grant, offset] = self.next_id
                self.next_id += 1
                stored.append(1)
        ahead = None
        if request.ahead is not None and self.grants_ahead and any(stored):
            ahead = self._grant(request.ahead)
            assert isinstance(ahead, m.Granted)
        return m.Committed(bytes(stored), ahead)

    def _remove_matching(self, pattern: str, cursor: int) -> Message:
        # Two calls for everything: the first half of the keys, then the rest.
        keys = [key for key in self.objects if re.search(pattern, key) and key not in self.leased]
        some = keys if cursor else keys[: len(keys) // 2]
        for key in some:
            del self.objects[key]
        return m.Removed(len(some), cursor=0 if cursor else 5)

    def _stat(self, key: str) -> m.ObjectStat | None:
        if key not in self.objects:
            return None
        id_, segment, offset, size, checksum = self.objects[key]
        return m.ObjectStat(
            key, id_, size, checksum, 0, 0, 0, False, [m.Replica("MEMORY", "n1", segment, offset, size)]
        )


def first(kind: type[Message], *verdicts: Act | Message) -> Callable[[Message], Act | Message]:
    """The first requests of a kind are judged so; later ones as usual."""
    left: Iterator[Act | Message] = iter(verdicts)
    return lambda request: next(left, Act.USUAL) if isinstance(request, kind) else Act.USUAL
