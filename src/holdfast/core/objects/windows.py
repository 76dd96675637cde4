"""Windows: adjacent memory that is freed by evicting the objects in it, where they are worth the least (ADR 28).

A put that finds no free piece of its length does not evict the oldest objects wherever they lie until a piece happens
to form. For each place where a piece could begin, the layout of a segment tells which objects would have to be evicted;
the cheapest place is taken. Nothing in a window may be leased, hard-pinned, copied, granted, quarantined or about to be
lent (I8, I9, I11); soft-pinned objects are in one only if every window of that length has some, and the rules allow it.

The life of a window:
1. Chosen: its free parts leave the allocator, and the whole window is claimed for one grant.
2. Emptied, by at most EVICT_STEP objects per step; the memory they held in the window goes to the claim, never to
   others.
3. Granted: the record of the grant follows those of the evictions in the log, so it vouches for them (I9).
Or given up, because an object in it was leased meanwhile or nobody waits any longer: its memory is lent again.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.core.catalogue.catalogue import LIVE, MASKED, MEMORY, ON_DISK, SEVERAL, SOFT_PIN, Slots, extents_of
from holdfast.core.objects.eviction import must_stay
from holdfast.core.objects.surplus import Surplus
from holdfast.core.primary.primary import Primary
from holdfast.core.rules import EVICT_STEP
from holdfast.core.space.free_arrays import joined
from holdfast.core.state.state import Segment
from holdfast.ids import LARGE_ALIGN, LARGE_FROM, SMALL_ALIGN, SegmentHandle
from holdfast.instant import Instant

Column = npt.NDArray[np.int64]
Hole = tuple[int, int, int]
"""(start of the free block, offset and length of the part of it that lies in the window)"""

_UNIT_BITS = SMALL_ALIGN.bit_length() - 1
_WORTH_BITS = 34
_WORTH_MS = 1_000
"""A unit of memory is worth 2**34 / (1 s + time since its object was used): 2**24 at once, 19 after ten days. A sum
over 16 TiB of it fits into 63 bits."""
_SAVED_BITS = 4
"""An object that is also on a disk is worth a sixteenth: evicting it loses nothing. So is one of a tenant that is
among the furthest above their guarantees."""
MOST_LOOKED_AT = 16_384
"""The most places to compare where a window may begin. If there are more, every second, third ... is compared. Places
are filtered before they are sampled, so that a window is found if there is one."""
MOST_WINDOWS = 256
"""The most windows of one choice."""
_MOST_TRIED = 16 * MOST_WINDOWS
"""The most candidates tried, cheapest first, to find windows that do not overlap: those that begin near each other
mostly do."""


class Window(NamedTuple):
    segment: SegmentHandle
    offset: int
    length: int
    slots: Slots
    """Objects that must be evicted."""
    holes: list[Hole]
    """Its free parts."""
    cost: int
    soft_bytes: int


@dataclass(slots=True)
class Layout:
    """The contents of a segment at one moment, in order of offset; and running sums over it, longer by one."""

    segment: Segment
    starts: Column
    ends: Column
    slots: Slots
    """-1 for anything that is not an object."""
    ids: npt.NDArray[np.uint64]
    limits: Column
    """Start of the first thing, at this place or behind it, that must stay."""
    cost: Column
    soft: Column

    def windows(self, length: int, need_bytes: int = 0, surplus: Surplus | None = None) -> list[Window]:
        """The cheapest window of this length, and further ones that do not overlap, until `need_bytes` would be
        evicted. Empty if there is no window. Their objects are taken from the `surplus` of tenants, if there are any.
        """
        begins = _aligned(np.append(0, self.ends), length)
        fitting = np.flatnonzero(begins + length <= self.limits)
        if not len(fitting):
            return []
        fitting = fitting[:: -(-len(fitting) // MOST_LOOKED_AT)]
        behind = self.starts.searchsorted(begins[fitting] + length)
        cost = self.cost[behind] - self.cost[fitting]
        soft = self.soft[behind] - self.soft[fitting]
        # At equal cost, the object that was put first is evicted first.
        order = np.lexsort((np.append(self.ids, 0)[fitting], cost, soft))
        found: list[Window] = []
        apart = _Apart()
        evicted = victims = 0
        for at in order[:_MOST_TRIED].tolist():
            first, last, begin = int(fitting[at]), int(behind[at]), int(begins[fitting[at]])
            if found and (victims + last - first > EVICT_STEP // 2 or soft[at] > soft[order[0]]):
                break
            if surplus is not None and not surplus.allows(self.slots[first:last]):
                continue
            reach = max(begin + length, int(self.ends[last - 1])) if last > first else begin + length
            if not apart.add(min(begin, int(self.starts[first])) if last > first else begin, reach):
                continue
            found.append(self._window(begin, length, first, last, int(cost[at]), int(soft[at])))
            victims += last - first
            if surplus is not None:
                surplus.take(self.slots[first:last])
            evicted += int((self.ends[first:last] - self.starts[first:last]).sum())
            if evicted >= need_bytes or len(found) == MOST_WINDOWS:
                break
        return found

    def _window(self, begin: int, length: int, first: int, last: int, cost: int, soft_bytes: int) -> Window:
        end = begin + length
        gap_starts = [int(self.ends[first - 1]) if first else 0, *self.ends[first:last].tolist()]
        gap_ends = [*self.starts[first:last].tolist(), int(self.starts[last]) if last < len(self.starts) else end]
        holes = [
            (start, max(start, begin), min(stop, end) - max(start, begin))
            for start, stop in zip(gap_starts, gap_ends, strict=True)
            if min(stop, end) > max(start, begin)
        ]
        return Window(self.segment.handle, begin, length, self.slots[first:last], holes, cost, soft_bytes)


class _Apart:
    """A set of intervals that do not overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> bool:
        """Add the interval; False, and nothing added, if it overlaps one in the set."""
        at = bisect_left(self._starts, start)
        if (at and self._ends[at - 1] > start) or (at < len(self._starts) and self._starts[at] < end):
            return False
        self._starts.insert(at, start)
        self._ends.insert(at, end)
        return True


def layout_of(
    primary: Primary, segment: Segment, now: Instant, soft_too: bool, going: Slots, surplus: Surplus | None = None
) -> Layout:
    """`going`: objects that are evicted anyway, and add no cost."""
    catalogue = primary.state.catalogue
    slots, offsets = _objects_on(primary, segment.handle)
    flags = catalogue.flags[slots]
    stays = must_stay(catalogue, slots, now, soft_too)
    if claimed := [claim.slots for claim in primary.claims.values()]:
        stays |= np.isin(slots, np.concatenate(claimed))
    if surplus is not None:
        stays |= surplus.spares(slots)
    lengths = extents_of(catalogue.sizes[slots])
    copies = catalogue.wanted(slots)
    # As floats: integer division takes ten times as long.
    worth = (2.0**_WORTH_BITS / (_WORTH_MS + np.maximum(now - catalogue.last_used[slots], 0))).astype(np.int64) + 1
    if primary.state.disks():
        worth[(flags & SEVERAL != 0) & (copies == 1)] >>= _SAVED_BITS
    if surplus is not None:
        worth[surplus.is_far_above(slots)] >>= _SAVED_BITS
    cost = (lengths >> _UNIT_BITS) * worth * copies
    soft = np.where(flags & SOFT_PIN != 0, lengths, 0)
    if len(going):
        gone = np.isin(slots, going)
        cost[gone] = soft[gone] = 0
    taken = _taken_on(primary, segment.handle)
    starts = np.append(offsets, taken[:, 0])
    ends = np.append(offsets + lengths, taken[:, 0] + taken[:, 1])
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    stays = np.append(stays, np.ones(len(taken), bool))[order]
    limits = np.append(np.where(stays, starts, segment.usable_bytes), segment.usable_bytes)
    limits = np.minimum.accumulate(limits[::-1])[::-1]
    none = np.zeros(len(taken), np.int64)
    slots = np.append(slots, none - 1)[order]
    primary.remembered_order[segment.handle] = slots[slots >= 0]
    ids = catalogue.ids[slots]  # Arbitrary where there is no object: ids only break ties.
    return Layout(segment, starts, ends, slots, ids, limits, _sums(cost, none, order), _sums(soft, none, order))


def _sums(values: Column, none: Column, order: Slots) -> Column:
    return np.append(0, np.cumsum(np.append(values, none)[order]))


def _objects_on(primary: Primary, handle: SegmentHandle) -> tuple[Slots, Column]:
    """Slots and offsets of the objects in memory of the segment, nearly in the order that the last layout remembered:
    sorting what is already sorted is a hundred times as fast."""
    catalogue = primary.state.catalogue
    top = catalogue.top
    here = (catalogue.segments[:top] == handle) & (catalogue.flags[:top] & (LIVE | MASKED | ON_DISK) == LIVE)
    before = primary.remembered_order.get(handle)
    if before is None or len(before) == 0:
        slots = np.flatnonzero(here)
    else:
        before = before[before < top]
        before = before[here[before]]
        here[before] = False
        slots = np.append(before, np.flatnonzero(here))
    offsets = catalogue.offsets[slots]
    further = [
        (slot, place.offset)
        for slot, places in catalogue.others.items()
        for place in places
        if place.segment == handle and place.kind == MEMORY and not catalogue.flags_at[slot] & MASKED
    ]
    if further:
        more = np.array(further, np.int64)
        slots, offsets = np.append(slots, more[:, 0]), np.append(offsets, more[:, 1])
    return slots, offsets


def _taken_on(primary: Primary, handle: SegmentHandle) -> Column:
    """(offset, length) of each piece that is neither an object nor free."""
    state = primary.state
    taken: list[tuple[int, int]] = []
    for grant in state.grants.values():
        for place in grant.ranges:
            if place.segment == handle:
                taken += [(place.offset + start, end - start) for start, end in grant.taken.gaps(grant.length)]
    for quarantined in state.quarantine.values():
        if quarantined.segment == handle:
            taken += quarantined.pieces
    for claim in primary.claims.values():
        taken += [(offset, length) for segment, offset, length in claim.pieces if segment == handle]
    return np.concatenate([np.array(taken, np.int64).reshape(-1, 2), *_unlent_on(primary, handle)])


def _unlent_on(primary: Primary, handle: SegmentHandle) -> list[Column]:
    return [
        np.column_stack((offsets, lengths))
        for freed in primary.unlent.values()
        for segment, offsets, lengths in freed
        if segment == handle
    ]


def is_coming(primary: Primary, segment: Segment, length: int) -> bool:
    """Will a piece of this length be free once the memory that is about to be lent is free?"""
    unlent = _unlent_on(primary, segment.handle)
    if not unlent:
        return False
    starts, ends = primary.allocators[segment.handle].free_columns()
    pieces = np.concatenate(unlent)
    starts = np.sort(np.append(starts, pieces[:, 0]))
    ends = np.sort(np.append(ends, pieces[:, 0] + pieces[:, 1]))
    starts, ends = joined(starts, ends)
    return bool((_aligned(starts, length) + length <= ends).any())


def _aligned(offsets: Column, length: int) -> Column:
    """Round the offsets up to where something of this length may begin."""
    align = LARGE_ALIGN if length >= LARGE_FROM else SMALL_ALIGN
    return (offsets + (align - 1)) & -align
