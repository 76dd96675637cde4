"""The runner of an asyncio client, and the task that keeps its leases and grants alive."""

from __future__ import annotations

import asyncio
import math
import os
import ssl
import weakref
from concurrent.futures import ThreadPoolExecutor

from holdfast.client.background import ROUND_SECONDS, SHORTEST_PAUSE, keep_once, next_due, pause_until, return_grants
from holdfast.client.blocking_runner import CLOSED_TEXT, CLOSING_SECONDS
from holdfast.client.operations.reservations import abandon_all
from holdfast.client.operations.views import abandon_views
from holdfast.client.state.client import Core
from holdfast.errors import ClientClosed, HoldfastError
from holdfast.operations.link import LinkOptions
from holdfast.operations.masters import Masters
from holdfast.operations.tasks import TaskRunner
from holdfast.supervisor import Supervisor

THREADS = 8


class AsyncRunner(TaskRunner):
    """The runner of one client."""

    def __init__(self, core: Core, masters: Masters, tls: ssl.SSLContext | None = None) -> None:
        self._own_threads = ThreadPoolExecutor(THREADS, "holdfast")
        super().__init__(masters, core, LinkOptions(tls=tls), self._own_threads)
        self._core = core
        self._keeper: asyncio.Task[None] | None = None
        self._keeper_roused = asyncio.Event()
        self._supervisor = Supervisor()
        self._wakes_at = math.inf
        core.keep = self._rouse_keeper
        _runners.add(self)

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
            self.hang_up(CLOSED_TEXT)
            # Unmapping waits for the threads that fill in page tables, so it must not run on the event loop.
            unmapping = self._loop.run_in_executor(self._own_threads, core.bytes.close)
            self._own_threads.shutdown(wait=False)
            await asyncio.shield(unmapping)

    def _rouse_keeper(self, due: float) -> None:
        if self._core.closed:
            return
        if due < self._wakes_at:
            self._keeper_roused.set()
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
            self._keeper_roused.clear()
            self._wakes_at = now + pause
            try:
                async with asyncio.timeout(pause):
                    await self._keeper_roused.wait()
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
