"""A number for every byte of a segment, kept by ranges: whose it was last, or since when proofs for it are good."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class RangeMap:
    """A piecewise constant function of the offset. A lookup is a binary search; a change moves what is behind it."""

    __slots__ = ("_starts", "_values")

    def __init__(self, value: int) -> None:
        """`value`: of all bytes at first."""
        self._starts = [0]
        self._values = [value]

    def __len__(self) -> int:
        """How many ranges it keeps; neighbours differ."""
        return len(self._starts)

    def over(self, offset: int, length: int) -> list[int]:
        """The values in this range, which is not empty, in order of offset."""
        first = bisect_right(self._starts, offset) - 1
        return self._values[first : bisect_left(self._starts, offset + length)]

    def put(self, offset: int, length: int, value: int) -> None:
        starts, values = self._starts, self._values
        end = offset + length
        first, last = bisect_left(starts, offset), bisect_right(starts, end)
        before = values[first - 1] if first else None
        behind = values[last - 1]
        put = [(at, each) for at, each, left in ((offset, value, before), (end, behind, value)) if each != left]
        starts[first:last] = [at for at, _ in put]
        values[first:last] = [each for _, each in put]

    def coarsened(self) -> RangeMap:
        """Half as many ranges: of two neighbours, both have the higher value."""
        pairs = range(0, len(self._starts), 2)
        coarse = RangeMap(0)
        coarse._starts = [self._starts[at] for at in pairs]
        coarse._values = [max(self._values[at : at + 2]) for at in pairs]
        return coarse

    def copy(self) -> RangeMap:
        copied = RangeMap(0)
        copied._starts, copied._values = self._starts.copy(), self._values.copy()
        return copied
