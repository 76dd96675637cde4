"""Busy polling before sleeping, on both ends of a connection (ADR 6).

A reply is often there within microseconds, the next request follows at once, and a core that went to sleep takes longer
to wake than that, with cold caches. So a caller that waits for a reply yields the core and polls again, for a while,
before it sleeps (`SpinThenPoll`), and a loop that has just sent one does not sleep for a moment (`BusyPoll`). On a
crowded machine, where yielding the core takes long, both sleep as usual: other processes keep the cores awake.

A caller learns how long to poll: if the last reply took too long for it, the next one gets only a short try. It sleeps
in `poll`, for bytes to read. A sleeper in the receive call of a Unix stream would also be woken when the peer
has read the request: twice per reply, and the first time it would take the core from the very peer that is about to
answer.
"""

from __future__ import annotations

import math
import os
import select
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.instant import now_seconds
from holdfast.transport.tls import Stream

if TYPE_CHECKING:
    import asyncio

AWAKE_SECONDS = 2e-3
"""How long to poll: as long as a master takes for a batch of some hundred keys."""
GLANCE_SECONDS = 100e-6
CROWDED_SECONDS = 300e-6
"""If yielding takes longer than this, the core or the GIL is contended: a peer that answers gives the core back sooner.
Then other work keeps the cores awake, and it is better to sleep and be woken."""
LOOP_CROWDED_SECONDS = 30e-6
"""The same for a loop that serves: if yielding takes longer than this, another process used the core. A woken process
gets the core sooner than one that yields it and waits for the others' whole time slices."""
UNCROWDED_SECONDS = 0.02
"""How long there is no busy polling after a poll during which another process took the core."""

_clock = time.clock_gettime
_BOOTTIME = time.CLOCK_BOOTTIME
_give_way = os.sched_yield


class SpinThenPoll:
    """Receives on one stream, for one caller at a time."""

    __slots__ = ("_awake_seconds", "_crowded_until", "_into", "_poll", "_sleep_ms")

    def __init__(self, stream: Stream, sleep_seconds: float) -> None:
        self._into = stream.recv_into
        self._sleep_ms = sleep_seconds * 1000
        self._awake_seconds = GLANCE_SECONDS
        self._crowded_until = 0.0
        self._poll: Callable[[float], object]
        if isinstance(stream, socket.socket):
            poll = select.poll()
            poll.register(stream.fileno(), select.POLLIN)
            self._poll = poll.poll
        else:
            # Decrypted bytes may be there when the kernel has none: only the stream itself knows, so it waits itself.
            self._crowded_until = math.inf
            self._poll = bool

    def receive(self, space: memoryview, now: float) -> int:
        """How many bytes came; 0 at the end of the stream. BlockingIOError: none came within the sleep time."""
        poll = self._poll
        if now < self._crowded_until:
            if poll(self._sleep_ms):
                return self._into(space)
            raise BlockingIOError("nothing came in time")
        began = looked = _clock(_BOOTTIME)
        until = began + self._awake_seconds
        there: object = False
        while looked <= until and not there:
            _give_way()
            there = poll(0)
            before, looked = looked, _clock(_BOOTTIME)
            if looked - before > CROWDED_SECONDS:
                self._crowded_until = looked + UNCROWDED_SECONDS
                break
        if not (there or poll(self._sleep_ms)):
            self._awake_seconds = GLANCE_SECONDS
            raise BlockingIOError("nothing came in time")
        late = not there and _clock(_BOOTTIME) - began > AWAKE_SECONDS
        self._awake_seconds = GLANCE_SECONDS if late else AWAKE_SECONDS
        return self._into(space)


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
            if now_seconds() - now < LOOP_CROWDED_SECONDS:
                self._loop.call_soon(self._look)
            else:
                self._loop.call_later(UNCROWDED_SECONDS, self._rest)
        else:
            self._rest()

    def _rest(self) -> None:
        self._idle = True
