"""The clock of the shells. Core code never reads it: it is given `now`, in milliseconds.

CLOCK_BOOTTIME goes on while the machine sleeps, which CLOCK_MONOTONIC does not; a lease must not outlive a sleep.
The simulator has a clock for each process and selects it with `read_from`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

Instant: TypeAlias = int
"""Milliseconds on this machine's own clock. Never sent to another process (I16); durations are."""
ReadNs: TypeAlias = Callable[[], int]

SYSTEM_CLOCK: ReadNs = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
_read_ns: ReadNs = SYSTEM_CLOCK


def read_from(source: ReadNs) -> None:
    """Read the time, in nanoseconds, from this source from now on."""
    global _read_ns
    _read_ns = source


def now_ms() -> Instant:
    return _read_ns() // 1_000_000


def now_seconds() -> float:
    return _read_ns() * 1e-9
