"""Free memory of one segment: allocate and free offsets in constant time.

Free blocks are indexed by exact size, so that a hole that fits exactly is found first, and the existing sizes by size
class, sixteen classes per power of two (two-level segregated fit). A bitmap, one Python integer, tells which classes
are not empty. Two dicts, by a block's start and by its end, find the free neighbours to join with. Large batches of
freed ranges wait in the reserve, as arrays, until an allocation needs their size; no block in the dicts touches one in
the reserve. Only free space is described: everything else is used, which is why any part of an allocation can be freed
separately (I9: used and free partition the segment exactly).

Large objects need 4 KiB alignment. Large allocations cut aligned blocks from the front and small ones from the
back, so that the blocks for large ones keep their alignment, and nothing is lost to padding. Internally, everything is
counted in units of 64 bytes: multiples of 64 would collide as keys of a dict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.core.space.free_arrays import UNIT_BITS, UNIT_MASK, Column, Ranges, Reserve, joined, ranges_in_units
from holdfast.ids import LARGE_ALIGN, SMALL_ALIGN

_PAGE_MASK = LARGE_ALIGN // SMALL_ALIGN - 1
"""In units. A large object can begin where a block begins on a page; any other block loses up to this to padding."""
_STEP_BITS = 4
_LOOKED_AT = 256
"""Holes examined, before giving up, in the classes where some fit and some do not."""
RESERVE_BATCH = 256
RESERVE_FROM = 16_384
"""Use the reserve only from this many free ranges in all: fewer of them stay in the processor's cache, and are quicker
to find in dicts."""
_RESERVE_SHIFT = 7
"""Add a batch to the reserve only if it is at least 1/128 of it: adding costs a full pass over the arrays."""
_DICTS_SHIFT = 2
"""Use the reserve only if it would hold at least 1/4 as many ranges as the dicts: otherwise most neighbours would have
to be fetched from the dicts."""

OrderedSet = dict[int, None]
"""A set that is iterated in order of insertion, whatever the hash seed."""


def class_of(units: int) -> int:
    """The size class of blocks of this size."""
    shift = units.bit_length() - 1 - _STEP_BITS
    return (shift << _STEP_BITS) + (units >> shift) if shift > 0 else units


def class_that_fits(units: int) -> int:
    """The first size class in which every block is at least this large."""
    shift = units.bit_length() - 1 - _STEP_BITS
    if shift <= 0:
        return units
    units += (1 << shift) - 1
    shift = units.bit_length() - 1 - _STEP_BITS
    return (shift << _STEP_BITS) + (units >> shift)


class Allocator:
    """Free space of [0, size_bytes). The same calls in the same order give the same offsets."""

    __slots__ = ("_classes", "_filled", "_reserve", "_size_at", "_start_of", "_starts", "free_bytes", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        if size_bytes <= 0 or size_bytes & UNIT_MASK:
            raise ValueError(f"a segment of {size_bytes} bytes: a positive multiple of {SMALL_ALIGN} is needed")
        units = size_bytes >> UNIT_BITS
        self.size_bytes = size_bytes
        self.free_bytes = size_bytes
        self._reserve = Reserve(np.zeros(1, np.int64), np.full(1, units, np.int64))
        self._size_at: dict[int, int] = {}
        self._start_of: dict[int, int] = {}
        # Both are indexed by key: twice the size of a block, plus one if it begins on a page.
        self._starts: dict[int, OrderedSet] = {}
        self._classes: list[OrderedSet] = [{} for _ in range(class_of(units) + 1)]
        self._filled = 0

    @classmethod
    def rebuild(cls, size_bytes: int, offsets: NDArray[Any], sizes: NDArray[Any]) -> Allocator:
        """An allocator in which exactly these ranges are used; ValueError names the first invalid range."""
        self = cls(size_bytes)
        if len(offsets):
            starts, ends = ranges_in_units(offsets, sizes, size_bytes)
            gap_starts = np.append(0, ends)
            gap_ends = np.append(starts, size_bytes >> UNIT_BITS)
            is_gap = gap_starts != gap_ends
            self._reserve = Reserve(gap_starts[is_gap], gap_ends[is_gap])
            self.free_bytes -= int((ends - starts).sum()) << UNIT_BITS
        return self

    @property
    def used_bytes(self) -> int:
        return self.size_bytes - self.free_bytes

    @property
    def largest_free(self) -> int:
        """Exact size of the largest free block. (One that does not begin on a page holds less at page alignment.)"""
        largest = max(self._classes[self._filled.bit_length() - 1]) >> 1 if self._filled else 0
        return max(largest, self._reserve.longest()) << UNIT_BITS

    def alloc(self, size: int, align: int = SMALL_ALIGN) -> int | None:
        """Allocate `size` bytes (a multiple of 64) and return the offset; None if no free block can hold them."""
        if size <= 0 or size & UNIT_MASK:
            raise ValueError(f"cannot allocate {size} bytes: sizes are positive multiples of {SMALL_ALIGN}")
        if align != SMALL_ALIGN and align != LARGE_ALIGN:
            raise ValueError(f"cannot align to {align}: {SMALL_ALIGN} and {LARGE_ALIGN} are known")
        units = size >> UNIT_BITS
        key = self._exact(units, align)
        if key is None and (brought := self._reserve.take_fitting(units, align // SMALL_ALIGN - 1)) is not None:
            self._bring(*brought)
            key = self._exact(units, align)
        if key is None:
            return self._alloc_part(units, align)
        starts = self._starts[key]
        start, _ = starts.popitem()
        if not starts:
            self._forget(key)
        del self._size_at[start]
        del self._start_of[start + units]
        self.free_bytes -= size
        return start << UNIT_BITS

    def alloc_at(self, block: int, offset: int, size: int) -> None:
        """Allocate [offset, offset + size), which lies in the free block that begins at `block`; ValueError, and
        nothing changed, if there is no such block or it is too short."""
        start, first, end = block >> UNIT_BITS, offset >> UNIT_BITS, (offset + size) >> UNIT_BITS
        if start not in self._size_at and (number := self._reserve.beginning_at(start)) is not None:
            self._fetch((number,))
        units = self._size_at.get(start, 0)
        if not start <= first < end <= start + units or (block | offset | size) & UNIT_MASK:
            raise ValueError(f"[{offset}, {offset + size}) is not in a free block that begins at {block}")
        self._withdraw(start, units)
        del self._size_at[start], self._start_of[start + units]
        if start < first:
            self._add(start, first - start)
        if end < start + units:
            self._add(end, start + units - end)
        self.free_bytes -= size

    def free(self, offset: int, size: int) -> None:
        """Free [offset, offset + size), all or part of an allocation.

        A double free that begins or ends where a free block does raises ValueError and changes nothing; one in the
        middle of a free block that is not in the reserve is not detected here (that would need a search) but by
        `check`.
        """
        if size <= 0 or offset < 0 or offset + size > self.size_bytes or (offset | size) & UNIT_MASK:
            raise ValueError(self._refusal(offset, offset + size, "is not a range of this segment"))
        start = offset >> UNIT_BITS
        end = start + (size >> UNIT_BITS)
        touching = self._reserve.touching(start, end)
        is_free = start in self._size_at or end in self._start_of or self.free_bytes + size > self.size_bytes
        if touching is None or is_free:
            raise ValueError(self._refusal(offset, offset + size, "is free already"))
        self.free_bytes += size
        self._fetch(touching)
        self._enter((start,), (end,))

    def free_many(self, offsets: NDArray[Any], sizes: NDArray[Any]) -> None:
        """Free all of these ranges. Ranges that touch are freed as one, so a contiguous batch costs one free.

        ValueError, and nothing changed, if they overlap each other or one of them is found to be free already.
        """
        if len(offsets) == 0:
            return
        starts, ends = ranges_in_units(offsets, sizes, self.size_bytes)
        freed = int((ends - starts).sum()) << UNIT_BITS
        if self.free_bytes + freed > self.size_bytes:
            first, last = int(starts[0]) << UNIT_BITS, int(ends[-1]) << UNIT_BITS
            raise ValueError(self._refusal(first, last, "holds ranges that are free already"))
        self._refuse_double_free(starts, ends)
        self.free_bytes += freed
        starts, ends = joined(starts, ends)
        if self._is_for_reserve(len(starts)):
            self._put_by(starts, ends)
        else:
            self._fetch(self._reserve.touching_any(starts, ends))
            self._enter(starts.tolist(), ends.tolist())

    def cut_off(self, limit: int) -> None:
        """Stop allocating at `limit` or beyond. Ranges in use there must not be freed later."""
        first = limit >> UNIT_BITS
        self.free_bytes -= self._reserve.cut_off(first) << UNIT_BITS
        for start, units in list(self._size_at.items()):
            if start + units <= first:
                continue
            self._withdraw(start, units)
            del self._size_at[start], self._start_of[start + units]
            kept = max(0, first - start)
            if kept:
                self._add(start, kept)
            self.free_bytes -= (units - kept) << UNIT_BITS

    def free_ranges(self) -> list[tuple[int, int]]:
        """Every free block as (offset, size), in order of offset. For tests and diagnosis: it sorts them all."""
        starts, ends = (column.tolist() for column in self._reserve.ranges())
        waiting = ((start, end - start) for start, end in zip(starts, ends, strict=True))
        blocks = sorted([*self._size_at.items(), *waiting])
        return [(start << UNIT_BITS, units << UNIT_BITS) for start, units in blocks]

    def free_columns(self) -> Ranges:
        """Starts and ends of the free blocks, in bytes and in no order."""
        starts, ends = self._reserve.ranges()
        in_dicts = np.fromiter(self._size_at, np.int64, len(self._size_at))
        sizes = np.fromiter(self._size_at.values(), np.int64, len(self._size_at))
        starts, ends = np.append(starts, in_dicts), np.append(ends, in_dicts + sizes)
        return starts << UNIT_BITS, ends << UNIT_BITS

    def check(self) -> None:
        """AssertionError unless free space is consistent: no blocks touch, indexes agree, sizes add up (I9)."""
        last_end = -SMALL_ALIGN
        for offset, size in self.free_ranges():
            at = f"the free block at {offset}"
            assert offset > last_end, f"{at} overlaps or touches the one that ends at {last_end}"
            assert 0 < size <= self.size_bytes - offset, f"{at} leaves the segment"
            last_end = offset + size
        for start, units in self._size_at.items():
            key = _key_of(start, units)
            at = f"the free block at {start << UNIT_BITS}"
            assert self._start_of.get(start + units) == start, f"{at} is not found by its end"
            assert start in self._starts.get(key, ()), f"{at} is not found by its size"
            assert key in self._classes[class_of(units)], f"{at} has a size that is in no class"
        offered = sum(map(len, self._starts.values()))
        assert offered == len(self._size_at) == len(self._start_of), "something is offered that is not free"
        assert all(self._starts.values()), "a size is kept that no free block has"
        assert sum(map(len, self._classes)) == len(self._starts), "a class holds a size that no free block has"
        assert sum(size for _, size in self.free_ranges()) == self.free_bytes, "the free bytes do not sum up"
        filled = sum(1 << number for number, keys in enumerate(self._classes) if keys)
        assert filled == self._filled, "the bitmap does not match the classes"

    def _is_for_reserve(self, count: int) -> bool:
        """Should a batch of this many freed ranges go to the reserve?"""
        in_dicts, in_reserve = len(self._size_at), len(self._reserve)
        if count < max(RESERVE_BATCH, in_reserve >> _RESERVE_SHIFT):
            return False
        waiting = in_reserve + count
        return in_reserve > in_dicts or (waiting + in_dicts >= RESERVE_FROM and waiting >= in_dicts >> _DICTS_SHIFT)

    def _refuse_double_free(self, starts: Column, ends: Column) -> None:
        """ValueError if one of these ranges is found to be free already."""
        size_at, start_of = self._size_at, self._start_of
        free = self._reserve.overlapped(starts, ends)
        if not (size_at.keys().isdisjoint(starts.tolist()) and start_of.keys().isdisjoint(ends.tolist())):
            runs = zip(starts.tolist(), ends.tolist(), strict=True)
            free += [number for number, (start, end) in enumerate(runs) if start in size_at or end in start_of]
        if free:
            start, end = int(starts[free[0]]), int(ends[free[0]])
            raise ValueError(self._refusal(start << UNIT_BITS, end << UNIT_BITS, "is free already"))

    def _put_by(self, starts: Column, ends: Column) -> None:
        """Move these ranges, and the free blocks that touch them, into the reserve."""
        size_at, start_of = self._size_at, self._start_of
        touched = {start_of[end] for end in start_of.keys() & starts.tolist()} | (size_at.keys() & ends.tolist())
        blocks = [(start, start + size_at.pop(start)) for start in sorted(touched)]
        for start, end in blocks:
            del start_of[end]
            self._withdraw(start, end - start)
        if blocks:
            further = np.array(blocks, np.int64)
            starts, ends = np.append(starts, further[:, 0]), np.append(ends, further[:, 1])
        self._reserve.add(starts, ends)

    def _fetch(self, numbers: Iterable[int]) -> None:
        """Move these ranges out of the reserve, because a range that touches them is freed or they are allocated."""
        for start, end in self._reserve.take(numbers):
            self._add(start, end - start)

    def _enter(self, run_starts: Sequence[int], run_ends: Sequence[int]) -> None:
        """Make free blocks of these ranges, each joined with the free blocks that touch it. None of those is in the
        reserve."""
        # No calls in the common case: small batches spend much of their time in this loop.
        size_at, start_of, starts_by_key = self._size_at, self._start_of, self._starts
        for start, end in zip(run_starts, run_ends, strict=True):
            before = start_of.pop(start, None)
            if before is not None:
                key = (start - before) << 1 if before & _PAGE_MASK else (start - before) << 1 | 1
                starts = starts_by_key[key]
                del starts[before]
                if not starts:
                    self._forget(key)
                start = before
            units = size_at.pop(end, None)
            if units is not None:
                key = units << 1 if end & _PAGE_MASK else units << 1 | 1
                starts = starts_by_key[key]
                del starts[end]
                if not starts:
                    self._forget(key)
                end += units
            units = end - start
            size_at[start] = units
            start_of[end] = start
            key = units << 1 if start & _PAGE_MASK else units << 1 | 1
            if key in starts_by_key:
                starts_by_key[key][start] = None
            else:
                self._offer(start, units)

    def _exact(self, units: int, align: int) -> int | None:
        """The key of holes of exactly this size. A small allocation prefers one off a page: a large object may need to
        begin on the page."""
        key = units << 1
        if align == SMALL_ALIGN and key in self._starts:
            return key
        return key | 1 if key | 1 in self._starts else None

    def _alloc_part(self, units: int, align: int) -> int | None:
        """Cut the range from a larger block, whose rest stays free."""
        found = self._take(units, 0 if align == SMALL_ALIGN else _PAGE_MASK)
        if found is None:
            return None
        start, block = found
        size_at, start_of = self._size_at, self._start_of
        left = block - units
        self.free_bytes -= units << UNIT_BITS
        if align == SMALL_ALIGN:
            del start_of[start + block]
            self._add(start, left)
            return (start + left) << UNIT_BITS
        pad = -start & _PAGE_MASK
        del size_at[start]
        if pad:
            self._add(start, pad)
        left -= pad
        end = start + pad + units
        if left:
            self._add(end, left)
        else:
            del start_of[end]
        return (start + pad) << UNIT_BITS

    def _take(self, units: int, mask: int) -> tuple[int, int] | None:
        """Withdraw a larger free block that can hold the range, aligned by the mask; return (start, size)."""
        sure = class_that_fits(units + mask)
        above = self._filled >> sure
        if not above:
            return self._take_by_search(units, mask, sure)
        number = sure + (above & -above).bit_length() - 1
        # popitem, because iterating to the last item of a dict walks over the entries deleted there.
        keys = self._classes[number]
        key, _ = keys.popitem()
        starts = self._starts[key]
        start, _ = starts.popitem()
        if starts:
            keys[key] = None
        else:
            del self._starts[key]
            if not keys:
                self._filled ^= 1 << number
        return start, key >> 1

    def _take_by_search(self, units: int, mask: int, below: int) -> tuple[int, int] | None:
        """Like `_take`, in the few classes where some blocks fit and some do not. A last resort, so it is bounded."""
        looked_at = 0
        for number in range(class_of(units), min(below, len(self._classes))):
            for key in self._classes[number]:
                for start in self._starts[key]:
                    if (-start & mask) + units <= key >> 1:
                        self._withdraw(start, key >> 1)
                        return start, key >> 1
                    looked_at += 1
                    if looked_at == _LOOKED_AT:
                        return None
                    if key >> 1 < units:
                        break
        return None

    def _add(self, start: int, units: int) -> None:
        self._size_at[start] = units
        self._start_of[start + units] = start
        self._offer(start, units)

    def _offer(self, start: int, units: int) -> None:
        key = units << 1 if start & _PAGE_MASK else units << 1 | 1
        starts = self._starts.get(key)
        if starts is not None:
            starts[start] = None
            return
        self._starts[key] = {start: None}
        shift = units.bit_length() - 1 - _STEP_BITS
        number = (shift << _STEP_BITS) + (units >> shift) if shift > 0 else units
        keys = self._classes[number]
        if not keys:
            self._filled |= 1 << number
        keys[key] = None

    def _withdraw(self, start: int, units: int) -> None:
        key = units << 1 if start & _PAGE_MASK else units << 1 | 1
        starts = self._starts[key]
        del starts[start]
        if not starts:
            self._forget(key)

    def _forget(self, key: int) -> None:
        """Remove the key: no free block has this size any longer."""
        del self._starts[key]
        number = class_of(key >> 1)
        keys = self._classes[number]
        del keys[key]
        if not keys:
            self._filled ^= 1 << number

    def _bring(self, starts: Column, ends: Column) -> None:
        """Make free blocks of these ranges, which come sorted from the reserve and touch no other block."""
        start_list = starts.tolist()
        sizes = ends - starts
        self._size_at.update(zip(start_list, sizes.tolist(), strict=True))
        self._start_of.update(zip(ends.tolist(), start_list, strict=True))
        keys = sizes << 1 | ((starts & _PAGE_MASK) == 0)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        firsts = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist()]
        in_order = starts[order].tolist()
        for key, first, last in zip(keys[firsts].tolist(), firsts, [*firsts[1:], len(in_order)], strict=True):
            self._offer(in_order[first], key >> 1)
            self._starts[key].update(dict.fromkeys(in_order[first + 1 : last]))

    def _refusal(self, start: int, end: int, why: str) -> str:
        return f"[{start}, {end}) of {self.size_bytes} {why}; nothing was freed"


def _key_of(start: int, units: int) -> int:
    return units << 1 if start & _PAGE_MASK else units << 1 | 1
