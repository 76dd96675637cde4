"""The primary's connection to its successor: it finds a standby that is willing, and sends it the tail of the log.

Records that come while a request is under way go with the next one. The answer is taken in a callback, because a task
that had to be woken for it would make every put later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from holdfast.errors import HoldfastError, TryAgain
from holdfast.instant import now_ms, now_seconds
from holdfast.master.succession.succession import Succession
from holdfast.messages.hello import fresh_hello
from holdfast.messages.of_masters import HoldTail, TailHeld
from holdfast.messages.shapes import Message
from holdfast.transport.async_channel import AsyncChannel, PendingAsyncCall
from holdfast.wire.codec import expect

log = structlog.get_logger("holdfast.master")

SILENT_SECONDS = 1.0
"""A successor that does not answer within this is given up. Puts wait for the log meanwhile."""
ASK_SECONDS = 0.2
"""How often it is asked whether it is still willing."""
AGAIN_SECONDS = 0.5
"""How long until the masters are asked again if none of them was willing."""


@dataclass(eq=False)
class TailStream:
    _succession: Succession
    _log_id: int
    _epoch: int
    """Both of the primary."""
    _token: str = field(repr=False)
    _others: Callable[[], list[str]]
    """Addresses of the other masters, as far as known."""
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)

    def want(self) -> None:
        """Somebody needs a successor, and there is none."""
        self._wanted.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            for address in self._others():
                try:
                    await self._send_to(address)
                except HoldfastError as error:
                    log.info("a master does not hold the tail of the log", address=address, why=str(error))
                self._succession.end(now_ms())
            await asyncio.sleep(AGAIN_SECONDS)

    async def _send_to(self, address: str) -> None:
        """Have the master there be the successor, until it is not willing any more or nobody needs one."""
        succession, deadline = self._succession, now_seconds() + SILENT_SECONDS
        if not succession.may_name:
            return
        channel = await AsyncChannel.open(address, fresh_hello(self._token, looks=True), deadline)
        try:
            held = await self._ask(channel)
            line = _Line(channel, succession, self._log_id, self._epoch)
            if not succession.name_one(held.name, held.life, line.send, now_ms()):
                return
            log.info("a successor holds the tail of the log", name=held.name, address=address)
            await self._keep(channel, line)
        finally:
            channel.close()

    async def _keep(self, channel: AsyncChannel, line: _Line) -> None:
        """Return when nobody has needed the successor for a while; raise when it is not to be relied on."""
        while not self._succession.is_idle(now_ms()):
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    await line.broken.wait()
            except TimeoutError:
                await self._ask(channel)
            else:
                raise TryAgain(line.why)

    async def _ask(self, channel: AsyncChannel) -> TailHeld:
        question = HoldTail(self._log_id, self._epoch)
        return expect(await channel.call(question, now_seconds() + SILENT_SECONDS), TailHeld)


class _Line:
    """One successor's line: a request is under way, or there is nothing to send."""

    def __init__(self, channel: AsyncChannel, succession: Succession, log_id: int, epoch: int) -> None:
        self.broken = asyncio.Event()
        self.why = ""
        self._channel = channel
        self._succession = succession
        self._log_id = log_id
        self._epoch = epoch
        self._under_way: PendingAsyncCall | None = None

    def send(self, first: int, records: list[bytes]) -> None:
        request = HoldTail(self._log_id, self._epoch, first, records)
        try:
            self._under_way = self._channel.begin(request, now_seconds() + SILENT_SECONDS)
        except HoldfastError as error:
            self._break(str(error))
        else:
            self._under_way.answer.add_done_callback(self._answered)

    def _answered(self, answer: asyncio.Future[Message]) -> None:
        call = self._under_way
        assert call is not None, "it was sent"
        try:
            through = expect(answer.result(), TailHeld).through
        except HoldfastError as error:
            self._break(str(error))
            return
        except asyncio.CancelledError:
            return  # The connection is no longer wanted.
        finally:
            call.drop()
        if not self._succession.answered(through, now_ms()):
            self._break(f"it holds the log through record {through}, and was sent others")

    def _break(self, why: str) -> None:
        self.why = why
        self.broken.set()
