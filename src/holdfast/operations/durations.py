"""A histogram of durations that costs the hot path two additions.

Bounds are powers of two, so that the bucket of a duration is the number of its bits: there is no search. Prometheus
gets it in its own form when it asks (`cumulative`), and quantiles of it are right within a factor of two.
"""

from __future__ import annotations

LEAST_BITS = 3
"""The first bound is 2**3 = 8 us: a request of one key takes about that."""
MOST_BITS = 24
"""The last bound is 2**24 us, almost 17 s: a call that takes longer has run into its deadline."""
BOUNDS_SECONDS = [(1 << bits) / 1e6 for bits in range(LEAST_BITS, MOST_BITS + 1)]
_SLOTS = 64
"""More bits than any duration in microseconds has."""


class Durations:
    __slots__ = ("_by_bits", "total_ns")

    def __init__(self) -> None:
        self._by_bits = [0] * _SLOTS
        self.total_ns = 0

    def add(self, ns: int) -> None:
        """Count a duration. A clock that went back counts as no time at all."""
        if ns < 0:
            ns = 0
        self._by_bits[(ns // 1000).bit_length()] += 1
        self.total_ns += ns

    @property
    def count(self) -> int:
        return sum(self._by_bits)

    def cumulative(self) -> list[int]:
        """The number of durations below each of `BOUNDS_SECONDS`, and last the number of all."""
        found, below = [], sum(self._by_bits[:LEAST_BITS])
        for bits in range(LEAST_BITS, MOST_BITS + 1):
            below += self._by_bits[bits]
            found.append(below)
        return [*found, self.count]
