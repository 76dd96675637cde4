"""Unlogged evictions: objects that are still in the catalogue but hidden from every reader.

If evictions are not logged, the catalogue still holds the evicted objects, equal on every master (I5), and each master
has a mask of its own beside it. On a primary a masked object's memory is free: a grant over it records in the log that
its old content is gone, before anything is written there (I9), and a put, removal or replacement under its key names
it too, so that it cannot come back on another master (I7). On a standby the mask is a guess of what the primary
evicted; a renewal unmasks the object, a promotion by a guess unmasks all, and any other promotion logs the evictions
that are left.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from holdfast.core.catalogue.catalogue import LIVE, MASKED, Catalogue, Slots
from holdfast.core.catalogue.key_index import ABSENT
from holdfast.ids import SegmentHandle, extent_of


class EvictionMask:
    __slots__ = ("_by_key", "_slot_at", "_starts")

    def __init__(self) -> None:
        self._by_key: dict[str, int] = {}
        self._starts: dict[SegmentHandle, list[int]] = {}
        """Per segment: sorted offsets of masked replicas."""
        self._slot_at: dict[SegmentHandle, dict[int, int]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, catalogue: Catalogue, slots: Slots) -> list[str]:
        """Mask these objects; return their keys."""
        if catalogue.holdings is not None:
            catalogue.holdings.change(catalogue, slots, -1)
        keys = catalogue.keys.keys_of(slots)
        assert all(keys), "only an object that is there is masked"
        fresh: dict[SegmentHandle, list[int]] = {}
        for key, slot in zip(keys, slots.tolist(), strict=True):
            self._by_key[key] = slot
            for place in catalogue.replicas(slot):
                fresh.setdefault(place.segment, []).append(place.offset)
                self._slot_at.setdefault(place.segment, {})[place.offset] = slot
        catalogue.by_key.unbind(keys, slots)
        catalogue.flags[slots] |= MASKED
        if catalogue.key_table is not None:
            catalogue.key_table.hide(slots)
        for handle, offsets in fresh.items():
            starts = self._starts.setdefault(handle, [])
            starts += offsets
            starts.sort()
        return keys

    def release(self, catalogue: Catalogue, slots: list[int]) -> list[int]:
        """Unmask those of these objects that are masked; return their slots."""
        if not self._by_key:
            return []
        flags = catalogue.flags_at
        masked = [slot for slot in slots if flags[slot] & MASKED]
        for slot in masked:
            key = catalogue.keys[slot]
            assert key is not None, "a masked object is in the catalogue"
            del self._by_key[key]
            catalogue.by_key.bind(key, slot)
            flags[slot] &= ~MASKED
            if catalogue.key_table is not None:
                catalogue.key_table.show_one(slot)
            for place in catalogue.replicas(slot):
                self._forget_place(place.segment, place.offset)
        if catalogue.holdings is not None:
            catalogue.holdings.change(catalogue, masked, 1)
        return masked

    def clear(self, catalogue: Catalogue) -> None:
        """Unmask all objects, in one pass: `release` would search the sorted places for each."""
        if not self._by_key:
            return
        slots = self.slots()
        catalogue.by_key.bind_many([*self._by_key], np.array([*self._by_key.values()], np.intp))
        catalogue.flags[slots] ^= MASKED
        if catalogue.key_table is not None:
            catalogue.key_table.show(slots)
        if catalogue.holdings is not None:
            catalogue.holdings.change(catalogue, slots, 1)
        self._by_key.clear()
        self._starts.clear()
        self._slot_at.clear()

    def _forget_place(self, handle: SegmentHandle, offset: int) -> None:
        places = self._slot_at.get(handle)
        if places is None or places.pop(offset, None) is None:
            return
        starts = self._starts[handle]
        del starts[bisect_left(starts, offset)]

    def forget_segment(self, handle: SegmentHandle) -> None:
        """Drop a segment that is unmounted."""
        self._starts.pop(handle, None)
        self._slot_at.pop(handle, None)

    def slot_of(self, key: str) -> int:
        return self._by_key.get(key, ABSENT)

    def slots_under(self, keys: list[str]) -> list[int]:
        """Masked objects that have one of these keys."""
        by_key = self._by_key
        return [by_key[key] for key in keys if key in by_key] if by_key else []

    def slots(self) -> Slots:
        return np.array(sorted(self._by_key.values()), np.intp)

    def over(self, catalogue: Catalogue, handle: SegmentHandle, offset: int, length: int) -> list[int]:
        """Masked objects with any part of a replica in this range."""
        starts = self._starts.get(handle)
        if not starts:
            return []
        places = self._slot_at[handle]
        first = bisect_right(starts, offset)
        if first:
            # Masked ranges do not overlap: of those that begin before the range, only the last may reach into it.
            before = starts[first - 1]
            if before + extent_of(catalogue.size_at[places[before]]) > offset:
                first -= 1
        return [places[start] for start in starts[first : bisect_left(starts, offset + length)]]


def lying_in(catalogue: Catalogue, handle: SegmentHandle, offset: int, length: int) -> list[int]:
    """All objects with any part of a replica in this range, by one pass over a column."""
    top = catalogue.top
    reach = extent_of(max(1, catalogue.longest))
    # As unsigned, an offset before the window is a very large number, so one comparison checks both bounds.
    within = (catalogue.offsets[:top] - (offset - reach)).view(np.uint64) < np.uint64(length + reach)
    near = np.flatnonzero(within)
    near = near[(catalogue.segments[near] == handle) & ((catalogue.flags[near] & LIVE) != 0)]
    found = {slot for slot in near.tolist() if catalogue.offset_at[slot] + extent_of(catalogue.size_at[slot]) > offset}
    for slot, places in catalogue.others.items():
        extent = extent_of(catalogue.size_at[slot])
        if any(p.segment == handle and p.offset < offset + length and p.offset + extent > offset for p in places):
            found.add(slot)
    return sorted(found)
