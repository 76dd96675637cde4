"""The runner of a blocking client, and the thread that keeps its leases and grants alive."""

from __future__ import annotations

import math
import threading
import weakref
from typing import TYPE_CHECKING

from holdfast.client.background import ROUND_SECONDS, SHORTEST_PAUSE, keep_once, next_due, pause_until, return_grants
from holdfast.client.departure import CLOSED_TEXT, forget_all, leave_to_parent_at_fork, retire_grants
from holdfast.client.state.client import Core
from holdfast.errors import ClientClosed, HoldfastError
from holdfast.operations.link import LinkOptions
from holdfast.operations.masters import Masters
from holdfast.operations.threads import ThreadRunner
from holdfast.supervisor import Supervisor

if TYPE_CHECKING:
    import ssl


class Runner(ThreadRunner):
    """The runner of one client."""

    def __init__(self, core: Core, masters: Masters, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(masters, core, LinkOptions(tls=tls))
        self._core = core
        self._closing = threading.Lock()
        self._keeper = Keeper(core, self)
        core.keep = self._keeper.rouse
        leave_to_parent_at_fork(core)

    def close(self) -> None:
        core = self._core
        with self._closing:
            if core.closed:
                return
            self._keeper.stop()
            deadline = retire_grants(core)
            try:
                if self._open_channel() is not None:
                    self.run(return_grants(core, deadline), deadline)
            except HoldfastError:
                # The master is away or refuses. The nodes tell it that this writer is gone.
                pass
            finally:
                forget_all(core)
                core.bytes.close()
                self.hang_up(CLOSED_TEXT)


class Keeper:
    """One daemon thread, which runs only while the client holds something that must be kept alive."""

    def __init__(self, core: Core, runner: Runner) -> None:
        self._core = core
        self._runner = weakref.ref(runner)
        self._lock = threading.Lock()
        self._roused = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._supervisor = Supervisor()
        self._wakes_at = math.inf

    def rouse(self, due: float) -> None:
        """Wake the thread in time for something that is due then."""
        with self._lock:
            if self._thread is not None:
                if due < self._wakes_at:
                    self._roused.set()
            elif not self._stopping.is_set():
                self._thread = threading.Thread(
                    target=self._supervisor.keep_thread,
                    args=("keeper of leases and grants", self._loop, self._stopping.wait),
                    name="holdfast-keeper",
                    daemon=True,
                )
                self._thread.start()

    def stop(self) -> None:
        with self._lock:
            self._stopping.set()
            thread = self._thread
        self._roused.set()
        if thread is not None:
            thread.join(ROUND_SECONDS)

    def _loop(self) -> None:
        while not self._stopping.is_set():
            # Until this thread knows when it will wake, every caller wakes it.
            self._wakes_at = math.inf
            now = self._core.clock()
            due = next_due(self._core, now)
            if due is not None and due <= now:
                if not self._keep(now):
                    return
                pause = SHORTEST_PAUSE
            else:
                pause = pause_until(due, now)
            self._wakes_at = now + pause
            roused = self._roused.wait(pause)
            self._roused.clear()
            if due is None and not roused and self._ended():
                return

    def _keep(self, now: float) -> bool:
        runner = self._runner()
        if runner is None:
            return False
        try:
            runner.run(keep_once(self._core), now + ROUND_SECONDS)
        except ClientClosed:
            return False
        return True

    def _ended(self) -> bool:
        with self._lock:
            if next_due(self._core, self._core.clock()) is not None:
                return False
            self._thread = None
            return True
