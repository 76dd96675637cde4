"""Time as the shells read it. Core code never does: it is given `now`, in milliseconds.

CLOCK_BOOTTIME goes on while the machine sleeps, which CLOCK_MONOTONIC does not; a lease must not outlive a nap.
"""

from __future__ import annotations

import time
from typing import TypeAlias

Instant: TypeAlias = int
"""Milliseconds on this machine's own clock. Never sent to another process (I16); durations are."""


def now_ms() -> Instant:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def now_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
