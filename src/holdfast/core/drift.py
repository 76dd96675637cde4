"""What two clocks may differ by, so that a promise given on one holds on the other (I4).

A machine's clock is allowed to run 1% faster or slower than another's. Whoever must stop first shortens its time,
whoever acts on the end lengthens its own; each alone would suffice for 1%, both together cover twice that.
"""

from __future__ import annotations

ROUNDING_MS = 3
"""Both clocks are read in whole milliseconds, three times in all between a promise and its end."""


def drift_of(ms: int) -> int:
    """The most that this duration may differ by on another clock, rounded up."""
    return -(-ms // 100)


def shortened(ms: int) -> int:
    """For the side that was promised something: it relies on no more than this."""
    return ms - drift_of(ms)


def lengthened(ms: int) -> int:
    """For the side that promised: it acts on the end no sooner than this."""
    return ms + drift_of(ms) + ROUNDING_MS
