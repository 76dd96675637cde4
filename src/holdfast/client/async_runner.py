"""The runner of an asyncio client, and the task that keeps its leases and grants alive."""

from __future__ import annotations

import asyncio
import math
import ssl
from concurrent.futures import ThreadPoolExecutor

from holdfast.client.background import ROUND_SECONDS, SHORTEST_PAUSE, keep_once, next_due, pause_until, return_grants
from holdfast.client.departure import (
    CLOSED_TEXT,
    CLOSING_SECONDS,
    forget_all,
    leave_to_parent_at_fork,
    retire_grants,
)
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
        leave_to_parent_at_fork(core)

    async def close(self) -> None:
        core = self._core
        if core.closed:
            return
        self.check_loop()
        await self._stop_keeper()
        if self._working:
            await asyncio.wait(self._working, timeout=CLOSING_SECONDS)
        deadline = retire_grants(core)
        try:
            if self._open_channel() is not None:
                await self.run(return_grants(core, deadline), deadline)
        except HoldfastError:
            # The master is away or refuses. The nodes tell it that this writer is gone.
            pass
        finally:
            forget_all(core)
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
