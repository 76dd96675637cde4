"""The clock of the shells, and how far the clocks of two machines may be trusted to agree.

Core code never reads a clock: it is given `now`, in milliseconds. CLOCK_BOOTTIME goes on while the machine sleeps,
which CLOCK_MONOTONIC does not; a lease must not outlive a sleep. The simulator has a clock for each process and selects
it with `read_from`.

Drift (ADR 42): two clocks run at most 1% apart, and a promise given on one and relied on by the other is safe if both
sides together allow for twice that (I2, I4, I12). Either both do, 1% each: the side that was given the promise counts
the `shortened` time, and the one that gave it the `lengthened` time. Or the giver counts the plain time, and the side
that was given the promise relies on `RELIED_SHARE` of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

Instant: TypeAlias = int
"""Milliseconds on this machine's own clock. Never sent to another process (I16); durations are."""
Clock: TypeAlias = Callable[[], float]
"""Reads a clock, in seconds."""
ReadNs: TypeAlias = Callable[[], int]

DRIFT_PERCENT: Final = 1
RELIED_SHARE: Final = 1 - 2 * DRIFT_PERCENT / 100
ROUNDING_MS: Final = 3
"""Both clocks are read in whole milliseconds, three times in all between a promise and its end."""

SYSTEM_CLOCK: ReadNs = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
_read_ns: ReadNs = SYSTEM_CLOCK


def read_from(source: ReadNs) -> None:
    """Read the time, in nanoseconds, from this source from now on."""
    global _read_ns
    _read_ns = source


def now_ns() -> int:
    return _read_ns()


def now_ms() -> Instant:
    return _read_ns() // 1_000_000


def now_seconds() -> float:
    return _read_ns() * 1e-9


def drift_of(ms: int) -> int:
    """The most by which this duration may differ on another clock, rounded up."""
    return -(-ms * DRIFT_PERCENT // 100)


def shortened(ms: int) -> int:
    """For the side that was given a promise: the time it may rely on, if the giver lengthens its own."""
    return ms - drift_of(ms)


def lengthened(ms: int) -> int:
    """For the side that gave the promise: the time before which it must not act on the end."""
    return ms + drift_of(ms) + ROUNDING_MS


def relied_on(duration: float) -> float:
    """For the side that was given a promise whose giver counts the plain time."""
    return duration * RELIED_SHARE


def calendar_seconds() -> float:
    """Seconds since 1970, for dates that people write down. It jumps when the clock is set: no decision of the
    protocol may depend on it."""
    return time.time()
