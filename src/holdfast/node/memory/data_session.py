"""One connection of the TCP data port: requests come in order and are answered in order.

A peer may be anything, so no buffer is sized by a length that it sends, a request must be complete soon after its first
byte, and a transfer that stops moving ends. A refused write ends the connection: its bytes are under way already, and
receiving them only to drop them would let anybody keep the node busy.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

import structlog

from holdfast.errors import BadRequest, HoldfastError, Stopping, UnknownSegment
from holdfast.ids import SLOWEST_BYTES_PER_SECOND, GrantId, SegmentName
from holdfast.instant import now_seconds
from holdfast.messages.of_nodes import (
    BytesOfGrant,
    CheckFile,
    FileSound,
    ReadBack,
    ReadRanges,
    Sending,
    WriteRange,
    Written,
)
from holdfast.messages.rows import TicketRow, TwoWords
from holdfast.messages.shapes import Message
from holdfast.node.disk.tier import DiskTier
from holdfast.node.memory.admission import STRANGER_BYTES, STRANGER_SECONDS
from holdfast.node.memory.lent_memory import Lending
from holdfast.transport.tls import Stream, accepted
from holdfast.wire.codec import FrameBuffer, decode_data_request, encode, failed, frame
from holdfast.wire.mac import issued_at

MAX_REQUEST_BYTES = 16 << 10
CHUNK = 1 << 20
SMALL_BYTES = 64 << 10
TOGETHER_BYTES = 1 << 20
"""The most that is copied together for one answer."""
LEAST_WAIT_SECONDS = 0.001
"""Zero would mean for ever."""

log = structlog.get_logger("holdfast.node")


@dataclass(slots=True)
class Transfers:
    """Bytes that a data connection has moved. Only its own thread counts them, so counting needs no lock."""

    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    written_bytes: int = 0

    def add(self, other: Transfers) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def figures(self) -> dict[str, int]:
        return {f"tcp_{each.name}": getattr(self, each.name) for each in fields(self)}


class Moving(NamedTuple):
    """Bytes that a session reads or writes."""

    segment: SegmentName
    issued: int
    """When its proof was given."""
    ranges: bytes
    """A `TicketRow` for each."""

    def is_older(self, segment: SegmentName, offset: int, length: int, issued: int) -> bool:
        """Does it touch this range, with a proof that was given before?"""
        if self.segment != segment or self.issued >= issued or not TicketRow.is_whole(self.ranges):
            return False
        return any(at < offset + length and at + size > offset for at, size in TicketRow.iter_unpack(self.ranges))


def _moving_in_grant(request: BytesOfGrant) -> Moving:
    if min(request.range_offset, request.range_length) < 0:
        raise BadRequest("a range begins at 0 or above, and is no shorter than 0; nothing was read or written")
    ranges = TicketRow.pack(request.range_offset, request.range_length)
    return Moving(request.segment, issued_at(request.mac), ranges)


class TransferGate(Protocol):
    """Decides what may be moved, and waits for the end of a write."""

    def pieces_of(self, request: ReadRanges) -> Sequence[TwoWords]:
        """The (offset, length) to send, or raise."""

    def check_read_back(self, request: ReadBack) -> None: ...

    def check_file(self, request: CheckFile) -> None: ...

    def prove(self, session: DataSession) -> None:
        """The session has shown something good. TryAgain if there is no room for it."""

    def disk_chunk(self) -> int:
        """How much of a file to hold in memory at once."""

    def begin_write(self, session: DataSession, request: WriteRange) -> None: ...

    def end_write(self, session: DataSession) -> None: ...


class _PeerLeft(Exception):
    """The connection ended or stalled; no error can be sent."""


class DataSession:
    """Served by one thread; others may only `end` it and read `writing`."""

    def __init__(
        self,
        connected: socket.socket,
        address: str,
        gate: TransferGate,
        lending: Lending,
        idle_seconds: float,
        stall_seconds: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.writing: GrantId | None = None
        """The grant that is being written to now. Set by the gate."""
        self.moving: Moving | None = None
        """What is being read or written now. Set before it is checked, so that a fence sees it or refuses it."""
        self.moved = Transfers()
        self.refused: HoldfastError | None = None
        """What the peer was refused with, which ended the connection."""
        self._socket: Stream = connected
        self._tls = tls
        self._gate = gate
        self._lending = lending
        self._idle_seconds = idle_seconds
        self._stall_seconds = stall_seconds
        self._wait_seconds = min(idle_seconds, stall_seconds, STRANGER_SECONDS)
        """How long one call waits, before it is looked whether to go on."""
        self._received = FrameBuffer(STRANGER_BYTES, memoryview(bytearray(STRANGER_BYTES)))
        self._ended = False
        self.address = address
        self.is_known = False
        """It has shown a good ticket or grant. Set by the gate; likewise the next two are for it to read."""
        self.since = now_seconds()
        self.busy = False

    def serve(self) -> None:
        """Serve until the peer leaves or misbehaves, or `end`."""
        try:
            if self._tls is not None and isinstance(self._socket, socket.socket):
                self._encrypt(self._socket, self._tls)
            prepare(self._socket)
            set_waits(self._socket, self._wait_seconds)
            self._greet()
            while not self._ended:
                received = self._next_request()
                self.busy = True
                self._answer(*received)
                self.moving = None
                self.since, self.busy = now_seconds(), False
        except HoldfastError as error:
            log.debug("a data connection is closed", reason=str(error))
            self.refused = error
            refuse(self._socket, error)
        except (_PeerLeft, OSError) as error:
            log.debug("a data connection ended", reason=str(error))
        finally:
            self._socket.close()

    @property
    def is_leaving(self) -> bool:
        return self._ended

    def end(self) -> None:
        """Make the serving thread leave the call that it blocks in."""
        self._ended = True
        # The peer, or the serving thread itself, was faster.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _encrypt(self, connected: socket.socket, tls: ssl.SSLContext) -> None:
        """The handshake is a stranger's, too: in its time, and it ends when another stranger gets the place."""
        self._socket = stream = accepted(connected, tls)
        if self._ended:  # Just before, when `end` found the socket in no state to be shut down.
            raise _PeerLeft("its place was given to another")
        stream.shake_hands(self._stranger_until())

    def _greet(self) -> None:
        until = self._stranger_until()
        while not self._received.take_preamble():
            self._receive_more(until)

    def _stranger_until(self) -> float:
        return self.since + min(self._stall_seconds, STRANGER_SECONDS)

    def _prove(self) -> None:
        """It has shown something good: it may take its time from now on."""
        if not self.is_known:
            self._gate.prove(self)
            self._received.limit = MAX_REQUEST_BYTES
            set_waits(self._socket, self._wait_seconds)

    def _next_request(self) -> tuple[int, Message]:
        until = now_seconds() + (self._stall_seconds if len(self._received) else self._idle_seconds)
        if not self.is_known:
            until = self._stranger_until()
        while (whole := self._received.next_frame()) is None:
            begun = len(self._received) > 0
            self._receive_more(until)
            if not begun and self.is_known:
                until = now_seconds() + self._stall_seconds
        return whole[0], decode_data_request(whole[2])

    def _answer(self, request_id: int, request: Message) -> None:
        if isinstance(request, ReadRanges):
            ranges = request.wanted or request.ticket.ranges
            self.moving = Moving(request.segment, issued_at(request.ticket.mac), ranges)
            pieces = self._gate.pieces_of(request)
            self._prove()
            if not request.together or not self._read_together(request_id, request.segment, pieces):
                self._read(request_id, request.segment, pieces)
        elif isinstance(request, WriteRange):
            self.moving = _moving_in_grant(request)
            self._write(request_id, request)
        elif isinstance(request, ReadBack):
            self.moving = _moving_in_grant(request)
            self._gate.check_read_back(request)
            self._prove()
            self._read(request_id, request.segment, [(request.range_offset + request.offset, request.length)])
        elif isinstance(request, CheckFile):
            self._check_file(request_id, request)
        else:
            raise BadRequest(f"{type(request).__name__} is not served here; memory is passed by the Unix socket")

    def _read_together(self, request_id: int, segment: SegmentName, pieces: Sequence[TwoWords]) -> bool:
        """Answer for all pieces at once. False, with nothing sent: they are too much for that, or not all are there."""
        total = sum(length for _, length in pieces)
        if total > TOGETHER_BYTES or not self._lending.lends(segment):
            return False
        try:
            sources = [self._lending.range_of(segment, offset, length) for offset, length in pieces]
        except HoldfastError:
            return False
        answer = b"".join([_framed(request_id, Sending(total)), *sources])
        for source in sources:
            source.release()
        self._send_all(answer, self._must_move_until(total))
        self.moved.reads += len(pieces)
        self.moved.read_bytes += total
        return True

    def _read(self, request_id: int, segment: SegmentName, pieces: Sequence[TwoWords]) -> None:
        disk = self._lending.disk
        until = self._must_move_until(sum(length for _, length in pieces))
        if disk is not None and disk.is_mine(segment):
            for offset, length in pieces:
                self._read_disk(disk, request_id, offset, length, until)
            return
        outgoing: list[bytes | memoryview] = []
        waiting = 0
        for offset, length in pieces:
            try:
                source = self._lending.range_of(segment, offset, length)
            except HoldfastError as error:
                outgoing.append(_framed(request_id, failed(error)))
                continue
            outgoing += (_framed(request_id, Sending(length)), source)
            waiting += length
            if waiting >= SMALL_BYTES:
                self._send_out(outgoing, until)
                waiting = 0
            self.moved.reads += 1
            self.moved.read_bytes += length
        self._send_out(outgoing, until)

    def _must_move_until(self, size_bytes: int) -> float:
        """When all bytes of one request must have moved: a peer that is slower than any transfer is waited for is given
        up, however evenly its bytes move."""
        return now_seconds() + self._stall_seconds + size_bytes / SLOWEST_BYTES_PER_SECOND

    def _send_out(self, outgoing: list[bytes | memoryview], until: float) -> None:
        """Send these, small ones together and a large one at the end straight from the memory; release the views."""
        try:
            large = outgoing.pop() if outgoing and len(outgoing[-1]) > SMALL_BYTES else b""
            head = b"".join(outgoing)
            if head:
                self._send_all(head, until, socket.MSG_MORE if large else 0)
            if large:
                outgoing.append(large)
                self._send_all(large, until)
        finally:
            for each in outgoing:
                if isinstance(each, memoryview):
                    each.release()
            outgoing.clear()

    def _send_all(self, data: bytes | memoryview, until: float, flags: int = 0) -> None:
        """Send all, or give up a peer that has not taken it by then."""
        left = memoryview(data)
        while left.nbytes:
            sent = 0
            with contextlib.suppress(BlockingIOError):  # It took nothing for as long as one call waits.
                sent = self._socket.send(left, flags)
            left = left[sent:]
            if left.nbytes and (self._ended or now_seconds() >= until):
                raise _PeerLeft("the peer does not take its bytes")

    def _read_disk(self, disk: DiskTier, request_id: int, offset: int, length: int, until: float) -> None:
        """Serve a read from a file, one piece at a time; the first is read before success is announced."""
        chunk = self._gate.disk_chunk()
        room = memoryview(bytearray(min(length, chunk)))
        head = _framed(request_id, Sending(length))
        for start in range(0, max(length, 1), chunk):
            piece = room[: min(chunk, length - start)]
            try:
                disk.read_into(offset + start, piece)
            except HoldfastError as error:
                if start:
                    raise _PeerLeft(f"the rest of an object cannot be read ({error})") from None
                self._send_all(_framed(request_id, failed(error)), until)
                return
            self._send_all(b"".join([head, piece]) if head else piece, until)
            head = b""
        self.moved.reads += 1
        self.moved.read_bytes += length

    def _check_file(self, request_id: int, request: CheckFile) -> None:
        """Check a file in which a reader found wrong bytes. Its replica is given up only if the file is wrong."""
        self._gate.check_file(request)
        self._prove()
        disk = self._lending.disk
        answer: Message = FileSound()
        try:
            if disk is None or not disk.is_mine(request.segment):
                raise UnknownSegment(f"this node has no disk {request.segment}; nothing was checked")
            disk.check(request.offset)
        except HoldfastError as error:
            answer = failed(error)
        self._send_all(_framed(request_id, answer), self._must_move_until(0))

    def _write(self, request_id: int, request: WriteRange) -> None:
        target = self._lending.range_of(request.segment, request.range_offset + request.offset, request.length)
        with target:
            self._gate.begin_write(self, request)
            try:
                self._prove()
                self._fill(target)
            finally:
                self._gate.end_write(self)
        self.moved.writes += 1
        self.moved.written_bytes += request.length
        self._send_all(_framed(request_id, Written(request.length)), self._must_move_until(0))

    def _fill(self, target: memoryview) -> None:
        """Fill the target, first with bytes that came with the request, then straight from the socket."""
        done = min(len(self._received), len(target))
        early = self._received.take(done)
        if early:
            target[:done] = early
        until, all_by = now_seconds() + self._stall_seconds, self._must_move_until(len(target))
        while done < len(target):
            if self._ended:
                raise Stopping("the grant has ended while its bytes were on the way; they are not kept")
            if now_seconds() >= all_by:
                raise _PeerLeft("the bytes of a write come too slowly")
            try:
                count = self._socket.recv_into(target[done : done + CHUNK], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                if now_seconds() >= until:
                    raise _PeerLeft("no byte came for too long") from None
                continue
            if count == 0:
                raise _PeerLeft("the peer closed the connection within a write")
            done += count
            until = now_seconds() + self._stall_seconds

    def _receive_more(self, until: float) -> None:
        while True:
            if not self.is_known:
                set_waits(self._socket, max(LEAST_WAIT_SECONDS, until - now_seconds()))
            try:
                count = self._socket.recv_into(self._received.space())
            except BlockingIOError:
                if self._ended or now_seconds() >= until:
                    raise _PeerLeft("nothing came for too long") from None
                continue
            if count == 0:
                raise _PeerLeft("the peer closed the connection")
            self._received.filled(count)
            if now_seconds() >= until:
                raise _PeerLeft("a request took too long to come")
            return


def set_waits(connected: Stream, seconds: float) -> None:
    """How long one call on a blocking stream waits."""
    whole = int(seconds)
    wait = struct.pack("@ll", whole, max(1, int((seconds - whole) * 1e6)))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)


def prepare(connected: Stream) -> None:
    """Make it block, and set keepalive, so that a peer whose machine is gone is noticed."""
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def refuse(connected: Stream, error: HoldfastError) -> None:
    """Send the error, if the peer still reads, and close without receiving the rest."""
    with contextlib.suppress(OSError):
        connected.send(_framed(0, failed(error)), socket.MSG_DONTWAIT)
        connected.shutdown(socket.SHUT_WR)
    connected.close()


def _framed(request_id: int, message: Message) -> bytes:
    return frame(request_id, 0, encode(message))
