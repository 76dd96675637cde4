"""A map of the memory: for each part of each segment, the bytes of each kind.

It is counted from the columns in steps of a bounded size, so that other requests have their turn in between: a step
takes 0.2 to 2 ms (`SLOTS_AT_ONCE`), and a million objects take 250 of them. Objects come and go meanwhile, so
that the map is of no single moment: parts of it are a second apart, and it shows no more than the columns do.

Each object counts as one kind: hard-pinned before leased, leased before soft-pinned. Whatever is not counted is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from holdfast.core.catalogue.catalogue import HARD_PIN, LIVE, MASKED, SEVERAL, SOFT_PIN, Slots, extents_of
from holdfast.core.state.grants import Grant, Quarantined
from holdfast.core.state.state import State
from holdfast.instant import Instant

KINDS: Final = ("used", "soft_pinned", "leased", "hard_pinned", "granted", "quarantined")
USED, SOFT, LEASED, HARD, GRANTED, QUARANTINED = range(len(KINDS))
SLOTS_AT_ONCE: Final = 4_096
"""Array operations on so many take 0.2 ms; further replicas are in a dictionary, and take 0.3 us each."""
ENTRIES_AT_ONCE: Final = 512
"""Grants, or entries of the quarantine."""
MOST_PARTS: Final = 256
"""Of one segment."""
MOST_PARTS_IN_ALL: Final = 8_192
"""With more segments than 32, each is shown in fewer parts."""
LEAST_PARTS: Final = 8
MOST_SEGMENTS: Final = MOST_PARTS_IN_ALL // LEAST_PARTS

Numbers = npt.NDArray[np.int64]


class MemorySurvey:
    """The count of one map: call `step` until it returns False, then `found`."""

    def __init__(self, state: State, now: Instant) -> None:
        self._state = state
        self._now = now
        self._segments = sorted(state.memory_segments(), key=lambda one: one.handle)[:MOST_SEGMENTS]
        count = len(self._segments)
        self._parts = max(LEAST_PARTS, min(MOST_PARTS, MOST_PARTS_IN_ALL // max(1, count)))
        self._handles = np.array([one.handle for one in self._segments], np.int64)
        self._widths = np.array([-(-one.size_bytes // self._parts) for one in self._segments], np.int64)
        rows = count * len(KINDS)
        self._pieces = np.zeros(rows * self._parts, np.int64)
        """Bytes in each part of ranges that cover some of it."""
        self._whole = np.zeros(rows * (self._parts + 1), np.int64)
        """Ranges that cover all of a part: +1 at the first such part, -1 behind the last."""
        self._steps = self._all_steps()

    def step(self) -> bool:
        """Count some more. False: that was all."""
        return next(self._steps, None) is not None

    def _all_steps(self) -> Iterator[bool]:
        if not self._segments:
            return
        first = 0
        while first < self._state.catalogue.top:
            self._count_objects(first, min(first + SLOTS_AT_ONCE, self._state.catalogue.top))
            first += SLOTS_AT_ONCE
            yield True
        grants = list(self._state.grants.values())
        for at in range(0, len(grants), ENTRIES_AT_ONCE):
            self._count_ranges([one for grant in grants[at : at + ENTRIES_AT_ONCE] for one in _left(grant)], GRANTED)
            yield True
        waiting = list(self._state.quarantine.values())
        for at in range(0, len(waiting), ENTRIES_AT_ONCE):
            pieces = [piece for entry in waiting[at : at + ENTRIES_AT_ONCE] for piece in _pieces(entry)]
            self._count_ranges(pieces, QUARANTINED)
            yield True

    def _count_objects(self, first: int, stop: int) -> None:
        catalogue = self._state.catalogue
        flags = catalogue.flags[first:stop]
        slots: Slots = first + np.flatnonzero(flags & (LIVE | MASKED) == LIVE)
        flags = catalogue.flags[slots]
        kinds = np.where(flags & SOFT_PIN, SOFT, USED)
        kinds = np.where(catalogue.lease_until[slots] > self._now, LEASED, kinds)
        kinds = np.where(flags & HARD_PIN, HARD, kinds)
        lengths = extents_of(catalogue.sizes[slots])
        self._count(catalogue.segments[slots], catalogue.offsets[slots], lengths, kinds)
        several = np.flatnonzero(flags & SEVERAL)
        if len(several):
            self._count_further(slots[several], lengths[several], kinds[several])

    def _count_further(self, slots: Slots, lengths: Numbers, kinds: npt.NDArray[Any]) -> None:
        """Replicas beyond the first, which are in no column."""
        others = self._state.catalogue.others
        places = [others[slot] for slot in slots.tolist()]
        each = np.fromiter(map(len, places), np.intp, len(places))
        flat = list(chain.from_iterable(places))
        segments = np.fromiter([place[0] for place in flat], np.int64, len(flat))
        offsets = np.fromiter([place[1] for place in flat], np.int64, len(flat))
        self._count(segments, offsets, np.repeat(lengths, each), np.repeat(kinds, each))

    def _count_ranges(self, ranges: list[tuple[int, int, int]], kind: int) -> None:
        """`ranges`: (segment, offset, length)"""
        if ranges:
            segments, starts, lengths = np.array(ranges, np.int64).T
            self._count(segments, starts, lengths, np.full(len(ranges), kind))

    def _count(self, segments: npt.NDArray[Any], starts: Numbers, lengths: Numbers, kinds: npt.NDArray[Any]) -> None:
        # Disks are segments with handles of their own, which are none of these.
        at = np.minimum(np.searchsorted(self._handles, segments), len(self._handles) - 1)
        known = np.flatnonzero((self._handles[at] == segments) & (lengths > 0))
        at, starts, lengths = at[known], starts[known], lengths[known]
        rows, widths, ends = at * len(KINDS) + kinds[known], self._widths[at], starts + lengths
        firsts = np.minimum(starts // widths, self._parts - 1)
        lasts = np.minimum((ends - 1) // widths, self._parts - 1)
        several = firsts < lasts
        in_first = np.where(several, (firsts + 1) * widths - starts, lengths)
        np.add.at(self._pieces, rows * self._parts + firsts, in_first)
        rows, firsts, lasts = rows[several], firsts[several], lasts[several]
        np.add.at(self._pieces, rows * self._parts + lasts, ends[several] - lasts * widths[several])
        np.add.at(self._whole, rows * (self._parts + 1) + firsts + 1, 1)
        np.add.at(self._whole, rows * (self._parts + 1) + lasts, -1)

    def found(self) -> dict[str, Any]:
        """`segments`: each with its node, its size, and the bytes of each kind in each of its parts."""
        shape = (len(self._segments), len(KINDS), self._parts)
        whole = self._whole.reshape(shape[0], shape[1], self._parts + 1).cumsum(axis=2)[:, :, : self._parts]
        cells = self._pieces.reshape(shape) + whole * self._widths.reshape(-1, 1, 1)
        return {
            "kinds": list(KINDS),
            "segments": [
                {
                    "node": segment.name.node,
                    "number": segment.name.number,
                    "size_bytes": segment.size_bytes,
                    "part_bytes": int(width),
                    "parts": {kind: row.tolist() for kind, row in zip(KINDS, of_one, strict=True) if row.any()},
                }
                for segment, width, of_one in zip(self._segments, self._widths, cells, strict=True)
            ],
        }


def _left(grant: Grant) -> Iterator[tuple[int, int, int]]:
    """The ranges of a grant that no commit has taken."""
    for start, end in grant.taken.gaps(grant.length):
        yield from ((place.segment, place.offset + start, end - start) for place in grant.ranges)


def _pieces(entry: Quarantined) -> Iterator[tuple[int, int, int]]:
    return ((entry.segment, offset, length) for offset, length in entry.pieces)
