"""Grants: memory that a writer may fill; and quarantine: memory that waits for its writer to finish or die.

A range has one writer. It is free again when that writer says so or is gone, never by a clock (I11): a paused process
that goes on after an hour must still be writing to memory that nobody else was given.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.core.space.intervals import IntervalSet
from holdfast.ids import GrantId, ObjectId, SegmentHandle
from holdfast.messages.shapes import Range


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
