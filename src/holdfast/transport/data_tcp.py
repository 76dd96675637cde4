"""Bytes to and from a node of another machine, over one blocking TCP connection.

Received bytes go straight into the caller's buffer, and sent ones straight out of it. The kernel enforces the timeouts:
the socket blocks with a receive and a send timeout, which are set again only when the deadline is nearer than they are,
so that a call costs no extra poll.
"""

from __future__ import annotations

import math
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import xxhash

from holdfast.addresses import split_address
from holdfast.errors import BadRequest, DeadlineExceeded, HoldfastError, TicketRefused, Unreachable, from_code
from holdfast.ids import MOST_TICKET_RANGES, SMALL_ALIGN, GrantId, SegmentName
from holdfast.instant import now_seconds
from holdfast.messages.of_nodes import CheckFile, FileSound, ReadBack, ReadRanges, Sending, WriteRange, Written
from holdfast.messages.requests import Failed
from holdfast.messages.rows import TicketRow
from holdfast.messages.shapes import Message, Ticket
from holdfast.transport.bulk_copy import SHARED_FROM, SharedHash
from holdfast.transport.tls import Stream, dialing, dialled
from holdfast.wire.codec import HEAD, HEAD_BYTES, PREAMBLE, decode_data_reply, encode, expect, frame

if TYPE_CHECKING:
    import ssl

TOGETHER_BELOW = 16 << 10
"""Smaller values are written and read together: a message for each takes longer than copying it (ADR 76)."""
CHUNK = 256 << 10
"""Bytes received at a time, then hashed while they are in the CPU cache."""
MAX_REPLY_BYTES = 64 << 10
WINDOW = 64
"""Ranges asked for, or written, before their replies are received. Those requests, of at most 10 KB together, and the
replies to writes fit into the socket's buffers: if they filled them, both sides could wait for each other."""
LONGEST_ARMED_SECONDS = 10.0
LAST_WORD_SECONDS = 0.5


Source: TypeAlias = tuple[int, memoryview, xxhash.xxh3_64 | None]
"""Bytes to write: at which offset of the grant, and what is to digest them."""
NO_TICKET = Ticket(0, 0, 0, b"", b"")
"""For who has none: every node refuses it."""


class GrantedRange(NamedTuple):
    """A range of a segment that a client was granted, and the MAC by which the node knows it."""

    segment: SegmentName
    grant: GrantId
    offset: int
    length: int
    mac: bytes


class WantedRange(NamedTuple):
    """Bytes to read, the ticket that allows it, and where they go."""

    segment: SegmentName
    ticket: Ticket
    offset: int
    target: memoryview


class DataConnection:
    """One connection, for one caller at a time. `closed` after any error but a read that the node refused."""

    __slots__ = ("_address", "_armed", "_buffer", "_end", "_socket", "_start", "closed", "silence_seconds")

    def __init__(self, connected: Stream, address: str) -> None:
        self._socket = connected
        self._address = address
        self._armed = 0.0
        self._buffer = memoryview(bytearray(MAX_REPLY_BYTES))
        self._start = 0
        self._end = 0
        self.closed = False
        self.silence_seconds = math.inf
        """A node that sends nothing for this long while bytes are expected is given up before the deadline."""

    @classmethod
    def open(cls, address: str, deadline: float, tls: ssl.SSLContext | None = None) -> DataConnection:
        place = split_address(address)
        context = tls or dialing()
        left = deadline - now_seconds()
        if left <= 0:
            raise DeadlineExceeded(f"no time was left to connect to the node at {address}; no bytes were moved")
        try:
            plain = socket.create_connection(place, timeout=left)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected = plain if context is None else dialled(plain, context, place[0], left)
        except TimeoutError:
            raise DeadlineExceeded(f"the node at {address} did not take the connection in time") from None
        except OSError as error:
            raise Unreachable(f"no node answers at {address} ({error}); no bytes were moved") from None
        connected.settimeout(None)
        connection = cls(connected, address)
        try:
            connection._send(memoryview(PREAMBLE), deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    def read_into(self, wanted: WantedRange, deadline: float, digest: xxhash.xxh3_64 | None = None) -> None:
        """Fill the target with the bytes at the offset."""
        try:
            self._ask_for([wanted], deadline)
            refusal = self._take_bytes(wanted.target, deadline, digest)
        except BaseException:
            self.close()
            raise
        if refusal is not None:
            raise refusal

    def read_many(self, wanted: Sequence[WantedRange], deadline: float) -> None:
        """Fill many targets. A refusal of the node is raised after all the others are filled, unless it is about a
        ticket: that ends the connection."""
        refusal: HoldfastError | None = None
        asked: deque[list[WantedRange]] = deque()
        ahead = 0
        try:
            for some in _by_ticket(wanted):
                self._ask_for(some, deadline)
                asked.append(some)
                ahead += len(some)
                while ahead > WINDOW:
                    first = asked.popleft()
                    ahead -= len(first)
                    refusal = self._take_all(first, deadline) or refusal
            while asked:
                refusal = self._take_all(asked.popleft(), deadline) or refusal
        except BaseException:
            self.close()
            raise
        if refusal is not None:
            raise refusal

    def _take_all(self, some: list[WantedRange], deadline: float) -> HoldfastError | None:
        """Take the answer to one request: the bytes of all in one piece, or an answer for each."""
        reply = self._take_message(deadline)
        if _are_small(some) and isinstance(reply, Sending) and reply.length == _size_of(some):
            for each in some:
                self._gather(each.target.nbytes, deadline)
                self._receive(each.target, deadline)
            return None
        refusal = self._take_answer(reply, some[0].target, deadline, None)
        for each in some[1:]:
            refusal = self._take_bytes(each.target, deadline, None) or refusal
        return refusal

    def read_back(self, granted: GrantedRange, offset: int, target: memoryview, deadline: float) -> None:
        """Fill `target` with bytes that were written at `offset` in the range that was granted."""
        try:
            self._send(memoryview(frame(0, 0, encode(ReadBack(*granted, offset, target.nbytes)))), deadline)
            refusal = self._take_bytes(target, deadline, None)
        except BaseException:
            self.close()
            raise
        if refusal is not None:
            raise refusal

    def check_file(self, segment: SegmentName, ticket: Ticket, offset: int, deadline: float) -> None:
        """Have the node read the file there itself; ReplicaLost if it is missing or wrong."""
        try:
            self._send(memoryview(frame(0, 0, encode(CheckFile(segment, offset, ticket)))), deadline)
            reply = self._take_message(deadline)
        except BaseException:
            self.close()
            raise
        expect(reply, FileSound)

    def write(
        self,
        granted: GrantedRange,
        offset: int,
        source: memoryview,
        deadline: float,
        digest: xxhash.xxh3_64 | None = None,
    ) -> None:
        """Write `source` at `offset` in the range that was granted; on return the node holds all of it."""
        self.write_many(granted, [(offset, source, digest)], deadline)

    def write_many(
        self,
        granted: GrantedRange,
        sources: Sequence[Source],
        deadline: float,
    ) -> None:
        """The same for many, each sent before the last one is confirmed, and small ones together: neighbours as one
        write."""
        unconfirmed: deque[int] = deque()
        gathered = bytearray()
        try:
            for run in _neighbours(sources):
                first, (offset, source, digest) = run[0][0], run[-1]
                request = WriteRange(*granted, first, offset + source.nbytes - first)
                if source.nbytes < TOGETHER_BELOW:
                    gathered += frame(0, 0, encode(request))
                    _add_all(gathered, run)
                else:
                    self._send_gathered(gathered, deadline)
                    self._send_all(request, source, deadline, digest)
                unconfirmed.append(request.length)
                if len(gathered) >= CHUNK:
                    self._send_gathered(gathered, deadline)
                if len(unconfirmed) == WINDOW:
                    self._send_gathered(gathered, deadline)
                    while len(unconfirmed) > WINDOW // 2:
                        self._take_written(unconfirmed.popleft(), deadline)
            self._send_gathered(gathered, deadline)
            while unconfirmed:
                self._take_written(unconfirmed.popleft(), deadline)
        except BaseException:
            self.close()
            raise

    def _send_gathered(self, gathered: bytearray, deadline: float) -> None:
        if gathered:
            self._send(memoryview(bytes(gathered)), deadline)
            gathered.clear()

    def _take_written(self, size: int, deadline: float) -> None:
        written = expect(self._take_message(deadline), Written)
        if written.length != size:
            raise BadRequest(f"the node at {self._address} wrote {written.length:,} of {size:,} bytes")

    def close(self) -> None:
        self.closed = True
        self._socket.close()

    def _send_all(
        self, request: WriteRange, source: memoryview, deadline: float, digest: xxhash.xxh3_64 | None
    ) -> None:
        self._send(memoryview(frame(0, 0, encode(request))), deadline)
        if digest is None:
            self._send(source, deadline)
            return
        shared = SharedHash(source, digest)
        if source.nbytes >= SHARED_FROM and shared.begin():
            try:
                self._send(source, deadline)
            except BaseException:
                shared.leave()
                raise
            shared.finish()
            return
        for start in range(0, source.nbytes, CHUNK):
            piece = source[start : start + CHUNK]
            digest.update(piece)
            self._send(piece, deadline)

    def _raise_what_was_answered(self) -> None:
        until = now_seconds() + LAST_WORD_SECONDS
        while True:
            try:
                reply = self._take_message(until)
            except (Unreachable, DeadlineExceeded):
                return
            if isinstance(reply, Failed):
                raise from_code(reply.code, reply.text)
            if not isinstance(reply, Written):  # Earlier writes may be confirmed before it; bytes of a read follow.
                return

    def _ask_for(self, some: Sequence[WantedRange], deadline: float) -> None:
        """Send one request for these, which are all of one ticket."""
        first = some[0]
        wanted = TicketRow.pack_rows((each.offset, each.target.nbytes) for each in some)
        rest = b"" if wanted == first.ticket.ranges else wanted
        request = ReadRanges(first.segment, first.ticket, rest, _are_small(some))
        self._send(memoryview(frame(0, 0, encode(request))), deadline)

    def _take_bytes(self, target: memoryview, deadline: float, digest: xxhash.xxh3_64 | None) -> HoldfastError | None:
        return self._take_answer(self._take_message(deadline), target, deadline, digest)

    def _take_answer(
        self, reply: Message, target: memoryview, deadline: float, digest: xxhash.xxh3_64 | None
    ) -> HoldfastError | None:
        if isinstance(reply, Failed):
            error = from_code(reply.code, reply.text)
            if isinstance(error, TicketRefused):
                raise error  # The node answers no other range of the request, and closes.
            return error
        size = target.nbytes
        if expect(reply, Sending).length != size:
            raise BadRequest(f"the node at {self._address} sends {reply!r} where {size:,} bytes were asked for")
        for start in range(0, size, CHUNK):
            piece = target[start : start + CHUNK]
            self._receive(piece, deadline)
            if digest is not None:
                digest.update(piece)
        return None

    def _take_message(self, deadline: float) -> Message:
        self._gather(HEAD_BYTES, deadline)
        length, _, _ = HEAD.unpack_from(self._buffer, self._start)
        if length > MAX_REPLY_BYTES - HEAD_BYTES:
            raise BadRequest(f"the node at {self._address} answered with a frame of {length:,} bytes, over the limit")
        self._gather(HEAD_BYTES + length, deadline)
        begin = self._start + HEAD_BYTES
        self._start = begin + length
        return decode_data_reply(self._buffer[begin : begin + length])

    def _gather(self, count: int, deadline: float) -> None:
        """Have at least `count` bytes in the buffer."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start + count > MAX_REPLY_BYTES:
            unread = bytes(self._buffer[self._start : self._end])
            self._buffer[: len(unread)] = unread
            self._start, self._end = 0, len(unread)
        while self._end - self._start < count:
            self._end += self._receive_some(self._buffer[self._end :], deadline, 0)

    def _receive(self, target: memoryview, deadline: float) -> None:
        """Fill `target`, first with bytes that came with the last message."""
        done = min(self._end - self._start, len(target))
        if done:
            target[:done] = self._buffer[self._start : self._start + done]
            self._start += done
        while done < len(target):
            done += self._receive_some(target[done:], deadline, socket.MSG_WAITALL)

    def _receive_some(self, target: memoryview, deadline: float, flags: int) -> int:
        timed_out = False
        if self.silence_seconds != math.inf:
            deadline = min(deadline, now_seconds() + self.silence_seconds)
        while True:
            self._arm(deadline, timed_out)
            try:
                count = self._socket.recv_into(target, 0, flags)
            except BlockingIOError:
                timed_out = True
                continue
            except OSError as error:
                raise Unreachable(f"the connection to the node at {self._address} broke ({error})") from None
            if count == 0:
                raise Unreachable(f"the node at {self._address} closed the connection before all bytes had come")
            return count

    def _send(self, data: memoryview, deadline: float) -> None:
        timed_out = False
        while len(data):
            self._arm(deadline, timed_out)
            try:
                data = data[self._socket.send(data, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                timed_out = True
            except OSError as error:
                # A node that refuses sends an error and closes without reading the rest: the error may still arrive.
                self._raise_what_was_answered()
                raise Unreachable(f"the connection to the node at {self._address} broke ({error})") from None

    def _arm(self, deadline: float, timed_out: bool) -> None:
        """Have the kernel end the next call before the deadline; `timed_out`: it has just ended one."""
        left = deadline - now_seconds()
        if left <= 0:
            raise DeadlineExceeded(f"the node at {self._address} did not move all the bytes in time")
        if timed_out or not 0 < self._armed <= left:
            self._armed = max(0.001, min(left, LONGEST_ARMED_SECONDS))
            seconds = int(self._armed)
            wait = struct.pack("@ll", seconds, int((self._armed - seconds) * 1e6))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)


def _neighbours(sources: Sequence[Source]) -> Iterator[list[Source]]:
    """Small sources that lie side by side, but for the padding between objects, and are together not longer than a
    chunk; each other one alone."""
    run: list[Source] = []
    begin = end = 0
    for each in sources:
        offset, source, _ = each
        joins = source.nbytes < TOGETHER_BELOW and 0 <= offset - end < SMALL_ALIGN and offset - begin < CHUNK
        if run and not joins:
            yield run
            run = []
        if not run:
            begin = offset
        run.append(each)
        # Nothing joins a large one.
        end = offset + source.nbytes if source.nbytes < TOGETHER_BELOW else -SMALL_ALIGN
    if run:
        yield run


def _add_all(gathered: bytearray, run: list[Source]) -> None:
    """The bytes of neighbours, with zeros for the padding between them."""
    at = run[0][0]
    for offset, source, digest in run:
        if offset > at:
            gathered += bytes(offset - at)
        gathered += source
        at = offset + source.nbytes
        if digest is not None:
            # Of the bytes that are sent, whatever the caller does to its own meanwhile.
            digest.update(memoryview(gathered)[len(gathered) - source.nbytes :])


def _are_small(some: Sequence[WantedRange]) -> bool:
    """Several small ranges: may they be answered in one piece? No empty ones: the length of that piece tells it from an
    answer for the first alone."""
    return len(some) > 1 and all(0 < each.target.nbytes < TOGETHER_BELOW for each in some)


def _size_of(some: Sequence[WantedRange]) -> int:
    return sum(each.target.nbytes for each in some)


def _by_ticket(wanted: Sequence[WantedRange]) -> list[list[WantedRange]]:
    """Those of one ticket together, as many as a ticket may be for: parts of a large object have one, too."""
    by_ticket: dict[int, list[WantedRange]] = {}
    for each in wanted:
        by_ticket.setdefault(id(each.ticket), []).append(each)
    return [
        some[start : start + MOST_TICKET_RANGES]
        for some in by_ticket.values()
        for start in range(0, len(some), MOST_TICKET_RANGES)
    ]
