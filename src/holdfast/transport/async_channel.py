"""One RPC connection to a master for asyncio code: pipelined, on a protocol of its own.

Many coroutines at once are the usual case: their requests of one turn of the loop are sent together, and one timer
watches all their deadlines.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from functools import partial
from typing import NamedTuple, cast

from holdfast.addresses import DEFAULT_PORT, split_address
from holdfast.errors import BadRequest, DeadlineExceeded, ReplyLost, Uncertain, Unreachable
from holdfast.instant import now_seconds
from holdfast.messages.of_sessions import GiveSign
from holdfast.messages.requests import Hello, Welcome
from holdfast.messages.shapes import Message
from holdfast.transport.addresses import LOCAL
from holdfast.transport.channel import LAST_ID, SILENCE_SECONDS, closed_unless_welcomed, nobody_at
from holdfast.transport.tls import dialing
from holdfast.wire.codec import PREAMBLE, FrameBuffer, decode_reply, encode, expect, frame, told_timeout_ms


class PendingAsyncCall(NamedTuple):
    """A request that was sent."""

    channel: AsyncChannel
    request_id: int
    answer: asyncio.Future[Message]

    async def reply(self) -> Message:
        """The reply, as from `AsyncChannel.call`. Call it once."""
        try:
            return await self.answer
        finally:
            self.drop()

    def drop(self) -> None:
        self.channel._waiting.pop(self.request_id, None)
        if not self.answer.cancel() and not self.answer.cancelled():
            self.answer.exception()  # Retrieved here, because nobody else may do it.


class AsyncChannel(asyncio.BufferedProtocol):
    """A connection that a master has welcomed; to be used from one event loop."""

    welcome: Welcome

    def __init__(self, address: str, silence_seconds: float = SILENCE_SECONDS) -> None:
        self.address = address
        self._silence_seconds = silence_seconds
        self.closed = False
        self._reason = f"the connection to {address} was closed"
        self._buffer = FrameBuffer()
        self._waiting: dict[int, tuple[asyncio.Future[Message], float]] = {}
        """By request: the future of its reply, and its deadline."""
        self._gathered: list[bytes] = []
        self._next_id = 0
        self._transport: asyncio.Transport | None = None
        self._minding: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        """When the timer fires: no deadline is earlier."""
        self._heard_at = 0.0
        self._asked_for_sign = False
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(
        cls,
        address: str,
        hello: Hello,
        deadline: float,
        silence_seconds: float = SILENCE_SECONDS,
        tls: ssl.SSLContext | None = None,
    ) -> AsyncChannel:
        left = deadline - now_seconds()
        if left <= 0:
            raise Unreachable(f"no time was left to connect to {address}; nothing was sent")
        loop = asyncio.get_running_loop()
        make = partial(cls, address, silence_seconds)
        try:
            async with asyncio.timeout(left):
                if address.startswith(LOCAL):
                    name = "\0" + address.removeprefix(LOCAL)
                    _, channel = await loop.create_unix_connection(make, name)
                else:
                    context = tls or dialing()
                    _, channel = await loop.create_connection(make, *split_address(address, DEFAULT_PORT), ssl=context)
        except (OSError, TimeoutError) as error:
            raise nobody_at(address, error) from None
        with closed_unless_welcomed(address, channel.close):
            assert channel._transport is not None
            channel._transport.write(PREAMBLE)
            channel.welcome = expect(await channel.call(hello, deadline), Welcome)
        return channel

    async def call(self, message: Message, deadline: float) -> Message:
        """The reply, possibly `Failed`. Raises as the blocking channel's `call` does."""
        return await self.begin(message, deadline).reply()

    def begin(self, message: Message, deadline: float) -> PendingAsyncCall:
        """Send it, to get the reply later. Raises Unreachable if it was not sent."""
        now = now_seconds()
        left = deadline - now
        if left <= 0:
            raise Unreachable("the deadline passed before the request was sent; nothing was changed")
        if self.closed or self._transport is None:
            raise Unreachable(f"{self._reason}; nothing was sent. Connect again")
        request_id = self._next_id
        outgoing = frame(request_id, told_timeout_ms(left), encode(message))
        # Id 0 is for the greeting, and later for the server's errors about the connection.
        self._next_id = request_id + 1 if request_id < LAST_ID else 1
        if not self._waiting:  # Until now no reply was expected.
            self._heard_at, self._asked_for_sign = now, False
        reply: asyncio.Future[Message] = self._loop.create_future()
        if self._waiting or self._gathered:
            self._gather(outgoing)
        else:
            self._transport.write(outgoing)
        self._waiting[request_id] = reply, deadline
        if deadline < self._due:
            self._ring_at(deadline, left)
        if self._minding is None and self._silence_seconds < math.inf:
            self._minding = self._loop.call_later(self._silence_seconds, self._mind_silence)
        return PendingAsyncCall(self, request_id, reply)

    def _gather(self, outgoing: bytes) -> None:
        if not self._gathered:
            self._loop.call_soon(self._send_gathered)
        self._gathered.append(outgoing)

    def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        if self._transport is not None and not self.closed:
            self._transport.write(b"".join(gathered))

    def _ring_at(self, deadline: float, left: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = deadline
        self._timer = self._loop.call_later(left, self._give_up_late)

    def _give_up_late(self) -> None:
        """Fail the calls whose deadline has passed, and set the timer for the next one."""
        now, self._due, self._timer = now_seconds(), math.inf, None
        for reply, deadline in self._waiting.values():
            if reply.done():
                continue
            if deadline <= now:
                text = f"{self.address} did not answer in time; the request may have been done"
                reply.set_exception(DeadlineExceeded(text))
            else:
                self._due = min(self._due, deadline)
        if self._due < math.inf:
            self._ring_at(self._due, self._due - now)

    def _mind_silence(self) -> None:
        self._minding = None
        if not self._waiting or self.closed or self._transport is None:
            return
        wait = self._silence_seconds
        silent = now_seconds() - self._heard_at
        if silent < wait:
            wait -= silent
        elif self._asked_for_sign:
            self._end(f"{self.address} gives no sign of life")
            return
        else:
            self._asked_for_sign = True
            request_id = self._next_id
            self._next_id = request_id + 1 if request_id < LAST_ID else 1
            # No caller waits for this id: any reply will do as a sign of life.
            self._transport.write(frame(request_id, 1, encode(GiveSign())))
        self._minding = self._loop.call_later(wait, self._mind_silence)

    @property
    def descriptor(self) -> int:
        assert self._transport is not None, "it has been welcomed"
        return int(self._transport.get_extra_info("socket").fileno())

    def close(self) -> None:
        self._end(f"the connection to {self.address} was closed")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(f"the connection to {self.address} was lost ({error})" if error else f"{self.address} hung up")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.space()

    def buffer_updated(self, count: int) -> None:
        self._buffer.filled(count)
        self._heard_at, self._asked_for_sign = now_seconds(), False
        try:
            while (found := self._buffer.next_frame()) is not None:
                waiter = self._waiting.get(found[0])
                # Absent or done: that caller's deadline has passed.
                if waiter is not None and not waiter[0].done():
                    self._deliver(waiter[0], found[2])
        except BadRequest as error:
            # The frame is over the limit: nothing after it can be trusted.
            self._end(f"{self.address} sent what is no reply ({error})")

    def _deliver(self, reply: asyncio.Future[Message], payload: memoryview) -> None:
        try:
            reply.set_result(decode_reply(payload))
        except BadRequest as error:
            reply.set_exception(Uncertain(f"{self.address} answered, but {error}. Do both sides run the same version?"))
            self._end(f"{self.address} sent a reply that cannot be read")

    def _end(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._reason = reason
        for timer in (self._minding, self._timer):
            if timer is not None:
                timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        for reply, _ in self._waiting.values():
            if not reply.done():
                reply.set_exception(ReplyLost(f"{reason}; the request was sent and may have been done"))
