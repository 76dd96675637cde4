"""The objects, as columns, and the two indexes into them: from key to slot, and from object id to slot.

A row is a slot; slots are reused. Operations on many objects at once (leases, victims, the digest) are array
operations over the columns; single values go through memoryviews, which are faster than NumPy for that.
`lease_until` and `last_used` are on this process's own clock: soft state, not part of the digest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from holdfast.core.catalogue.growing_array import GrowingArray
from holdfast.core.catalogue.key_arena import KeyArena, pack
from holdfast.core.catalogue.key_index import KeyIndex
from holdfast.ids import LARGE_ALIGN, LARGE_FROM, SMALL_ALIGN, ObjectId, SegmentHandle
from holdfast.instant import Instant

if TYPE_CHECKING:
    from holdfast.core.catalogue.holdings import Holdings
    from holdfast.core.catalogue.key_changes import KeyChanges
    from holdfast.core.catalogue.key_table import KeyTable

Slots = npt.NDArray[np.intp]
Words = npt.NDArray[np.uint64]

LIVE: Final = 1
HARD_PIN: Final = 2
SOFT_PIN: Final = 4
ON_DISK: Final = 8
SEVERAL: Final = 16
"""It has further replicas, in `others`."""
COPYING: Final = 64
"""A node is copying it, so it stays where it is until that ends. Known to the primary alone."""
MASKED: Final = 128
"""Evicted without a record: see `unlogged`. Known to this master alone, in no snapshot and no digest."""

MEMORY: Final = 0
DISK: Final = 1
FIRST_CAPACITY: Final = 1024

_COLUMNS: Final[dict[str, Any]] = {
    "ids": np.uint64,
    "sizes": np.int64,
    "checksums": np.uint64,
    "key_hashes": np.uint64,
    "segments": np.int32,
    "offsets": np.int64,
    "lease_until": np.int64,
    "last_used": np.int64,
    "flags": np.uint8,
    "lessees": np.uint32,
    "renewed": np.uint8,
    "further_wanted": np.uint8,
}
_CELLS: Final = {
    "ids": "id_at",
    "sizes": "size_at",
    "checksums": "checksum_at",
    "key_hashes": "key_hash_at",
    "segments": "segment_at",
    "offsets": "offset_at",
    "lease_until": "lease_at",
    "last_used": "used_at",
    "flags": "flags_at",
    "lessees": "lessee_at",
    "renewed": "renewed_at",
    "further_wanted": "further_wanted_at",
}
"""By column: the name of its memoryview."""


class ReplicaAt(NamedTuple):
    segment: SegmentHandle
    offset: int
    kind: int = MEMORY


def extents_of(sizes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """`ids.extent_of`, for a column."""
    # Alignments are powers of two, so rounding up needs no division, which would take longer than all the rest.
    less_one = aligns_of(sizes) - 1
    rounded: npt.NDArray[np.int64] = (sizes.astype(np.int64) + less_one) & ~less_one
    return rounded


def aligns_of(sizes: npt.NDArray[Any]) -> npt.NDArray[np.int64] | np.int64:
    """Alignment of objects of these sizes: a column, or one number if all are alike."""
    if len(sizes) and int(sizes.max()) < LARGE_FROM:
        return np.int64(SMALL_ALIGN)
    return np.where(sizes >= LARGE_FROM, np.int64(LARGE_ALIGN), np.int64(SMALL_ALIGN))


class Catalogue:
    """Columns, the keys of their rows, and the free rows."""

    ids: Words
    sizes: npt.NDArray[np.int64]
    checksums: Words
    key_hashes: Words
    segments: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    lease_until: npt.NDArray[np.int64]
    last_used: npt.NDArray[np.int64]
    flags: npt.NDArray[np.uint8]
    lessees: npt.NDArray[np.uint32]
    """If a lease is live: the number, by the primary's `Lessees`, of the one client that has all leases; else 0."""
    renewed: npt.NDArray[np.uint8]
    """1 if a lease was given since renewals were last sent to the standbys."""
    further_wanted: npt.NDArray[np.uint8]
    """Number of memory replicas that the put asked for beyond the first: mostly none, which takes no memory."""
    id_at: memoryview
    size_at: memoryview
    checksum_at: memoryview
    key_hash_at: memoryview
    segment_at: memoryview
    offset_at: memoryview
    lease_at: memoryview
    used_at: memoryview
    flags_at: memoryview
    lessee_at: memoryview
    renewed_at: memoryview
    further_wanted_at: memoryview

    def __init__(self) -> None:
        self.keys = KeyArena()
        """The key of each slot, or None."""
        self.by_key = KeyIndex(self.keys)
        self.by_id = IdIndex()
        self.others: dict[int, tuple[ReplicaAt, ...]] = {}
        self.further: Counter[SegmentHandle] = Counter()
        """By segment: how many of the places in `others` lie there."""
        self.soft_pin_until: dict[int, Instant] = {}
        self.lacking: dict[int, None] = {}
        """Slots of objects with fewer memory replicas than wanted, in the order in which they lost them."""
        self.on_disk = 0
        """Number of objects that are on disk only."""
        self.count = 0
        self.longest = 0
        """Size of the largest object that is or was here."""
        self.changes: KeyChanges | None = None
        """Collects the keys that are bound and unbound, if attached."""
        self.key_table: KeyTable | None = None
        """The primary's key table, which clients on its machine read."""
        self.holdings: Holdings | None = None
        """What each tenant holds; None while there are no tenants."""
        self._free: list[int] = []
        self._room = FIRST_CAPACITY
        self._columns = {name: GrowingArray(FIRST_CAPACITY, dtype) for name, dtype in _COLUMNS.items()}
        self._view_columns()

    @property
    def top(self) -> int:
        """Slots from here on were never used."""
        return len(self.keys)

    def _view_columns(self) -> None:
        for name, column in self._columns.items():
            setattr(self, name, column.array)
            setattr(self, _CELLS[name], column.cells)

    def _take_slots(self, count: int) -> list[int]:
        reused = self._free[len(self._free) - count :] if count <= len(self._free) else self._free[:]
        del self._free[len(self._free) - len(reused) :]
        fresh = count - len(reused)
        if not fresh:
            return reused
        first = self.top
        self.keys.extend(fresh)
        if self.top > self._room:
            self._grow(self.top)
        return reused + list(range(first, first + fresh))

    def _grow(self, needed: int) -> None:
        self._room = 1 << (max(needed, 2 * self._room) - 1).bit_length()
        for name, column in self._columns.items():
            delattr(self, name)
            delattr(self, _CELLS[name])
            column.grow(self._room)
        if self.holdings is not None:
            self.holdings.grow(self._room)
        self._view_columns()

    def insert(
        self,
        key: str,
        oid: ObjectId,
        size: int,
        checksum: int,
        segment: SegmentHandle,
        offset: int,
        flags: int,
        now: Instant,
    ) -> int:
        """Insert one new object; its key must be unbound."""
        name = key.encode()
        if self._free:
            slot = self._free.pop()
            self.lease_at[slot] = self.renewed_at[slot] = self.further_wanted_at[slot] = 0
        else:
            slot = self.top
            self.keys.extend(1)
            if slot >= self._room:
                self._grow(slot + 1)
        self.id_at[slot] = oid
        self.size_at[slot] = size
        self.checksum_at[slot] = checksum
        self.key_hash_at[slot] = xxh3_64_intdigest(name)
        self.segment_at[slot] = segment
        self.offset_at[slot] = offset
        self.used_at[slot] = now
        self.flags_at[slot] = flags | LIVE
        if size > self.longest:
            self.longest = size
        self.keys.put(slot, name)
        self.by_key.bind(key, slot)
        self.by_id.bind_one(oid, slot)
        self.count += 1
        if self.changes is not None:
            self.changes.stored([key])
        if self.key_table is not None:
            self.key_table.show_one(slot)
        if self.holdings is not None:
            self.holdings.insert_one(slot, key, size, flags)
        return slot

    def insert_many(
        self,
        keys: list[str],
        first_id: ObjectId,
        sizes: Words,
        checksums: Words,
        segment: SegmentHandle,
        offsets: npt.NDArray[Any],
        flags: int,
        now: Instant,
    ) -> list[int]:
        """Insert many new objects in one segment; the same as `insert` for each."""
        columns: dict[str, npt.NDArray[Any] | int] = {
            "ids": np.arange(first_id, first_id + len(keys), dtype=np.uint64),
            "sizes": sizes,
            "checksums": checksums,
            "segments": segment,
            "offsets": offsets,
            "flags": flags | LIVE,
            "last_used": now,
        }
        slots = self._fill_rows(keys, columns)
        self.by_id.bind(first_id, slots)
        return slots

    def insert_rows(self, keys: list[str], columns: dict[str, npt.NDArray[Any]]) -> list[int]:
        """Insert objects with any ids, as from a snapshot. Keys and ids must be unbound."""
        if not keys:
            return []
        slots = self._fill_rows(keys, columns)
        self.on_disk += int(np.count_nonzero(columns["flags"] & ON_DISK))
        self.by_id.bind_any(columns["ids"].astype(np.uint64), slots)
        return slots

    def _fill_rows(self, keys: list[str], columns: Mapping[str, npt.NDArray[Any] | int]) -> list[int]:
        if not keys:  # A snapshot of an empty catalogue.
            return []
        all_fresh = not self._free
        slots = self._take_slots(len(keys))
        # Rows that were never used lie side by side.
        at = slice(slots[0], slots[0] + len(slots)) if all_fresh else np.array(slots, np.intp)
        if not all_fresh:  # Fresh ones have none, and their pages are taken by the first that has.
            self.lease_until[at] = self.renewed[at] = self.further_wanted[at] = 0
        for name, values in columns.items():
            getattr(self, name)[at] = values
        if keys:
            self.longest = max(self.longest, int(self.sizes[at].max()))
        self.key_hashes[at] = np.fromiter(map(xxh3_64_intdigest, map(str.encode, keys)), np.uint64, len(keys))
        taken = np.array(slots, np.intp)
        self.keys.put_many(taken, pack(keys))
        self.by_key.bind_many(keys, taken)
        self.count += len(keys)
        if self.changes is not None:
            self.changes.stored(keys)
        if self.key_table is not None:
            self.key_table.show(at)
        if self.holdings is not None:
            self.holdings.insert(self, at, keys)
        return slots

    def drop(self, slots: list[int]) -> list[str]:
        """Drop these objects; return their keys. The caller must have dealt with their ranges before."""
        at = np.array(slots, np.intp)
        gone = self.keys.keys_of(at)
        assert all(gone), "an object is dropped once"
        if self.holdings is not None:
            self.holdings.change(self, slots, -1)
        self.by_key.unbind(gone, at)
        self.keys.drop_many(at)
        if self.changes is not None:
            self.changes.removed(gone)
        if self.key_table is not None:
            self.key_table.hide(at)
        if len(slots) == 1:
            self.by_id.unbind((self.id_at[slots[0]],))
            self.on_disk -= self.flags_at[slots[0]] & ON_DISK != 0
        else:
            self.by_id.unbind(self.ids[at].tolist())
            if self.on_disk:
                self.on_disk -= int(np.count_nonzero(self.flags[at] & ON_DISK))
        if self.others or self.soft_pin_until or self.lacking:
            self._drop_extras(at)
        self.flags[at] = 0
        self._free.extend(slots)
        self.count -= len(slots)
        return gone

    def _drop_extras(self, slots: Slots) -> None:
        """Forget what few objects have: further replicas, a soft pin, fewer replicas than wanted."""
        for slot in slots[self.flags[slots] & SEVERAL != 0].tolist():
            self._forget_others(slot)
        if self.soft_pin_until:
            for slot in slots[self.flags[slots] & SOFT_PIN != 0].tolist():
                self.soft_pin_until.pop(slot, None)
        if self.lacking:
            for slot in slots[self.further_wanted[slots] > 0].tolist():
                self.lacking.pop(slot, None)

    def _forget_others(self, slot: int) -> None:
        for place in self.others.pop(slot, ()):
            self.further[place.segment] -= 1

    def replicas(self, slot: int) -> tuple[ReplicaAt, ...]:
        kind = DISK if self.flags_at[slot] & ON_DISK else MEMORY
        first = ReplicaAt(self.segment_at[slot], self.offset_at[slot], kind)
        return (first, *self.others.get(slot, ()))

    def set_replicas(self, slot: int, replicas: tuple[ReplicaAt, ...]) -> None:
        """Set the replicas of an object, memory ones first: readers try them in this order."""
        counted = self.holdings if not self.flags_at[slot] & MASKED else None
        if counted is not None:
            counted.change(self, (slot,), -1)
        replicas = tuple(sorted(replicas, key=lambda place: place.kind))
        first = replicas[0]
        in_memory = sum(place.kind == MEMORY for place in replicas)
        # An object that is on disk only was evicted from memory on purpose.
        if 0 < in_memory <= self.further_wanted_at[slot]:
            self.lacking[slot] = None
        else:
            self.lacking.pop(slot, None)
        self.on_disk += (first.kind == DISK) - (self.flags_at[slot] & ON_DISK != 0)
        flags = self.flags_at[slot] & ~(ON_DISK | SEVERAL)
        self.segment_at[slot] = first.segment
        self.offset_at[slot] = first.offset
        self._forget_others(slot)
        if len(replicas) > 1:
            self.others[slot] = replicas[1:]
            for place in replicas[1:]:
                self.further[place.segment] += 1
            flags |= SEVERAL
        self.flags_at[slot] = flags | (ON_DISK if first.kind == DISK else 0)
        if counted is not None:
            counted.change(self, (slot,), 1)

    def set_pins(self, slots: list[int], pins: int) -> None:
        """Give these objects, none of them masked, these pins (HARD_PIN, SOFT_PIN) in the place of those they have."""
        at = np.array(slots, np.intp)
        if self.holdings is not None:
            self.holdings.change(self, at, -1)
        self.flags[at] = self.flags[at] & ~np.uint8(HARD_PIN | SOFT_PIN) | np.uint8(pins)
        if self.holdings is not None:
            self.holdings.change(self, at, 1)

    def wanted(self, slots: Slots) -> npt.NDArray[np.int64]:
        """The number of memory replicas that the puts of these objects asked for."""
        return self.further_wanted[slots].astype(np.int64) + 1

    def wanted_of(self, slot: int) -> int:
        """Like `wanted`, for one object."""
        return 1 + self.further_wanted_at[slot]

    def find_lacking(self) -> None:
        """Rebuild `lacking` by a pass over all objects."""
        top = self.top
        several = (self.flags[:top] & LIVE != 0) & (self.further_wanted[:top] > 0)
        self.lacking = {}
        for slot in np.flatnonzero(several).tolist():
            in_memory = sum(place.kind == MEMORY for place in self.replicas(slot))
            if 0 < in_memory <= self.further_wanted_at[slot]:
                self.lacking[slot] = None

    def is_visible(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Which of these slots hold an object that is not masked."""
        visible: npt.NDArray[np.bool_] = self.flags[start:stop] & (LIVE | MASKED) == LIVE
        return visible

    def live(self) -> Slots:
        return np.flatnonzero(self.flags[: self.top] & LIVE)

    def on_segment(self, handle: SegmentHandle) -> list[int]:
        """Slots with a replica on this segment."""
        slots: list[int] = self.slots_on(handle).tolist()
        return slots

    def slots_on(self, handle: SegmentHandle) -> Slots:
        """As `on_segment`, as a column."""
        flags = self.flags[: self.top]
        here = (self.segments[: self.top] == handle) & (flags & LIVE != 0)
        if self.further[handle]:
            for slot in np.flatnonzero((flags & SEVERAL != 0) & ~here).tolist():
                here[slot] = any(place.segment == handle for place in self.others.get(slot, ()))
        return np.flatnonzero(here)


PAGE_BITS = 10
_PAGE = 1 << PAGE_BITS
_PAGE_MASK = _PAGE - 1
MANY = 512
"""From this many ids on, look them up by array operations."""
MOST_AT_ONCE = 8192
"""The most ids per array operation: bounds the memory that it takes."""


class IdIndex:
    """From object id to slot.

    Ids are dense, so pages of slots indexed by the id take 4 bytes per object where a dict takes 106. The memory of a
    page without a live object is another page's; they are small, so that a few long-lived objects do not hold much.
    """

    __slots__ = ("_live", "_pages", "_places", "_spare")

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}
        """By number: where it begins in `_places`."""
        self._live: dict[int, int] = {}
        """By number: objects in it."""
        self._places = GrowingArray(_PAGE, np.int32)
        """Slot + 1; 0: no object. The first page is always empty, and stands for all that do not exist."""
        self._spare: list[int] = []
        """Where pages began that do not exist any more; they are empty."""

    def slot_of(self, oid: ObjectId) -> int:
        slot: int = self._places.cells[self._pages.get(oid >> PAGE_BITS, 0) + (oid & _PAGE_MASK)] - 1
        return slot

    def slots_of(self, ids: Sequence[ObjectId]) -> list[int]:
        if len(ids) >= MANY:
            parts = (ids[first : first + MOST_AT_ONCE] for first in range(0, len(ids), MOST_AT_ONCE))
            return [slot for part in parts for slot in self._slots_of_many(np.array(part, np.uint64))]
        pages, cells = self._pages, self._places.cells
        return [cells[pages.get(oid >> PAGE_BITS, 0) + (oid & _PAGE_MASK)] - 1 for oid in ids]

    def _slots_of_many(self, ids: npt.NDArray[np.uint64]) -> list[int]:
        numbers, which = np.unique(ids >> np.uint64(PAGE_BITS), return_inverse=True)
        begins = np.array([*map(self._pages.get, numbers.tolist(), repeat(0))], np.int64)
        places = begins[which] + (ids & np.uint64(_PAGE_MASK)).astype(np.int64)
        slots: list[int] = (self._places.array[places] - 1).tolist()
        return slots

    def bind_one(self, oid: ObjectId, slot: int) -> None:
        number = oid >> PAGE_BITS
        begin = self._page(number)
        self._places.cells[begin + (oid & _PAGE_MASK)] = slot + 1
        self._live[number] += 1

    def bind_any(self, ids: npt.NDArray[np.uint64], slots: Sequence[int]) -> None:
        """Bind these ids, in any order, to these slots."""
        words = np.array(slots, np.int32) + 1
        for number, at, chosen in _by_page(ids):
            begin = self._page(number)
            self._places.array[begin + at] = words[chosen]
            self._live[number] += len(at)

    def bind(self, first_id: ObjectId, slots: Sequence[int]) -> None:
        """Bind ids first_id, first_id + 1, ... to these slots."""
        words = np.array(slots, np.int32) + 1
        done = 0
        while done < len(words):
            oid = first_id + done
            number, at = oid >> PAGE_BITS, oid & _PAGE_MASK
            count = min(_PAGE - at, len(words) - done)
            begin = self._page(number) + at
            self._places.array[begin : begin + count] = words[done : done + count]
            self._live[number] += count
            done += count

    def _page(self, number: int) -> int:
        """Where it begins."""
        begin = self._pages.get(number)
        if begin is None:
            begin = self._spare.pop() if self._spare else (len(self._pages) + 1) * _PAGE
            room = len(self._places.cells)
            if begin >= room:
                self._places.grow(room + max(room // 4 & -_PAGE, _PAGE))
            self._pages[number], self._live[number] = begin, 0
        return begin

    def unbind(self, ids: Sequence[ObjectId]) -> None:
        if len(ids) >= MANY:
            for number, at, _ in _by_page(np.array(ids, np.uint64)):
                self._places.array[self._pages[number] + at] = 0
                self._unbound(number, len(at))
            return
        for oid in ids:
            number = oid >> PAGE_BITS
            self._places.cells[self._pages[number] + (oid & _PAGE_MASK)] = 0
            self._unbound(number, 1)

    def _unbound(self, number: int, count: int) -> None:
        self._live[number] -= count
        if not self._live[number]:
            self._spare.append(self._pages.pop(number))
            del self._live[number]
        if not self._pages and len(self._spare) > 1:
            self._places = GrowingArray(_PAGE, np.int32)
            self._spare = []


def _by_page(ids: npt.NDArray[np.uint64]) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.intp]]]:
    """Per page: its number, the places in it, and the indices of the ids at those places."""
    order = np.argsort(ids, kind="stable")
    numbers = ids[order] >> np.uint64(PAGE_BITS)
    places = (ids[order] & np.uint64(_PAGE_MASK)).astype(np.int64)
    firsts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()]
    for first, last in zip(firsts, [*firsts[1:], len(ids)], strict=True):
        yield int(numbers[first]), places[first:last], order[first:last]
