"""Runs operations in an event loop, all over one connection to the primary; long copies and transfers go to threads.

A cancelled operation is ended only when the thread that worked for it has stopped, because ending it gives its grant
back (I11).
"""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from holdfast.errors import HoldfastError, Unreachable
from holdfast.instant import now_seconds
from holdfast.messages.shapes import Message
from holdfast.operations.effects import Ahead, Call, Effect, LeaveMaster, Open, Operation, Pause, Reply, Sleep, Work
from holdfast.operations.link import LATE_TEXT, NOT_CONNECTED_TEXT, USUAL, Caller, LinkOptions, PrimaryLink
from holdfast.operations.masters import Masters
from holdfast.transport.async_channel import AsyncChannel, PendingAsyncCall

T = TypeVar("T")
_SENT = (Message, Call)
OTHER_LOOP_TEXT = (
    "this client belongs to the event loop in which it was connected, and this is another one; nothing was sent. "
    "Connect in the loop that uses it"
)


class TaskRunner(PrimaryLink[AsyncChannel]):
    """Make and use it in one event loop; `rouse` may be called from any thread."""

    def __init__(
        self,
        masters: Masters,
        caller: Caller,
        options: LinkOptions = USUAL,
        threads: ThreadPoolExecutor | None = None,
    ) -> None:
        """`threads` do the long work; without them the loop's own do."""
        super().__init__(masters, caller, options)
        self._dialing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._threads = threads
        self._working: set[asyncio.Future[Any]] = set()
        self._pauses: dict[asyncio.Event, None] = {}

    async def run(self, operation: Operation[T], deadline: float = math.inf) -> T:
        """Run it to its end. No message of it is waited for past the deadline."""
        self.check_loop()
        working: asyncio.Future[Any] | None = None
        channel: AsyncChannel | None = None
        try:
            effect = next(operation)
            while True:
                try:
                    result: object = None
                    if isinstance(effect, _SENT):
                        call = effect if isinstance(effect, Call) else Call(effect, deadline)
                        due = min(deadline, call.deadline)
                        channel = self._open_channel() or await self._dial(due, call.dial)
                        if call.check is not None:
                            call.check()
                        result = await self._send(channel, call.message, due).reply()
                    elif isinstance(effect, Ahead):
                        channel = self._open_channel() or await self._dial(deadline)
                        result = self._send(channel, effect.message, deadline)
                    elif isinstance(effect, Reply):
                        assert isinstance(effect.begun, PendingAsyncCall), "it was begun here"
                        result = await effect.begun.reply()
                    elif isinstance(effect, LeaveMaster):
                        self.leave(channel, effect.hint)
                    elif isinstance(effect, Work) and effect.bulk:
                        working = self._start(effect)
                        result = await self._finish(working, effect.into_caller)
                    else:
                        result = await self._do(effect)
                except HoldfastError as error:
                    effect = operation.throw(error)
                else:
                    effect = operation.send(result)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except BaseException:
            if working is None or working.done():
                operation.close()
            else:
                working.add_done_callback(lambda _: operation.close())
            raise

    def check_loop(self) -> None:
        """Another loop would wait for ever for what this one is to wake."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(OTHER_LOOP_TEXT)

    def rouse(self) -> None:
        """Have every paused operation check its condition."""
        self._loop.call_soon_threadsafe(self._rouse)

    def _rouse(self) -> None:
        for roused in self._pauses:
            roused.set()

    def _send(self, channel: AsyncChannel, message: Message, deadline: float) -> PendingAsyncCall:
        return channel.begin(message, deadline)

    def _start(self, work: Work) -> asyncio.Future[Any]:
        working = self._to_thread(work)
        self._working.add(working)
        working.add_done_callback(self._stopped_working)
        return working

    def _to_thread(self, work: Work) -> asyncio.Future[Any]:
        return self._loop.run_in_executor(self._threads, work.run)

    def _stopped_working(self, working: asyncio.Future[Any]) -> None:
        self._working.discard(working)
        # The exception is retrieved here, because the task that waited for it may have been cancelled.
        if not working.cancelled():
            working.exception()

    async def _finish(self, working: asyncio.Future[Any], into_caller: bool) -> object:
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            while into_caller and not working.done():
                # When this raises, the buffer is the caller's again, so the thread must have stopped using it.
                try:
                    await asyncio.wait([working])
                except asyncio.CancelledError:
                    continue
            raise

    async def _do(self, effect: Effect) -> object:
        if isinstance(effect, Work):
            return effect.run()
        if isinstance(effect, Open):
            options, hello = self._options, self.caller.hello()
            return await AsyncChannel.open(effect.address, hello, effect.deadline, options.silence_seconds, options.tls)
        if isinstance(effect, Pause):
            await self._pause(effect)
        elif isinstance(effect, Sleep):
            # Nothing cuts it short: a task that must end earlier is cancelled.
            await asyncio.sleep(effect.seconds)
            self.caller.check_open()
        return None

    async def _pause(self, pause: Pause) -> None:
        ends_at = now_seconds() + pause.seconds
        roused = asyncio.Event()
        self._pauses[roused] = None
        try:
            while not self.caller.closed and not pause.until():
                roused.clear()
                try:
                    async with asyncio.timeout(
                        max(0.0, ends_at - now_seconds())
                    ):  # `wait_for` may lose a cancellation.
                        await roused.wait()
                except TimeoutError:
                    return
        finally:
            del self._pauses[roused]

    async def _dial(self, deadline: float, may_dial: bool = True) -> AsyncChannel:
        if not may_dial:
            raise Unreachable(NOT_CONNECTED_TEXT)
        try:
            # The task that holds the lock and dials may have more time than this one.
            async with asyncio.timeout(deadline - now_seconds()):
                await self._dialing.acquire()
        except TimeoutError:
            raise Unreachable(LATE_TEXT) from None
        try:
            channel = self._open_channel()
            return channel if channel is not None else await self.run(self.connect(deadline), deadline)
        finally:
            self._dialing.release()
