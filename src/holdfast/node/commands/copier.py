"""Copies objects to this node on the primary's order: from other nodes, from its own memory to its disk and back.

A generator yields blocking work and messages to the master, so that threads and the simulator run the same logic. An
object counts only if its bytes have the right checksum; the grant is checked before every piece, and nothing is written
to it once it is refused (I11). Whatever the outcome, it is reported to the master, and the grant ends.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import structlog
import xxhash

from holdfast.errors import BadRequest, GrantRefused, HoldfastError, ReplicaLost, TryAgain
from holdfast.ids import SLOWEST_BYTES_PER_SECOND, GrantId, ObjectId, SegmentName
from holdfast.instant import Clock, now_seconds
from holdfast.messages.commands import CopyObjects, Source
from holdfast.messages.of_nodes import AddReplicas
from holdfast.messages.requests import Done
from holdfast.messages.rows import CopiedRow, CopyRow, TicketRow, pack_ids
from holdfast.messages.shapes import Ticket
from holdfast.node.disk.files import forget_unknown
from holdfast.node.disk.tier import DiskTier
from holdfast.node.memory.lent_memory import Lending
from holdfast.node.primary_requests import request
from holdfast.operations.effects import Operation, Sleep, Work
from holdfast.transport.data_tcp import NO_TICKET, DataConnection, WantedRange

PIECE_BYTES = 4 << 20
"""Bytes copied between two checks that the grant is still good."""
BURST_SECONDS = 0.25
"""Copies may be this far ahead of their rate before they pause."""
CONNECT_SECONDS = 2.0
STALLED_SECONDS = 5.0
MOST_CONNECTIONS = 64

log = structlog.get_logger("holdfast.node")


class Item(NamedTuple):
    """One object of an order."""

    oid: ObjectId
    offset: int
    size: int
    checksum: int
    source: Source
    source_offset: int


class Bytes(Protocol):
    """Access to bytes in memory: this node's and other nodes'."""

    def lends(self, name: SegmentName) -> bool: ...

    def range_of(self, name: SegmentName, offset: int, length: int) -> memoryview: ...

    def fetch(self, address: str, ranges: Sequence[WantedRange]) -> None:
        """Fill the targets with bytes of another node."""

    def check_file(self, address: str, name: SegmentName, ticket: Ticket, offset: int) -> None:
        """Have the node that gave wrong bytes check the file there itself, if it is on its disk."""


class PeerBytes:
    """The `Bytes` of a real node: its memory, and connections to other nodes. For one thread."""

    def __init__(self, lending: Lending) -> None:
        self._lending = lending
        self._connections: dict[str, DataConnection] = {}

    def lends(self, name: SegmentName) -> bool:
        return self._lending.lends(name)

    def range_of(self, name: SegmentName, offset: int, length: int) -> memoryview:
        return self._lending.range_of(name, offset, length)

    def fetch(self, address: str, ranges: Sequence[WantedRange]) -> None:
        size = sum(len(each.target) for each in ranges)
        deadline = now_seconds() + STALLED_SECONDS + size / SLOWEST_BYTES_PER_SECOND
        connection = self._connections.pop(address, None)
        if connection is None or connection.closed:
            connection = DataConnection.open(address, min(deadline, now_seconds() + CONNECT_SECONDS))
        try:
            connection.read_many(ranges, deadline)
        finally:
            if not connection.closed:
                self._keep(address, connection)

    def check_file(self, address: str, name: SegmentName, ticket: Ticket, offset: int) -> None:
        """Have another node check a file of its disk, from which wrong bytes came."""
        deadline = now_seconds() + STALLED_SECONDS
        with contextlib.suppress(HoldfastError):  # That node reports damage itself; nothing here depends on it.
            connection = DataConnection.open(address, min(deadline, now_seconds() + CONNECT_SECONDS))
            with contextlib.closing(connection):
                connection.check_file(name, ticket, offset, deadline)

    def _keep(self, address: str, connection: DataConnection) -> None:
        self._connections[address] = connection
        while len(self._connections) > MOST_CONNECTIONS:
            oldest = next(iter(self._connections))
            self._connections.pop(oldest).close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


class Gate(Protocol):
    """Decides which grants may write to this node's memory."""

    def begin_copy(self, grant: GrantId) -> None: ...
    def fence(self, segment: SegmentName, offset: int, length: int, issued: int) -> None:
        """Refuse earlier proofs for this range. TryAgain if bytes still move there with one."""

    def end_copy(self, grant: GrantId) -> None: ...
    def is_refused(self, grant: GrantId) -> bool: ...


class Pace:
    """The rate of all copies of a node; 0: no limit. It computes how long to wait, and never waits."""

    def __init__(self, bytes_per_second: int = 0) -> None:
        self.bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._paid_until = 0.0

    def pause_after(self, size_bytes: int, now: float) -> float:
        """Seconds to wait after copying these bytes, so that the mean stays below the rate."""
        rate = self.bytes_per_second
        if not rate:
            return 0.0
        with self._lock:
            self._paid_until = max(self._paid_until, now) + size_bytes / rate
            return max(0.0, self._paid_until - now - BURST_SECONDS)


@dataclass(slots=True)
class Copier:
    node: str
    bytes: Bytes
    gate: Gate
    disk: DiskTier | None
    pace: Pace
    clock: Clock
    copied_bytes: int = 0
    copied_objects: int = 0
    failed_objects: int = 0

    def carry_out(self, order: CopyObjects) -> Operation[int]:
        """Carry out an order. Returns the number of replicas that it added."""
        items = items_of(order)
        self.pace.bytes_per_second = order.bytes_per_second
        done: list[tuple[Item, int]] = []
        try:
            self.gate.begin_copy(order.grant)
        except GrantRefused as error:
            log.info("a copy was called off before it began", reason=str(error))
            return 0
        try:
            fenced = not order.issued or (yield Work(partial(self._fenced, order)))
            for some in _pieces(items) if fenced else ():
                if self.gate.is_refused(order.grant):
                    break
                done += yield Work(_Piece(self, order, some))
                size = sum(item.size for item in some)
                self.copied_bytes += size
                if pause := self.pace.pause_after(size, self.clock()):
                    yield Sleep(pause)
        finally:
            self.gate.end_copy(order.grant)
        return (yield from self._say(order, items, done))

    def _fenced(self, order: CopyObjects) -> bool:
        """Have proofs for the range refused that were given before it was granted (I20)."""
        try:
            self.gate.fence(order.segment, order.offset, order.length, order.issued)
        except TryAgain as error:
            log.warning("objects could not be copied here", segment=str(order.segment), reason=str(error))
            return False
        return True

    def _say(self, order: CopyObjects, items: list[Item], done: list[tuple[Item, int]]) -> Operation[int]:
        copied = {item.oid for item, _ in done}
        failed = [item.oid for item in items if item.oid not in copied]
        self.copied_objects += len(copied)
        self.failed_objects += len(failed)
        rows = CopiedRow.pack_rows(
            (item.oid, item.offset, item.source.handle, item.source_offset, checksum) for item, checksum in done
        )
        try:
            word = AddReplicas(self.node, order.grant, rows, pack_ids(failed))
            added = (yield from request(word, Done)).count
        finally:
            # Also without a reply: otherwise no audit would ever ask about these files.
            if order.to_disk and self.disk is not None:
                self.disk.answered([order.offset + item.offset for item in items])
        if order.to_disk and self.disk is not None and added != len(done):
            # Some of these files may belong to no object.
            files = [(item.oid, order.offset + item.offset) for item, _ in done]
            yield from forget_unknown(self.disk, files)
        return added

    def copy(self, order: CopyObjects, items: list[Item]) -> list[tuple[Item, int]]:
        """Copy these. Returns those that were copied, with the checksums of their bytes. Blocks."""
        by_source: dict[SegmentName, list[Item]] = {}
        for item in items:
            by_source.setdefault(item.source.name, []).append(item)
        done: list[tuple[Item, int]] = []
        for some in by_source.values():
            targets, came = self._filled(order, some)
            for item, target, complete in zip(some, targets, came, strict=True):
                digest = xxhash.xxh3_64_intdigest(target) or 1
                # Without a checksum, only an error-free read counts.
                right = item.checksum == digest if item.checksum else complete
                if not right:
                    log.warning("an object was not copied", source=str(item.source.name), bytes_came=complete)
                    if complete:
                        self._look_at_source(item)
                elif self._kept(order, item, target, digest):
                    done.append((item, digest))
        return done

    def _look_at_source(self, item: Item) -> None:
        """Have the node that gave wrong bytes check its file. If the file is damaged, that node reports it (I18)."""
        name = item.source.name
        disk = self._own_disk(name)
        if disk is not None:
            with contextlib.suppress(HoldfastError):  # The disk reports damage itself.
                disk.check(item.source_offset)
        elif not self.bytes.lends(name):
            [wanted] = _wanted([item], [memoryview(b"")])
            self.bytes.check_file(item.source.data_address, name, wanted.ticket, item.source_offset)

    def _own_disk(self, name: SegmentName) -> DiskTier | None:
        return self.disk if self.disk is not None and self.disk.is_mine(name) else None

    def _filled(self, order: CopyObjects, items: list[Item]) -> tuple[list[memoryview], list[bool]]:
        """The bytes of these objects, all of one source, in their places; and which of them came."""
        source = items[0].source
        disk = self._own_disk(source.name)
        if order.to_disk and disk is None and self.bytes.lends(source.name):
            # Written to disk straight from memory.
            here = [self.bytes.range_of(source.name, item.source_offset, item.size) for item in items]
            return here, [True] * len(items)
        targets = [self._room(order, item) for item in items]
        if disk is not None:
            return targets, [_came(disk, item, target) for item, target in zip(items, targets, strict=True)]
        try:
            if self.bytes.lends(source.name):
                for item, target in zip(items, targets, strict=True):
                    target[:] = self.bytes.range_of(source.name, item.source_offset, item.size)
            else:
                self.bytes.fetch(source.data_address, _wanted(items, targets))
        except HoldfastError as error:
            log.warning("a source of copies fails", source=str(source.name), reason=str(error))
            return targets, [False] * len(items)
        return targets, [True] * len(items)

    def _room(self, order: CopyObjects, item: Item) -> memoryview:
        if order.to_disk:
            return memoryview(bytearray(item.size))
        return self.bytes.range_of(order.segment, order.offset + item.offset, item.size)

    def _kept(self, order: CopyObjects, item: Item, data: memoryview, digest: int) -> bool:
        if not order.to_disk:
            return True
        if self.disk is None or not self.disk.is_mine(order.segment):
            return False
        try:
            self.disk.write(item.oid, order.offset + item.offset, data, digest)
        except ReplicaLost:  # The disk is in trouble, and has reported it; or the place is not ready for a file.
            return False
        return True


def _wanted(items: list[Item], targets: list[memoryview]) -> list[WantedRange]:
    """Objects of one source, which is another node's, with the tickets that the order has for them."""
    source = items[0].source
    tickets = {place: ticket for ticket in source.tickets for place in TicketRow.iter_unpack(ticket.ranges)}
    return [
        WantedRange(source.name, tickets.get((item.source_offset, item.size), NO_TICKET), item.source_offset, room)
        for item, room in zip(items, targets, strict=True)
    ]


def _came(disk: DiskTier, item: Item, target: memoryview) -> bool:
    """Read one object from the node's own disk; a lost one does not affect others."""
    try:
        disk.read_into(item.source_offset, target)
    except HoldfastError as error:
        log.warning("an object cannot be read from the disk", offset=item.source_offset, reason=str(error))
        return False
    return True


@dataclass(slots=True)
class _Piece:
    """A part of an order, as a callable."""

    copier: Copier
    order: CopyObjects
    items: list[Item]

    def __call__(self) -> list[tuple[Item, int]]:
        try:
            return self.copier.copy(self.order, self.items)
        except HoldfastError as error:  # Its memory is no longer lent, or never was.
            log.warning("objects could not be copied here", segment=str(self.order.segment), reason=str(error))
            return []


def items_of(order: CopyObjects) -> list[Item]:
    """The objects of an order. BadRequest unless each lies inside the granted range."""
    if not CopyRow.is_whole(order.rows):
        raise BadRequest("the rows of a copy are not whole; nothing was copied")
    items = []
    for oid, offset, size, checksum, index, source_offset in CopyRow.iter_unpack(order.rows):
        if index >= len(order.sources) or offset + size > order.length:
            raise BadRequest("an object to be copied has no source or leaves the granted range; nothing was copied")
        items.append(Item(oid, offset, size, checksum, order.sources[index], source_offset))
    return items


def _pieces(items: list[Item]) -> Iterator[list[Item]]:
    some: list[Item] = []
    size = 0
    for item in items:
        if some and size + item.size > PIECE_BYTES:
            yield some
            some, size = [], 0
        some.append(item)
        size += item.size
    if some:
        yield some
