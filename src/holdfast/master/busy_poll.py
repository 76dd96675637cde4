"""Looking for the next request before sleeping.

The next one often follows on the heels of the last, and a core that went to sleep takes longer to wake, with cold
caches, than most requests take. So after an answer the loop does not sleep for a moment (ADR 6). In a crowd, where
giving way takes long, it sleeps as usual: then no core sleeps that would have to be woken.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from holdfast.instant import now_seconds
from holdfast.transport.timeouts import UNCROWDED_SECONDS

CROWDED_SECONDS = 30e-6
"""A look that took longer than this gave its core to somebody else. Then no core sleeps that would have to wake, and
who gives way waits for whole turns of the others: it is better to be woken."""


class BusyPoll:
    """Keeps a loop awake for `seconds` after each `heard`; not at all if that is 0, or while `may_not` says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, may_not: Callable[[], bool]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._may_not = may_not
        self._idle = bool(seconds)
        """Neither looking nor in a crowd."""
        self._heard = False
        self._until = 0.0

    def heard(self) -> None:
        """A request was answered. It reads no clock: this is called for each of them."""
        self._heard = True
        if self._idle:
            self._idle = False
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        now = now_seconds()
        if self._heard:
            self._heard = False
            self._until = now + self._seconds
        if now < self._until and not self._may_not():
            os.sched_yield()
            if now_seconds() - now < CROWDED_SECONDS:
                self._loop.call_soon(self._look)
            else:
                self._loop.call_later(UNCROWDED_SECONDS, self._rest)
        else:
            self._rest()

    def _rest(self) -> None:
        self._idle = True
