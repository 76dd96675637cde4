"""Allowance for clock drift, so that a promise given on one machine's clock holds on another's (I4).

A machine's clock may run 1% faster or slower than another's. The side that must stop first shortens its time, and the
side that acts on the end lengthens its own; either would suffice for 1%, both together cover twice that.
"""

from __future__ import annotations

ROUNDING_MS = 3
"""Both clocks are read in whole milliseconds, three times in all between a promise and its end."""


def drift_of(ms: int) -> int:
    """The most by which this duration may differ on another clock, rounded up."""
    return -(-ms // 100)


def shortened(ms: int) -> int:
    """For the side that was given a promise: the time it may rely on."""
    return ms - drift_of(ms)


def lengthened(ms: int) -> int:
    """For the side that gave the promise: the time before which it must not act on the end."""
    return ms + drift_of(ms) + ROUNDING_MS
