"""Moves bytes between callers and nodes: through mapped memory on the same machine, over TCP to others.

Everything here blocks and may be called from any thread. A segment that the master calls local is read over TCP if
mapping it fails. A node that does not answer is not asked again for a while.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import xxhash

from holdfast.client.arguments import Gathered, Value
from holdfast.client.bytes.failing_nodes import FailingNodes
from holdfast.client.bytes.revocations import OnRevoked, RevocationListener
from holdfast.client.targets import Room
from holdfast.errors import (
    DeadlineExceeded,
    GrantTimedOut,
    HoldfastError,
    ReplyLost,
    TicketRefused,
    TryAgain,
    Uncertain,
    Unreachable,
)
from holdfast.ids import SLOWEST_BYTES_PER_SECOND, GrantId
from holdfast.instant import now_seconds
from holdfast.messages.of_nodes import AttachSegment, HearRevocations
from holdfast.messages.shapes import Attachment, Range, SegmentPlace, Ticket
from holdfast.transport.attach import NodeLink
from holdfast.transport.data_tcp import NO_TICKET, DataConnection, GrantedRange, WantedRange
from holdfast.transport.host import this_host
from holdfast.transport.shared_memory import Mapping, copy_in, copy_in_parts, copy_out_parts, digest_of_parts

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")
_LinkKey: TypeAlias = tuple[str, int]
"""Socket path and boot id: a restarted node is another one."""

CONNECT_SECONDS = 1.0
BAD_SECONDS = 5.0
IDLE_CONNECTIONS = 4
STALLED_SECONDS = 2.0
HEDGE_SECONDS = 0.1
"""A read moves to another replica, if there is one, when a node has been silent for this long. A killed process is
silent while the kernel frees its memory, which it does before it closes the sockets; a stopped one stays silent."""
MAPPED_SECONDS = 0.15
"""The longest that a reader waits for a map: it can get the same bytes over TCP, or from another replica."""
SILENT_SECONDS = 0.25
"""A node counts as failing when it is silent for this long and the request has no other replica to turn to. It is
probed soon after, so that a node which was only slow does not count as failing for long."""
PROBE_SECONDS = 0.3
CHECK_SECONDS = 10.0
"""The timeout for a node to read a whole file from its disk again."""
PARALLEL_FROM = 32 << 20
PARALLEL_WAYS = 4

_NOT_MAPPED: tuple[None, int, None] = (None, 0, None)


def copy_into(mapping: Mapping, offset: int, value: Value, checksum: bool) -> int:
    """Copy the value into mapped memory. Returns the checksum of the copy, or 0 if none is wanted."""
    try:
        if type(value) is Gathered:
            return copy_in_parts(mapping, offset, value.parts, checksum)
        return copy_in(mapping, offset, memoryview(value), checksum)
    except Unreachable:
        # Another thread has learnt that the memory is no longer lent, and has unmapped it.
        raise unmapped() from None


def unmapped() -> GrantTimedOut:
    return GrantTimedOut("the memory that was granted is mapped no more; nothing was stored")


def _patience(size_bytes: int, deadline: float) -> float:
    """The deadline for one node. A stopped node must not use up the caller's: another replica may answer."""
    return min(deadline, now_seconds() + STALLED_SECONDS + size_bytes / SLOWEST_BYTES_PER_SECOND)


def _link_key(place: SegmentPlace) -> _LinkKey:
    return place.socket_path, place.name.boot


class WantedBytes(NamedTuple):
    """Bytes at an offset of a segment, and the ticket to read them with over TCP, if there is one."""

    place: SegmentPlace
    offset: int
    ticket: Ticket | None


class NodeBytes:
    """The maps of local segments and the connections to remote nodes."""

    def __init__(self, shared_memory: bool = True, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.host = this_host() if shared_memory else ""
        self.maps: dict[int, mmap.mmap] = {}
        """Mapped for reading, by segment handle."""
        self.decided: set[int] = set()
        """Segments for which it is decided whether reads go through a map or over TCP."""
        self.wants_tickets = True
        """Some reads go over TCP, or it is not known yet: whoever asks for places asks for tickets too."""
        self._reads_remotely = False
        self._reading: dict[int, Mapping] = {}
        self._writing: dict[int, tuple[Mapping, int, NodeLink]] = {}
        """(map, our writer number there, the node's life line) by segment handle."""
        self._links: dict[_LinkKey, NodeLink] = {}
        self._doomed: dict[NodeLink, set[int]] = {}
        """Links to be closed once no grant is held on these segments."""
        self._bad_until: dict[str, float] = {}
        """Nodes to ask last until then, also those that were silent for a moment while there were other replicas."""
        self.failing = FailingNodes()
        """Nodes that are not asked at all."""
        self._silent: set[str] = set()
        """Socket paths of nodes that did not answer in time."""
        self._idle: dict[str, list[DataConnection]] = {}
        self.history = 0
        """The log id under which the segments were learnt."""
        self._lock = threading.Lock()
        self._attaching = threading.Lock()
        self._revocations: RevocationListener | None = None

    def hear(self, on_revoked: OnRevoked) -> None:
        """Call this with the ids of objects that nodes of this machine report as removed or moved while they may be
        leased; with None if it may be any object."""
        reference = weakref.WeakMethod(on_revoked)
        self._revocations = RevocationListener(reference)
        weakref.finalize(self, self._revocations.close)

    def _listen(self, place: SegmentPlace) -> None:
        if self._revocations is not None:
            request = HearRevocations(place.name, place.attach)
            self._revocations.listen(_link_key(place), place.socket_path, request, MAPPED_SECONDS)

    def is_bad(self, place: SegmentPlace) -> bool:
        """Did its node fail to answer a moment ago?"""
        address = place.data_address
        return address in self.failing or now_seconds() < self._bad_until.get(address, 0.0)

    def mapping(self, segment: int) -> Mapping | None:
        """The map through which this segment is read."""
        return self._reading.get(segment)

    def mapped_views(self) -> dict[int, memoryview]:
        """The memory of all segments that are mapped for reading. Using an unmapped view raises ValueError."""
        return {segment: mapping.view for segment, mapping in list(self._reading.items())}

    def attach_reading(self, places: Iterable[SegmentPlace], deadline: float) -> None:
        """Map the local ones among these for reading, and note the others as remote."""
        for place in places:
            with self._attaching:
                if place.handle not in self.decided:
                    mapping = self._attach(place, False, deadline)
                    if mapping is not None:
                        self._reading[place.handle] = mapping
                        self.maps[place.handle] = mapping.map
                        self._listen(place)
                    else:
                        self._reads_remotely = True
                    self.wants_tickets = self._reads_remotely
                    # A node that did not answer in time is tried again after a while, so nothing is decided yet.
                    if mapping is not None or place.socket_path not in self._silent:
                        self.decided.add(place.handle)

    def attach_writing(self, places: Iterable[SegmentPlace], deadline: float) -> None:
        for place in places:
            with self._attaching:
                if place.handle in self._writing:
                    continue
                mapping = self._attach(place, True, deadline)
                link = self._links.get(_link_key(place))
                # No link: another thread has just seen it end, so there is no node to write to.
                if mapping is not None and link is not None:
                    self._listen(place)
                    self._writing[place.handle] = (mapping, link.writer, link)

    def unattached(self, places: Iterable[SegmentPlace]) -> list[SegmentPlace]:
        """Local segments that could be mapped for writing and are not."""
        now = now_seconds()
        return [
            place
            for place in places
            if self._is_local(place)
            and place.handle not in self._writing
            and now >= self._bad_until.get(place.socket_path, 0.0)
        ]

    def _is_local(self, place: SegmentPlace) -> bool:
        """Can it be mapped? A disk segment never can, and not everybody is given a ticket for it."""
        return bool(self.host) and place.host == self.host and bool(place.socket_path) and place.attach is not None

    def attachments(self) -> list[Attachment]:
        return [Attachment(handle, writer) for handle, (_, writer, _) in list(self._writing.items())]

    def writable(self, piece: Range) -> Mapping | None:
        """The map to write this range through, if we are the writer that it names."""
        mapping, writer, _ = self._writing.get(piece.segment, _NOT_MAPPED)
        return mapping if writer == piece.writer else None

    def ended(self, piece: Range) -> bool:
        """Is the node of this range, which we wrote through a map, known to be dead? Does not block."""
        _, writer, link = self._writing.get(piece.segment, _NOT_MAPPED)
        # No longer mapped: another thread saw the node die, or the master unmounted the segment.
        return link is None or writer != piece.writer or link.ended()

    def lose(self, piece: Range) -> set[int]:
        """Stop writing to every segment of this range's node, whose life line has ended. Returns their handles.

        Takes no lock: a thread that waits for another node may hold it. Readers keep their maps until their leases
        end."""
        _, writer, lost = self._writing.get(piece.segment, _NOT_MAPPED)
        if lost is None or writer != piece.writer:  # Another thread did it, and may have mapped the segment again.
            return {piece.segment}
        handles = {handle for handle, (_, _, link) in list(self._writing.items()) if link is lost}
        for handle in handles:
            self._writing.pop(handle, None)
        for key, link in list(self._links.items()):
            if link is lost:
                self._links.pop(key, None)
        self._doomed[lost] = handles
        return handles

    def _attach(self, place: SegmentPlace, write: bool, deadline: float) -> Mapping | None:
        now = now_seconds()
        if not self._is_local(place) or now < self._bad_until.get(place.socket_path, 0.0):
            return None
        key = _link_key(place)
        link = self._links.get(key)
        # A link is useless after a request that got no reply, so a link that we write through gets more time.
        hurried = not write and (link is None or link.writer == 0)
        deadline = min(deadline, now + (MAPPED_SECONDS if hurried else CONNECT_SECONDS))
        self._silent.discard(place.socket_path)
        try:
            if link is None:
                link = self._links[key] = self._open_link(place.socket_path, deadline)
            return link.attach(AttachSegment(place.name, write, self.history, place.attach), deadline)
        except BaseException as error:
            # A link that we write through must stay open while the memory is mapped.
            if link is not None and link.writer == 0:
                self._links.pop(key, None)
                link.close()
            if not isinstance(error, (HoldfastError, OSError)):
                raise
            # The same kernel, but another container, another user, or a dead node: its bytes come over TCP.
            self._bad_until[place.socket_path] = now_seconds() + BAD_SECONDS
            if isinstance(error, DeadlineExceeded):
                self._silent.add(place.socket_path)
            return None

    def _open_link(self, socket_path: str, deadline: float) -> NodeLink:
        return NodeLink.open(socket_path, deadline)

    def forget(self, gone: set[int], kept: Iterable[SegmentPlace], busy: set[int]) -> None:
        """Forget these segments, which are no longer mounted. Where a copy may still run, `sweep` frees the memory."""
        keys = {_link_key(place) for place in kept}
        with self._attaching:
            for handle in gone:
                self.maps.pop(handle, None)
                # Not closed here: a reader may be using it. Its last user unmaps it.
                self._reading.pop(handle, None)
                self.decided.discard(handle)
            for key in [key for key in self._links if key not in keys]:
                self._doomed[self._links.pop(key)] = gone & self._writing.keys()
            for handle in gone:
                self._writing.pop(handle, None)
        self.sweep(busy)

    def enter_history(self, history: int) -> None:
        """Forget everything learnt under another history, under the lock that attaching also takes. A copy that still
        runs keeps its map, and with it the link that tells the node that its writer lives."""
        with self._attaching:
            self.history = history
            self.maps.clear()
            self._reading.clear()
            self.decided.clear()
            self._writing.clear()
            links = [*self._links.values(), *self._doomed]
            self._links.clear()
            self._doomed.clear()
            for link in links:
                link.close()

    def reconsider(self) -> None:
        """Allow another try to map what could not be mapped: the cluster has changed."""
        self.decided.intersection_update(list(self.maps))

    def sweep(self, busy: set[int]) -> None:
        """Close the links of nodes that are gone, once no grant is held in their memory."""
        if not self._doomed:
            return
        with self._attaching:
            for link, handles in list(self._doomed.items()):
                if not handles & busy:
                    del self._doomed[link]
                    link.close()

    def read(self, wanted: WantedBytes, room: Room, checksum: bool, deadline: float, hurried: bool = False) -> int:
        """Fill the room with bytes of the object. Returns their checksum in the order of the room, or 0 if none is
        wanted. `hurried`: DeadlineExceeded as soon as the node is silent, because there are others to ask."""
        place, offset, ticket = wanted
        mapping = self._reading.get(place.handle)
        if mapping is not None:
            return copy_out_parts(mapping, offset, room, checksum)
        if len(room) > 1:
            parts = [(WantedBytes(place, offset + start, ticket), view) for start, view in room]
            self.read_many(place, parts, deadline, hurried)
            return digest_of_parts(room) if checksum else 0
        [(start, target)] = room
        return self._read_one(place, self._over_tcp(wanted, start, target), checksum, deadline, hurried)

    def _over_tcp(self, wanted: WantedBytes, start: int, target: memoryview) -> WantedRange:
        """A part of these bytes, to be read over TCP."""
        if wanted.ticket is None:
            self.wants_tickets = self._reads_remotely = True
            raise TicketRefused("these bytes were located without a ticket; nothing was read. Locate them again")
        return WantedRange(wanted.place.name, wanted.ticket, wanted.offset + start, target)

    def _read_one(
        self, place: SegmentPlace, wanted: WantedRange, checksum: bool, deadline: float, hurried: bool
    ) -> int:
        target = wanted.target
        began = now_seconds()
        deadline = _patience(target.nbytes, deadline)
        try:
            if target.nbytes >= PARALLEL_FROM:
                self._read_parallel(place, wanted, deadline, hurried)
                return (xxhash.xxh3_64_intdigest(target) or 1) if checksum else 0
            digest = xxhash.xxh3_64() if checksum else None
            self._with_connection(
                place, deadline, hurried, lambda link: link.read_into(wanted, deadline, digest), digest
            )
            return (digest.intdigest() or 1) if digest is not None else 0
        except (TryAgain, Uncertain) as error:
            self._failed(place, error, hurried, began)
            raise

    def _failed(self, place: SegmentPlace, error: HoldfastError, hurried: bool, began: float) -> None:
        """Note a failed request. A node that refused has answered, and one that was hurried or given no time may be
        about to: neither counts as failing."""
        now = now_seconds()
        self._bad_until[place.data_address] = now + BAD_SECONDS
        silent = isinstance(error, DeadlineExceeded) and not hurried and now - began >= SILENT_SECONDS
        if silent or isinstance(error, Unreachable | ReplyLost):
            self.failing.failed(place, now)

    def probe(self, place: SegmentPlace) -> None:
        """Ask a failing node for something without a ticket: once it refuses, it no longer counts as failing."""
        address, deadline = place.data_address, now_seconds() + PROBE_SECONDS
        try:
            connection = self._dial(address, deadline)
            try:
                nothing = WantedRange(place.name, NO_TICKET, 0, memoryview(bytearray(1)))
                connection.read_into(nothing, deadline)
            finally:
                self._give_back(address, connection)
        except (Unreachable, DeadlineExceeded, ReplyLost):
            self.failing.failed(place, now_seconds())
            return
        except HoldfastError:
            pass  # A refusal is an answer.
        self._bad_until.pop(address, None)
        self.failing.answered(address)

    def check_file(self, wanted: WantedBytes, deadline: float) -> None:
        """Have the node check its own file, from which wrong bytes came. ReplicaLost if it finds the same."""
        place, offset, ticket = wanted
        if ticket is None:
            raise TicketRefused("this file was located without a ticket; it was not checked")
        deadline = min(deadline, now_seconds() + CHECK_SECONDS)
        self._with_connection(
            place, deadline, False, lambda link: link.check_file(place.name, ticket, offset, deadline)
        )

    def _read_parallel(self, place: SegmentPlace, wanted: WantedRange, deadline: float, hurried: bool) -> None:
        from concurrent.futures import ThreadPoolExecutor

        size = wanted.target.nbytes
        step = -(-size // (PARALLEL_WAYS * 4096)) * 4096

        def piece(start: int) -> None:
            part = wanted._replace(offset=wanted.offset + start, target=wanted.target[start : start + step])
            self._with_connection(place, deadline, hurried, lambda link: link.read_into(part, deadline))

        with ThreadPoolExecutor(PARALLEL_WAYS, "holdfast-read") as threads:
            for done in [threads.submit(piece, start) for start in range(0, size, step)]:
                done.result()

    def read_many(
        self,
        place: SegmentPlace,
        wanted: Sequence[tuple[WantedBytes, memoryview]],
        deadline: float,
        hurried: bool = False,
    ) -> None:
        """Read ranges of one node over one connection. `hurried` as for `read`."""
        ranges = [self._over_tcp(each, 0, target) for each, target in wanted]
        began = now_seconds()
        deadline = _patience(sum(target.nbytes for _, target in wanted), deadline)
        try:
            self._with_connection(place, deadline, hurried, lambda link: link.read_many(ranges, deadline))
        except (TryAgain, Uncertain) as error:
            self._failed(place, error, hurried, began)
            raise

    def read_back(
        self, place: SegmentPlace, granted: GrantedRange, offset: int, target: memoryview, deadline: float
    ) -> None:
        """Read bytes that were written at `offset` in a granted range, which no object has yet."""
        deadline = _patience(target.nbytes, deadline)
        self._with_connection(place, deadline, False, lambda link: link.read_back(granted, offset, target, deadline))

    def write(
        self,
        place: SegmentPlace,
        grant: GrantId,
        piece: Range,
        length: int,
        values: Sequence[tuple[int, Sequence[memoryview]]],
        checksum: bool,
        deadline: float,
    ) -> list[int]:
        """Write these (offset in the grant, parts of a value) over TCP, in one attempt; their checksums, or zeros."""
        deadline = _patience(sum(source.nbytes for _, parts in values for source in parts), deadline)
        digests = [xxhash.xxh3_64() if checksum else None for _ in values]
        sources = [
            (offset + start, source, digest)
            for (offset, parts), digest in zip(values, digests, strict=True)
            for start, source in zip(accumulate(map(len, parts), initial=0), parts, strict=False)
        ]
        began = now_seconds()
        try:
            connection = self._borrow(place.data_address, min(deadline, began + CONNECT_SECONDS))
        except (TryAgain, Uncertain) as error:
            self._failed(place, error, hurried=False, began=began)
            raise
        connection.silence_seconds = math.inf
        try:
            connection.write_many(GrantedRange(place.name, grant, piece.offset, length, piece.mac), sources, deadline)
        except DeadlineExceeded as error:
            # A connection that had ended proves nothing, as it may have been idle for long; silence does.
            self._failed(place, error, hurried=False, began=began)
            raise
        finally:
            self._give_back(place.data_address, connection)
        return [(digest.intdigest() or 1) if digest is not None else 0 for digest in digests]

    def _with_connection(
        self,
        place: SegmentPlace,
        deadline: float,
        hurried: bool,
        use: Callable[[DataConnection], T],
        digest: xxhash.xxh3_64 | None = None,
    ) -> T:
        for fresh in (False, True):
            dialled_by = now_seconds() + (HEDGE_SECONDS if hurried else CONNECT_SECONDS)
            connection = self._borrow(place.data_address, min(deadline, dialled_by), fresh)
            connection.silence_seconds = HEDGE_SECONDS if hurried else math.inf
            try:
                return use(connection)
            except Unreachable:
                # An idle connection may have ended long ago, which says nothing about the node.
                if fresh:
                    raise
                if digest is not None:
                    digest.reset()
            finally:
                self._give_back(place.data_address, connection)
        raise AssertionError("the second attempt returns or raises")

    def _borrow(self, address: str, deadline: float, fresh: bool = False) -> DataConnection:
        with self._lock:
            idle = self._idle.get(address)
            if idle and not fresh:
                return idle.pop()
        return self._dial(address, deadline)

    def _dial(self, address: str, deadline: float) -> DataConnection:
        return DataConnection.open(address, deadline, self._tls)

    def _give_back(self, address: str, connection: DataConnection) -> None:
        if connection.closed:
            return
        with self._lock:
            idle = self._idle.setdefault(address, [])
            if len(idle) < IDLE_CONNECTIONS:
                idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Unmap, then close what tells the nodes that this writer is gone."""
        with self._attaching, self._lock:
            links = [*self._links.values(), *self._doomed]
            readers = list(self._reading.values())
            idle = [connection for each in self._idle.values() for connection in each]
            self._reading, self._writing, self._links, self._doomed, self._idle = {}, {}, {}, {}, {}
            self.maps.clear()
            self.decided.clear()
        if self._revocations is not None:
            self._revocations.close()
        for mapping in readers:
            mapping.close()
        for link in links:
            link.close()
        for connection in idle:
            connection.close()

    def leave_to_parent(self) -> None:
        """In a forked child, leave the connections to the parent. Takes no lock: its holder may not exist here."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        if self._revocations is not None:
            self._revocations.leave_to_parent()
