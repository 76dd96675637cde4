"""Grants: memory that a writer may fill; and quarantine: memory that waits for its writer to finish or die.

A range has one writer. It is free again when that writer says so or is gone, never by a clock (I11): a paused process
that goes on after an hour must still be writing to memory that nobody else was given.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.ids import GrantId, ObjectId, SegmentHandle
from holdfast.messages.shapes import Range


class IntervalSet:
    """Disjoint intervals [start, end) of non-negative integers, kept sorted; those that touch are joined.

    A grant uses one to know which parts its commits cover, and so which are left to give back when it ends (I9). Grants
    are filled from the front, so nearly every `add` only moves the end of the last interval, and the set stays one
    interval long; anything else costs a binary search.
    """

    __slots__ = ("_ends", "_starts", "total")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.total = 0
        """Number of integers in the intervals."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._starts, self._ends, strict=True))

    def __repr__(self) -> str:
        return f"IntervalSet({list(self)})"

    def add(self, start: int, end: int) -> None:
        """Take [start, end). ValueError, and nothing changed, if it is empty or any of it is taken."""
        starts, ends = self._starts, self._ends
        if ends and start == ends[-1] and end > start:
            ends[-1] = end
            self.total += end - start
            return
        if start < 0 or end <= start:
            raise ValueError(f"[{start}, {end}) is not an interval; nothing was added")
        at = bisect_right(starts, start)
        if (at and ends[at - 1] > start) or (at < len(starts) and starts[at] < end):
            raise ValueError(f"[{start}, {end}) overlaps what is taken already; nothing was added")
        self.total += end - start
        joins_left = at > 0 and ends[at - 1] == start
        joins_right = at < len(starts) and starts[at] == end
        if joins_left and joins_right:
            del starts[at], ends[at - 1]
        elif joins_left:
            ends[at - 1] = end
        elif joins_right:
            starts[at] = start
        else:
            starts.insert(at, start)
            ends.insert(at, end)

    def overlaps(self, start: int, end: int) -> bool:
        """Is any of [start, end) taken?"""
        at = bisect_right(self._ends, start)
        return start < end and at < len(self._starts) and self._starts[at] < end

    def gaps(self, length: int) -> list[tuple[int, int]]:
        """The parts of [0, length) that are not taken, in order."""
        inside = bisect_left(self._starts, length)
        begins = [0, *self._ends[:inside]]
        stops = [*self._starts[:inside], length]
        return [(begin, stop) for begin, stop in zip(begins, stops, strict=True) if begin < stop]


@dataclass(slots=True)
class Grant:
    """A range of equal length on each of several nodes. Commits take pieces of it, in any order."""

    id: GrantId
    length: int
    ranges: tuple[Range, ...]
    taken: IntervalSet = field(default_factory=IntervalSet)
    commits: dict[int, ObjectId] = field(default_factory=dict)
    """Offset in the grant -> the object committed there: this makes a commit idempotent."""
    wanted: int = 0
    """Replicas that its objects should have, if there are fewer ranges; 0: as many as there are ranges."""
    uncleared: bool = False
    """Bytes of another tenant may lie there."""

    @property
    def left_bytes(self) -> int:
        return self.length - self.taken.total


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Pieces of one segment that are not free yet. Its fields tell what ends it:

    `grant` and `writer`: that writer at that segment's node is gone, or its client says that it is done;
    `grant` without `writer` (TCP): the node has closed the connections of that grant;
    neither: the leases of the objects that were here have ended.
    """

    segment: SegmentHandle
    pieces: tuple[tuple[int, int], ...]
    """(offset in the segment, length)"""
    grant: GrantId | None = None
    writer: int = 0
    moved: ObjectId = 0
    """The object whose replica was here and has moved, so that a reader may go on renewing its lease."""

    @property
    def size_bytes(self) -> int:
        return sum(length for _, length in self.pieces)
