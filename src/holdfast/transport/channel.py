"""One RPC connection to a master for blocking code: pipelined, shared by any number of threads, no thread of its own.

A caller sends its request, then either reads or waits. The right to read is a baton: the caller that holds it hands the
others their replies, and passes it on when its own reply has come. No caller holds the baton while sending, so a full
send buffer can never keep replies from being read. Without other callers, a call is one send and one receive.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.errors import BadRequest, ClientClosed, DeadlineExceeded, ReplyLost, Uncertain, Unreachable
from holdfast.messages.of_sessions import GiveSign
from holdfast.messages.requests import Hello, Welcome
from holdfast.messages.shapes import Message
from holdfast.transport.addresses import connected
from holdfast.transport.spin import SpinThenPoll
from holdfast.transport.tls import Stream, readable
from holdfast.wire.codec import HEAD, PREAMBLE, FrameBuffer, decode_reply, encode, expect, frame, told_timeout_ms

if TYPE_CHECKING:
    import ssl

SILENCE_SECONDS = 1.0
"""A stopped process keeps its connections open, so a peer that is silent for this long is asked for a sign of life, and
given up if none comes for as long again. A master gives one at once, even while it makes a put wait."""
ALONE_BYTES = 60 << 10
"""A request of this size fits into the send buffer of an idle connection, so sending it does not block."""
SLICE_SECONDS = 0.5
"""A blocked receive returns from the kernel this often, so that its deadline can be checked."""
_SLICE = struct.pack("@ll", 0, int(SLICE_SECONDS * 1e6))
LAST_ID = 0xFFFF_FFFF

_encode = msgspec.msgpack.Encoder().encode
_pack_head = HEAD.pack
_clock = time.clock_gettime
_BOOTTIME = time.CLOCK_BOOTTIME
_CLOSED_TEXT = "the connection was closed; nothing was sent. Connect again"
_OTHER_PORT = "Is it the address of a master (--listen)? Nodes and HTTP have ports of their own"
_FORKED_TEXT = (
    "this connection belongs to the parent process; nothing was sent. Connect again in the child, after the fork"
)


def nobody_at(address: str, error: Exception) -> Unreachable:
    return Unreachable(f"nobody answers at {address} ({error}); nothing was sent. Is the master running?")


@contextlib.contextmanager
def closed_unless_welcomed(address: str, close: Callable[[], None]) -> Iterator[None]:
    """Close the connection if its greeting fails. Nothing but the greeting was sent: so a lost reply is no doubt."""
    try:
        yield
    except BaseException as error:
        close()
        if isinstance(error, Uncertain):
            raise Unreachable(
                f"{address} accepted the connection but sent no welcome ({error}). {_OTHER_PORT}"
            ) from None
        if isinstance(error, BadRequest):
            raise BadRequest(f"{address} refuses the greeting of a client ({error}). {_OTHER_PORT}") from None
        raise


class _Slot:
    """Where a waiting caller finds its reply. `wake` is held until there is a reply, an end, or a free baton."""

    __slots__ = ("answer", "sent", "wake")

    def __init__(self) -> None:
        self.answer: bytes | None = None
        self.sent = False
        self.wake = threading.Lock()
        self.wake.acquire()

    def late_answer(self) -> bytes | None:
        """The reply as it is now: another thread may have set it since it was last read."""
        return self.answer

    def rouse(self) -> None:
        # Released already: the waiter has not read yet, and will see this as well.
        with contextlib.suppress(RuntimeError):
            self.wake.release()


class PendingCall(NamedTuple):
    """A request that was sent."""

    channel: Channel
    request_id: int
    slot: _Slot
    deadline: float

    def reply(self) -> Message:
        """The reply, as from `Channel.call`. Call it once."""
        try:
            return self.channel._wait(self.request_id, self.slot, self.deadline)
        finally:
            self.drop()

    def drop(self) -> None:
        self.channel._waiting.pop(self.request_id, None)
        if self.channel._waiting:
            self.channel._pass_on()


class Channel:
    """A connection that a master has welcomed."""

    welcome: Welcome

    def __init__(self, stream: Stream, address: str, silence_seconds: float = SILENCE_SECONDS) -> None:
        self.address = address
        self._silence_seconds = silence_seconds
        self.closed = False
        self._socket = stream
        self._reason = _CLOSED_TEXT
        self._last_word = ""
        self._forked = False
        self._buffer = FrameBuffer()
        self._receive = SpinThenPoll(stream, SLICE_SECONDS).receive
        self._sending = threading.Lock()
        self._baton = threading.Lock()
        self._waiting: dict[int, _Slot] = {}
        self._next_id = 0
        self._silent_from = 0.0
        self._asked_for_sign = False
        _open_channels.add(self)

    @classmethod
    def open(
        cls,
        address: str,
        hello: Hello,
        deadline: float,
        silence_seconds: float = SILENCE_SECONDS,
        tls: ssl.SSLContext | None = None,
    ) -> Channel:
        left = deadline - _clock(_BOOTTIME)
        if left <= 0:
            raise Unreachable(f"no time was left to connect to {address}; nothing was sent")
        try:
            stream = connected(address, left, tls)
        except OSError as error:
            raise nobody_at(address, error) from None
        try:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _SLICE)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SLICE)
            channel = cls(stream, address, silence_seconds)
        except BaseException:
            stream.close()
            raise
        with closed_unless_welcomed(address, channel.close):
            channel.welcome = expect(channel.call(hello, deadline, PREAMBLE), Welcome)
        return channel

    @property
    def descriptor(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        if self.closed and self._socket.fileno() == -1:
            return
        self._end(_CLOSED_TEXT)
        # After the shutdown, threads inside send or recv return at once; only then may the descriptor be reused.
        if self._baton.acquire(timeout=2 * SLICE_SECONDS):
            if self._sending.acquire(timeout=2 * SLICE_SECONDS):
                self._socket.close()
                self._sending.release()
            self._baton.release()

    def call(self, message: Message, deadline: float, before: bytes = b"") -> Message:
        """The reply, possibly `Failed`. Raises Unreachable if the request was not sent, otherwise ReplyLost if the
        connection broke, DeadlineExceeded if no reply came in time (the connection stays good)."""
        now = _clock(_BOOTTIME)
        left = deadline - now
        if left <= 0:
            raise Unreachable("the deadline passed before the request was sent; nothing was changed")
        payload = _encode(message)
        if len(payload) <= ALONE_BYTES and not self._waiting and self._baton.acquire(False):
            # No other caller waits for a reply, so reading it needs no slot. This path makes few calls: between two
            # requests other code often fills the CPU caches, and fetching ours again is most of the cost.
            try:
                if self._sending.acquire(False):
                    request_id = -1
                    try:
                        if not (self._waiting or self.closed):
                            request_id = self._next_id
                            self._next_id = request_id + 1 if request_id < LAST_ID else 1
                            self._silent_from = 0.0
                            outgoing = before + _pack_head(len(payload), request_id, told_timeout_ms(left)) + payload
                            self._send(outgoing, request_id, deadline)
                    finally:
                        self._sending.release()
                    if request_id >= 0:
                        return self._read(request_id, deadline, now)
            finally:
                self._baton.release()
                if self._waiting:
                    self._pass_on()
        return self._begin(payload, deadline, left, before).reply()

    def begin(self, message: Message, deadline: float) -> PendingCall:
        """Send it, to get the reply later. Raises Unreachable if it was not sent."""
        left = deadline - _clock(_BOOTTIME)
        if left <= 0:
            raise Unreachable("the deadline passed before the request was sent; nothing was changed")
        return self._begin(_encode(message), deadline, left, b"")

    def _begin(self, payload: bytes, deadline: float, left: float, before: bytes) -> PendingCall:
        slot = _Slot()
        sending = self._sending
        if not sending.acquire(False) and not sending.acquire(timeout=left):
            raise Unreachable("the connection was busy until the deadline; the request was not sent")
        try:
            if self.closed:
                raise ClientClosed(_FORKED_TEXT) if self._forked else Unreachable(self._reason)
            request_id = self._next_id
            outgoing = before + frame(request_id, told_timeout_ms(left), payload)
            # Id 0 is for the greeting, and later for the server's errors about the connection.
            self._next_id = request_id + 1 if request_id < LAST_ID else 1
            self._waiting[request_id] = slot
            self._send(outgoing, request_id, deadline)
        finally:
            sending.release()
        slot.sent = True
        return PendingCall(self, request_id, slot, deadline)

    def _send(self, outgoing: bytes, request_id: int, deadline: float) -> None:
        try:
            sent = self._socket.send(outgoing)
            while sent < len(outgoing):
                outgoing = outgoing[sent:]
                sent = self._send_slice(outgoing, deadline)
        except BlockingIOError:
            self._waiting.pop(request_id, None)
            # Part of the frame may be under way, so nothing else can follow it on this connection.
            self._end("a request could not be sent whole")
            raise Unreachable(f"{self.address} takes no more bytes; the request was not sent") from None
        except OSError as error:
            self._waiting.pop(request_id, None)
            self._end(f"the connection to {self.address} was lost ({error})")
            # A frame that was not sent whole is never acted upon.
            raise Unreachable(
                f"the connection to {self.address} was lost ({error}); the request was not sent"
            ) from None

    def _send_slice(self, outgoing: bytes, deadline: float) -> int:
        while True:
            try:
                return self._socket.send(outgoing)
            except BlockingIOError:
                if _clock(_BOOTTIME) >= deadline:
                    raise

    def _wait(self, request_id: int, slot: _Slot, deadline: float) -> Message:
        baton = self._baton
        while True:
            if baton.acquire(False):
                try:
                    if slot.answer is None:
                        return self._read(request_id, deadline, _clock(_BOOTTIME))
                finally:
                    baton.release()
            if slot.answer is not None:
                return self._decoded(slot.answer)
            if self.closed:
                raise self._lost()
            left = deadline - _clock(_BOOTTIME)
            if left <= 0 or not slot.wake.acquire(timeout=left):
                answer = slot.late_answer()
                if answer is None:
                    raise self._late()
                return self._decoded(answer)

    def _read(self, request_id: int, deadline: float, now: float) -> Message:
        """With the baton: receive until our own reply is there, and hand the others theirs."""
        buffer = self._buffer
        while True:
            if buffer.end and (mine := self._cut(request_id)) is not None:
                return mine
            if self.closed:
                raise self._lost()
            if deadline - now < SLICE_SECONDS and not readable(self._socket, deadline - now):
                raise self._late()
            try:
                count = self._receive(buffer.space(), now)
            except BlockingIOError:
                now = _clock(_BOOTTIME)
                if now >= deadline:
                    raise self._late() from None
                self._mind_silence()
                continue
            except OSError as error:
                self._end(f"the connection to {self.address} was lost ({error})")
                raise self._lost() from None
            if count == 0:
                self._end(f"{self.address} closed the connection{self._last_word}")
                raise self._lost()
            self._silent_from = 0.0
            found = buffer.sole_frame(count)
            if found is not None:
                if found[0] == request_id:
                    return self._decoded(found[2])
                self._hand_over(found[0], found[2])

    def _cut(self, request_id: int) -> Message | None:
        """Hand out received replies. Returns our own, if it is among them."""
        mine: Message | None = None
        try:
            while (found := self._buffer.next_frame()) is not None:
                if found[0] == request_id:
                    mine = self._decoded(found[2])
                else:
                    self._hand_over(found[0], found[2])
        except BadRequest as error:
            # The frame is over the limit: nothing after it can be trusted.
            self._end(f"{self.address} sent what is no reply ({error})")
        return mine

    def _mind_silence(self) -> None:
        """With the baton, after a slice of silence: ask for a sign of life, or give the connection up."""
        now = _clock(_BOOTTIME)
        if not self._silent_from:
            self._silent_from, self._asked_for_sign = now - SLICE_SECONDS, False
        silent = now - self._silent_from
        if silent >= 2 * self._silence_seconds:
            self._end(f"{self.address} gives no sign of life")
        elif silent >= self._silence_seconds and not self._asked_for_sign and self._sending.acquire(False):
            try:
                request_id = self._next_id
                self._next_id = request_id + 1 if request_id < LAST_ID else 1
                # No caller waits for this id: any reply will do as a sign of life.
                self._socket.send(frame(request_id, 1, encode(GiveSign())), socket.MSG_DONTWAIT)
                self._asked_for_sign = True
            except OSError as error:
                self._end(f"{self.address} takes no more bytes ({error})")
            finally:
                self._sending.release()

    def _hand_over(self, request_id: int, payload: memoryview) -> None:
        slot = self._waiting.get(request_id)
        if slot is not None:
            slot.answer = bytes(payload)
            slot.rouse()
        elif request_id == 0:
            self._last_word = f": {getattr(self._decoded(payload), 'text', '')}"
        # Otherwise that caller's deadline has passed.

    def _lost(self) -> ReplyLost:
        return ReplyLost(f"{self._reason}; the request was sent and may have been done")

    def _late(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"{self.address} did not answer in time; the request may have been done")

    def _decoded(self, payload: bytes | memoryview) -> Message:
        try:
            return decode_reply(payload)
        except BadRequest as error:
            self._end(f"{self.address} sent a reply that cannot be read")
            raise Uncertain(f"{self.address} answered, but {error}. Do both sides run the same version?") from None

    def _pass_on(self) -> None:
        """Wake another caller to read, since no caller may be reading now."""
        if self._baton.locked():
            return
        for slot in list(self._waiting.values()):
            # A caller that is still sending may be stuck until somebody reads; it tries the baton afterwards.
            if slot.sent and slot.answer is None:
                slot.rouse()
                return

    def _end(self, reason: str) -> None:
        if self.closed:
            return
        self._reason = reason
        self.closed = True
        # Closed already: the peer was faster.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for slot in list(self._waiting.values()):
            slot.rouse()

    def _leave_to_parent(self) -> None:
        self._forked = True
        self.closed = True
        # New locks: a thread that held the old ones does not exist here. Close, not shutdown: the parent's connection
        # goes on.
        self._sending = threading.Lock()
        self._baton = threading.Lock()
        self._waiting = {}
        self._socket.close()


_open_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for channel in list(_open_channels):
        channel._leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
