"""Runs operations as asyncio tasks, all over one connection to the leading master: the twin of `thread_line`."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from holdfast.errors import HoldfastError, Unreachable
from holdfast.instant import now_seconds
from holdfast.messages.requests import Hello
from holdfast.messages.shapes import Message
from holdfast.operations.effects import Call, Effect, LeaveMaster, Operation, Pause, Sleep, Work
from holdfast.operations.masters import Masters, Round
from holdfast.session.thread_line import CLOSED_TEXT, CONNECT_SECONDS
from holdfast.transport.async_channel import AsyncChannel
from holdfast.transport.timeouts import SILENCE_SECONDS

T = TypeVar("T")


class TaskLine:
    """Make and use it in one event loop; `rouse` may be called from any thread."""

    def __init__(self, masters: Masters, hello: Hello, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._masters = masters
        self._hello = hello
        self._silence_seconds = silence_seconds
        self._dialing = asyncio.Lock()
        self._pauses: dict[asyncio.Event, None] = {}
        self._channel: AsyncChannel | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()

    def rouse(self) -> None:
        """Have every paused operation check its condition."""
        self._loop.call_soon_threadsafe(self._rouse)

    def _rouse(self) -> None:
        for roused in self._pauses:
            roused.set()

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Close the connection: every call, now and later, fails."""
        self._closed = True
        self._rouse()
        if self._channel is not None:
            self._channel.close()

    async def run(self, operation: Operation[T]) -> T:
        used: AsyncChannel | None = None
        try:
            effect = next(operation)
            while True:
                try:
                    result: Any = None
                    if isinstance(effect, Call):
                        used = await self._connected(effect)
                        result = await used.call(effect.message, effect.deadline)
                    elif isinstance(effect, LeaveMaster):
                        self._leave(used, effect.hint)
                    else:
                        result = await self._do(effect)
                except HoldfastError as error:
                    effect = operation.throw(error)
                else:
                    effect = operation.send(result)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            operation.close()

    async def _do(self, effect: Effect) -> object:
        if isinstance(effect, Work):
            return await asyncio.to_thread(effect.run) if effect.bulk else effect.run()
        if isinstance(effect, Pause):
            await self._pause(effect)
            return None
        assert not isinstance(effect, Message | Sleep), "a line is told by when, and how to be woken"
        return None

    async def _pause(self, pause: Pause) -> None:
        ends_at = now_seconds() + pause.seconds
        roused = asyncio.Event()
        self._pauses[roused] = None
        try:
            while not self._closed and not pause.until():
                roused.clear()
                try:
                    await asyncio.wait_for(roused.wait(), max(0.0, ends_at - now_seconds()))
                except TimeoutError:
                    return
        finally:
            del self._pauses[roused]

    def _leave(self, used: AsyncChannel | None, hint: str) -> None:
        self._masters.failed()
        self._masters.hinted(hint)
        if used is not None and self._channel is used:
            self._channel = None
        if used is not None:
            used.close()

    async def _connected(self, call: Call) -> AsyncChannel:
        channel = self._channel
        if channel is not None and not channel.closed:
            return channel
        if not call.dial:
            raise Unreachable("there is no connection; nothing was sent")
        async with self._dialing:
            channel = self._channel
            if channel is not None and not channel.closed:
                return channel
            self._channel = await self._dial(min(call.deadline, now_seconds() + CONNECT_SECONDS))
            return self._channel

    async def _dial(self, deadline: float) -> AsyncChannel:
        last: HoldfastError = Unreachable("no master is known; nothing was sent")
        known = self._masters
        masters = Round(await asyncio.to_thread(known.candidates) if known.looks_up else known.candidates())
        while not self.is_closed() and (address := masters.next()) is not None:
            try:
                channel = await AsyncChannel.open(address, self._hello, deadline, self._silence_seconds)
            except HoldfastError as error:
                last = error
                masters.hinted(error.hint)
                continue
            if not self.is_closed():
                return channel
            channel.close()
        raise Unreachable(CLOSED_TEXT) if self.is_closed() else last
