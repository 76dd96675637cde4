"""Free ranges of a segment kept as two sorted arrays. Large frees land here cheaply, and move to the allocator's dicts
when an allocation needs their size.

Array operations add many ranges, and join them with those they touch, for a tenth of the cost of entering each into
the dicts; and most ranges that are freed piece by piece have grown together before they are lent again. No two ranges
here overlap or touch. A range that is taken out singly leaves an empty one behind, until the arrays are next rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.ids import SMALL_ALIGN

Column = NDArray[np.int64]
Ranges = tuple[Column, Column]
"""Starts and ends of the ranges."""

UNIT_BITS = SMALL_ALIGN.bit_length() - 1
UNIT_MASK = SMALL_ALIGN - 1
TAKEN_AT_ONCE = 512
_TAKEN_SHIFT = 8
"""Or 1/256 of all ranges, if that is more: each taking is a pass over all of them."""


class Reserve:
    __slots__ = ("_emptied", "_ends", "_longest", "_starts")

    def __init__(self, starts: Column, ends: Column) -> None:
        """The ranges are sorted, and none is empty."""
        self._keep(starts, ends)

    def _keep(self, starts: Column, ends: Column) -> None:
        self._starts = starts
        self._ends = ends
        self._emptied = 0
        self._longest = self.longest()
        """Upper bound: no range is longer."""

    def __len__(self) -> int:
        return len(self._starts) - self._emptied

    def longest(self) -> int:
        """The length of the longest range; 0 if there is none."""
        return int((self._ends - self._starts).max(initial=0))

    def ranges(self) -> Ranges:
        """All ranges, in order."""
        if not self._emptied:
            return self._starts, self._ends
        there = self._starts != self._ends
        return self._starts[there], self._ends[there]

    def add(self, starts: Column, ends: Column) -> None:
        """Add these ranges, in any order; they overlap neither each other nor a range here (see `overlapped`)."""
        own_starts, own_ends = self.ranges()
        # Of ranges that do not overlap, the first to begin is the first to end: each column can be sorted separately.
        starts = np.sort(np.concatenate((own_starts, starts)), kind="stable")
        ends = np.sort(np.concatenate((own_ends, ends)), kind="stable")
        self._keep(*joined(starts, ends))

    def overlapped(self, starts: Column, ends: Column) -> list[int]:
        """Indices of those of these ranges that overlap a range here."""
        near = self._begun(self._ends.searchsorted(starts, side="right"), ends - 1)
        return [each for each in near if self.touching(int(starts[each]), int(ends[each])) is None]

    def touching_any(self, starts: Column, ends: Column) -> list[int]:
        """The numbers of the ranges here that touch one of these; these overlap none."""
        near = self._begun(self._ends.searchsorted(starts), ends)
        return [number for each in near for number in self.touching(int(starts[each]), int(ends[each])) or ()]

    def _begun(self, numbers: Column, places: Column) -> list[int]:
        """Indices of the pairs (number, place) where the range of that number, empty or not, begins by that place."""
        if not len(self._starts):
            return []
        there = np.flatnonzero(numbers < len(self._starts))
        begun: list[int] = there[self._starts[numbers[there]] <= places[there]].tolist()
        return begun

    def touching(self, start: int, end: int) -> list[int] | None:
        """The numbers of the ranges here that touch this one; None if one overlaps it."""
        at = int(self._ends.searchsorted(start))
        found: list[int] = []
        while at < len(self._starts):
            own_start, own_end = int(self._starts[at]), int(self._ends[at])
            if own_start > end:
                break
            if own_start == end or own_end == start:
                found.append(at)
            elif own_start != own_end:
                return None
            at += 1
        return found

    def beginning_at(self, start: int) -> int | None:
        """The number of the range that begins at `start`."""
        at = int(self._starts.searchsorted(start))
        there = at < len(self._starts) and int(self._starts[at]) == start and int(self._ends[at]) != start
        return at if there else None

    def take(self, numbers: Iterable[int]) -> list[tuple[int, int]]:
        """Take out the ranges with these numbers; return them as (start, end)."""
        taken = []
        for at in numbers:
            start, end = int(self._starts[at]), int(self._ends[at])
            if start != end:
                taken.append((start, end))
                self._ends[at] = start
                self._emptied += 1
        return taken

    def take_fitting(self, units: int, mask: int) -> Ranges | None:
        """Take out the shortest ranges that can hold `units`, starting where no bit of the mask is set."""
        if units > self._longest:
            return None
        starts, ends = self.ranges()
        lengths = ends - starts
        fitting = np.flatnonzero(lengths >= units + (-starts & mask))
        if not len(fitting):
            self._keep(starts, ends)
            return None
        most = max(TAKEN_AT_ONCE, len(starts) >> _TAKEN_SHIFT)
        if len(fitting) > most:
            fitting = np.sort(fitting[np.argpartition(lengths[fitting], most)[:most]])
        taken = starts[fitting], ends[fitting]
        left = np.ones(len(starts), bool)
        left[fitting] = False
        self._keep(starts[left], ends[left])
        return taken

    def cut_off(self, limit: int) -> int:
        """Drop everything from `limit` on; return the number of units dropped."""
        starts, ends = self.ranges()
        there = starts < limit
        kept = ends[there].clip(max=limit)
        gone = int((ends - starts).sum() - (kept - starts[there]).sum())
        self._keep(starts[there], kept)
        return gone


def ranges_in_units(offsets: NDArray[Any], sizes: NDArray[Any], size_bytes: int) -> Ranges:
    """Sorted starts and ends, in units; ValueError names the first range that is invalid or overlaps another."""
    starts = np.asarray(offsets).astype(np.int64)
    lengths = np.asarray(sizes).astype(np.int64)
    if not bool((starts[1:] >= starts[:-1]).all()):
        order = np.argsort(starts, kind="stable")
        starts, lengths = starts[order], lengths[order]
    ends = starts + lengths
    bad = (lengths <= 0) | (starts < 0) | (ends > size_bytes) | (((starts | lengths) & UNIT_MASK) != 0)
    bad[1:] |= starts[1:] < ends[:-1]
    if bad.any():
        at = int(bad.argmax())
        raise ValueError(
            f"[{starts[at]}, {ends[at]}) of {size_bytes} overlaps another range or is not inside the segment; "
            "nothing was changed"
        )
    return starts >> UNIT_BITS, ends >> UNIT_BITS


def joined(starts: Column, ends: Column) -> Ranges:
    """Join the ranges that touch. They are sorted, and there is at least one."""
    apart = starts[1:] != ends[:-1]
    return starts[np.append(True, apart)], ends[np.append(apart, True)]
