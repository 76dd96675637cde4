"""Busy polling for the next request before sleeping.

The next request often follows at once, and a core that went to sleep takes longer to wake, with cold caches, than most
requests take. So for a moment after each reply the loop does not sleep (ADR 6). On a crowded machine, where yielding
the core takes long, it sleeps as usual: other processes keep the cores awake.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from holdfast.instant import now_seconds
from holdfast.transport.spin import UNCROWDED_SECONDS

CROWDED_SECONDS = 30e-6
"""If yielding takes longer than this, another process used the core: it is contended. Stop spinning and sleep in the
poll: a woken process gets the core sooner than one that yields it and waits for the others' whole time slices."""


class BusyPoll:
    """Keeps a loop awake for `seconds` after each `stay_awake`; not at all if that is 0, or while `may_not` is true."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, may_not: Callable[[], bool]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._may_not = may_not
        self._idle = bool(seconds)
        """Neither polling nor waiting for the machine to be less crowded."""
        self._heard = False
        self._until = 0.0

    def stay_awake(self) -> None:
        """Note that a reply was sent. Reads no clock, because it is called for every reply."""
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
