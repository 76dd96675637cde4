"""Supervised background work: a task or thread that fails is logged once by its name, counted as down, and restarted.

The life of one piece of work, a task or a thread:

1. `keep` or `keep_thread` runs it under its name.
2. It raises: the failure is logged with its traceback, and `down` names it from then on, with the reason.
3. It is started again after a pause that grows with each failure, to at most 5 s. Failures in a row are one outage, and
   are not logged again.
4. It is well again once it reports so (`well`), or has run for 10 s without failing. The next failure is a new outage.
5. It returns or is cancelled: it ends, and is not down.

Health reports (`promotable`, `/readyz`, a node's figures) ask `down`, a function of time, so that no timer can be
missed. An error of the supervised work never reaches the code beside it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.instant import now_seconds

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("holdfast.supervisor")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
STEADY_SECONDS = 2 * LONGEST_PAUSE_SECONDS
"""Work that has run this long since its last start counts as well, even if it does not report so."""


@dataclass(slots=True)
class _Outage:
    why: str
    pause: float
    """Pause before the next start; twice as long as the one before."""
    started_at: float | None = None
    """When the work was last restarted; None while it waits for a restart."""

    def is_over(self, now: float) -> bool:
        return self.started_at is not None and now - self.started_at >= STEADY_SECONDS


class Supervisor:
    """Runs the background work of one process or client, and knows which of it is down. Usable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outages: dict[str, _Outage] = {}

    def down(self) -> dict[str, str]:
        """Name -> reason, for all work that has failed and is not well again."""
        now = now_seconds()
        with self._lock:
            return {name: outage.why for name, outage in self._outages.items() if not outage.is_over(now)}

    def failed(self, name: str, error: BaseException) -> float:
        """Note a failure of this work, and log it if it begins an outage. Return the seconds until the next try."""
        cause = first_cause(error)
        why = str(cause) if isinstance(cause, HoldfastError | OSError) and str(cause) else repr(cause)
        now = now_seconds()
        with self._lock:
            outage = self._outages.get(name)
            is_new = outage is None or outage.is_over(now)
            pause = FIRST_PAUSE_SECONDS if outage is None or is_new else outage.pause
            self._outages[name] = _Outage(why, min(2 * pause, LONGEST_PAUSE_SECONDS))
        if is_new:
            expected = isinstance(cause, HoldfastError | OSError)
            log.error(
                "%s failed and is tried again until it works: %s", name, why, exc_info=None if expected else error
            )
            if not expected:
                self.found_defect(name, cause)
        return pause

    def found_defect(self, name: str, error: BaseException) -> None:
        """Note an unforeseen failure, a defect. The simulator ends the run at one."""

    def well(self, name: str) -> None:
        """Report that the work got through a round, and so is not down."""
        if name not in self._outages:
            return
        with self._lock:
            outage = self._outages.pop(name, None)
        if outage is not None:
            log.warning("%s works again", name)

    def _started(self, name: str) -> None:
        with self._lock:
            if (outage := self._outages.get(name)) is not None:
                outage.started_at = now_seconds()

    def _ended(self, name: str) -> None:
        with self._lock:
            self._outages.pop(name, None)

    async def keep(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Run this until it returns or is cancelled; restart it whenever it fails."""
        import asyncio  # Blocking clients have threads only, and it takes longer to import than many a command.

        try:
            while True:
                try:
                    await work()
                except Exception as error:
                    if isinstance(error.__context__, GeneratorExit):
                        raise  # It is being closed with its loop, which did not run to its end.
                    pause = self.failed(name, error)
                else:
                    return
                await asyncio.sleep(pause)
                self._started(name)
        finally:
            self._ended(name)

    def keep_thread(self, name: str, work: Callable[[], object], stops: Callable[[float], bool]) -> None:
        """Like `keep`, in the calling thread. `stops` waits for the given seconds; True if the work is to end."""
        try:
            while True:
                try:
                    work()
                except Exception as error:  # noqa: BLE001 - it is logged, shown as down, and tried again.
                    pause = self.failed(name, error)
                else:
                    return
                if stops(pause):
                    return
                self._started(name)
        finally:
            self._ended(name)

    def watch(self, name: str, task: asyncio.Task[Any]) -> None:
        """Log the failure of a task that runs once and that nobody awaits."""

        def ended(task: asyncio.Task[Any]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("%s failed: %r", name, error, exc_info=error)
                if not isinstance(error, HoldfastError | OSError):
                    self.found_defect(name, error)

        task.add_done_callback(ended)


def first_cause(error: BaseException) -> BaseException:
    """The first error in a group, however deep."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
