"""Runs operations in an event loop: messages go over an asyncio channel, long copies and transfers to threads.

A cancelled operation is ended only when the thread that worked for it has stopped, because ending it gives its grant
back (I11).
"""

from __future__ import annotations

import asyncio
import math
import os
import ssl
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from holdfast.client.background import ROUND_SECONDS, SHORTEST_PAUSE, keep_once, next_due, pause_until, return_grants
from holdfast.client.blocking_runner import CLOSED_TEXT, CLOSING_SECONDS
from holdfast.client.operations.reservations import abandon_all
from holdfast.client.operations.views import abandon_views
from holdfast.client.state.client import Core
from holdfast.errors import ClientClosed, HoldfastError, TryAgain, Unreachable
from holdfast.messages.shapes import Message
from holdfast.operations.effects import Ahead, Checked, Effect, LeaveMaster, Operation, Reply, Sleep, Work
from holdfast.operations.masters import Masters
from holdfast.supervisor import Supervisor
from holdfast.transport.async_channel import AsyncChannel, PendingAsyncCall
from holdfast.transport.key_table import shown_by

T = TypeVar("T")
_SENT = (Message, Checked)

THREADS = 8


class AsyncRunner:
    """The connection of one client, and the task that keeps its leases and grants alive."""

    def __init__(self, core: Core, masters: Masters, tls: ssl.SSLContext | None = None) -> None:
        self._core = core
        self._masters = masters
        self._tls = tls
        self._channel: AsyncChannel | None = None
        self._address = ""
        """The address of the master that welcomed us last."""
        self._dialing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, "holdfast")
        self._working: set[asyncio.Future[Any]] = set()
        self._roused = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._supervisor = Supervisor()
        self._wakes_at = math.inf
        core.keep = self._rouse
        _runners.add(self)

    async def run(self, operation: Operation[T], deadline: float) -> T:
        working: asyncio.Future[Any] | None = None
        channel: AsyncChannel | None = None
        try:
            effect = next(operation)
            while True:
                try:
                    result: object = None
                    if isinstance(effect, _SENT):
                        channel = await self._connected(deadline)
                        due = deadline
                        if isinstance(effect, Checked):
                            effect.check()
                            due = min(deadline, effect.deadline)
                            effect = effect.message
                        result = await self._send(channel, effect, due).reply()
                    elif isinstance(effect, Ahead):
                        channel = await self._connected(deadline)
                        result = self._send(channel, effect.message, deadline)
                    elif isinstance(effect, Reply):
                        assert isinstance(effect.begun, PendingAsyncCall), "it was begun here"
                        result = await effect.begun.reply()
                    elif isinstance(effect, LeaveMaster):
                        self._leave(channel, effect.hint)
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

    def _send(self, channel: AsyncChannel, message: Message, deadline: float) -> PendingAsyncCall:
        return channel.begin(message, deadline)

    def _start(self, work: Work) -> asyncio.Future[Any]:
        working = self._loop.run_in_executor(self._threads, work.run)
        self._working.add(working)
        working.add_done_callback(self._stopped_working)
        return working

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
        if isinstance(effect, Sleep):
            await asyncio.sleep(effect.seconds)
        return None

    def _leave(self, used: AsyncChannel | None, hint: str) -> None:
        """Close the connection, but only the one that the operation itself used: others may have found the next master
        already."""
        if used is self._channel:
            self._masters.failed()
            self._masters.hinted(hint)
        if used is not None:
            used.close()

    async def _connected(self, deadline: float) -> AsyncChannel:
        if self._channel is not None and not self._channel.closed:
            return self._channel
        try:
            # The call that holds the lock and dials may have more time than this one.
            async with asyncio.timeout(deadline - self._core.clock()):
                await self._dialing.acquire()
        except TimeoutError:
            raise Unreachable("no master could be reached before the deadline; nothing was sent") from None
        try:
            return await self._dial(deadline)
        finally:
            self._dialing.release()

    async def _dial(self, deadline: float) -> AsyncChannel:
        """Connect to a master. The caller holds the lock."""
        self._core.check_open()
        channel = self._channel
        if channel is not None and not channel.closed:
            return channel
        last = Unreachable("the deadline passed before a master could be reached; nothing was sent")
        masters = self._masters
        masters.lost(self._address)
        known = (
            await asyncio.to_thread(masters.candidates, deadline - self._core.clock())
            if masters.looks_up
            else masters.candidates()
        )
        for address in known:
            try:
                until = min(deadline, self._core.clock() + masters.patience(address))
                self._channel = await self._nearer(
                    await AsyncChannel.open(address, self._core.hello(), until, tls=self._tls), until
                )
            except TryAgain as error:
                last = Unreachable(str(error))
                masters.failed()
                masters.hinted(error.hint)
                continue
            masters.found()
            self._address = address
            self._core.welcomed(self._channel.welcome)
            if self._core.closed:  # It was closed meanwhile, by a call that did not see this connection.
                self._channel.close()
            self._core.check_open()
            if self._channel.welcome.shown:
                self._core.shown = await self._loop.run_in_executor(self._threads, shown_by, self._channel)
            return self._channel
        raise last

    async def _nearer(self, channel: AsyncChannel, deadline: float) -> AsyncChannel:
        """A connection to the same master through its Unix socket, if it is on this machine."""
        near = self._core.nearer(channel.welcome)
        if not near:
            return channel
        try:
            nearer = await AsyncChannel.open(near, self._core.hello(), deadline)
        except Unreachable:
            # Perhaps another network namespace: keep the TCP connection.
            return channel
        except BaseException:
            channel.close()
            raise
        channel.close()
        return nearer

    async def close(self) -> None:
        core = self._core
        if core.closed:
            return
        await self._stop_keeper()
        if self._working:
            await asyncio.wait(self._working, timeout=CLOSING_SECONDS)
        now = core.clock()
        abandon_all(core)
        core.grants.retire_all(now)
        try:
            if self._channel is not None and not self._channel.closed:
                deadline = now + CLOSING_SECONDS
                await self.run(return_grants(core, deadline), deadline)
        except HoldfastError:
            # The master is away or refuses. The nodes tell it that this writer is gone.
            pass
        finally:
            core.closed = CLOSED_TEXT
            abandon_views(core)
            core.held_leases.clear()
            core.leases.clear()
            core.shown = None
            if self._channel is not None:
                self._channel.close()
            # Unmapping waits for the threads that fill in page tables, so it must not run on the event loop.
            unmapping = self._loop.run_in_executor(self._threads, core.bytes.close)
            self._threads.shutdown(wait=False)
            await asyncio.shield(unmapping)

    def _rouse(self, due: float) -> None:
        if self._core.closed:
            return
        if due < self._wakes_at:
            self._roused.set()
        if self._keeper is None or self._keeper.done():
            self._keeper = self._loop.create_task(self._supervisor.keep("keeper of leases and grants", self._keep))

    async def _stop_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def _keep(self) -> None:
        core = self._core
        while not core.closed:
            self._wakes_at = math.inf
            now = core.clock()
            due = next_due(core, now)
            if due is not None and due <= now:
                try:
                    await self.run(keep_once(core), now + ROUND_SECONDS)
                except ClientClosed:
                    return
                pause = SHORTEST_PAUSE
            else:
                pause = pause_until(due, now)
            self._roused.clear()
            self._wakes_at = now + pause
            try:
                async with asyncio.timeout(pause):
                    await self._roused.wait()
            except TimeoutError:
                if due is None:
                    return

    def leave_to_parent(self) -> None:
        self._core.leave_to_parent()


_runners: weakref.WeakSet[AsyncRunner] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for runner in list(_runners):
        runner.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
