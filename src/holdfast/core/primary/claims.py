"""Memory that is being emptied for one grant, and that no other grant may use meanwhile (see `windows`)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from holdfast.core.catalogue.catalogue import Slots
from holdfast.core.state.applied import Freed, FreedRanges
from holdfast.ids import SegmentHandle

Piece = tuple[SegmentHandle, int, int]
"""(segment, offset, length)"""


@dataclass(slots=True)
class Claim:
    places: list[tuple[SegmentHandle, int]]
    """(segment, offset) of each window."""
    length: int
    """Length of each window."""
    slots: Slots
    """Objects that lay in the windows when they were chosen; `ids` are theirs."""
    ids: npt.NDArray[np.uint64]
    pieces: list[Piece] = field(default_factory=list)
    """The parts of the windows that are already empty. They are in no allocator."""

    def split(self, freed: Freed) -> tuple[list[Piece], Freed]:
        """Split the ranges into the pieces that lie in the windows, and the rest."""
        inside: list[Piece] = []
        outside: list[FreedRanges] = []
        for segment, offsets, lengths in freed:
            starts, ends = offsets, offsets + lengths
            for handle, offset in self.places:
                if handle != segment:
                    continue
                first, last = starts.clip(min=offset), ends.clip(max=offset + self.length)
                there = last > first
                inside += [
                    (handle, start, end - start)
                    for start, end in zip(first[there].tolist(), last[there].tolist(), strict=True)
                ]
                # A range outside the window stays whole in one of the halves.
                starts = np.concatenate([starts, np.maximum(starts, offset + self.length)])
                ends = np.concatenate([np.minimum(ends, offset), ends])
                kept = ends > starts
                starts, ends = starts[kept], ends[kept]
            if len(starts):
                outside.append((segment, starts, ends - starts))
        return inside, outside

    def missing_bytes(self, inside: list[Piece]) -> int:
        """Bytes of the windows that are neither empty nor in one of these pieces."""
        there = sum(length for _, _, length in self.pieces) + sum(length for _, _, length in inside)
        return self.length * len(self.places) - there

    def freed(self) -> Freed:
        """The empty pieces, as ranges to be lent again."""
        found: list[FreedRanges] = []
        for handle in dict.fromkeys(segment for segment, _, _ in self.pieces):
            here = [(offset, length) for segment, offset, length in self.pieces if segment == handle]
            columns = np.array(here, np.int64)
            found.append((handle, columns[:, 0], columns[:, 1]))
        return found
