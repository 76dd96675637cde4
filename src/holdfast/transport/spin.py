"""Wait for bytes on a blocking stream: busy polling for a while, then sleep.

A reply is often there within microseconds, and a core that went to sleep takes longer to wake than that. So a waiting
caller yields the core and polls again, for a while, before it sleeps (ADR 6). It learns how long: if the last reply
took too long for busy polling, the next one gets only a short try.

It sleeps in `poll`, for bytes to read. A sleeper in the receive call of a Unix stream would also be woken when the peer
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

from holdfast.transport.tls import Stream

AWAKE_SECONDS = 2e-3
"""How long to poll: as long as a master takes for a batch of some hundred keys."""
GLANCE_SECONDS = 100e-6
CROWDED_SECONDS = 300e-6
"""If yielding takes longer than this, the core or the GIL is contended: a peer that answers gives the core back sooner.
Then other work keeps the cores awake, and it is better to sleep and be woken."""
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
