"""Where the free memory of one segment is: alloc and free of offsets in constant time.

Free blocks are kept by their exact size, so that a hole that fits exactly is found first, and the sizes that there
are by size class, sixteen classes to each power of two (two-level segregated fit). A bitmap, one Python integer,
says which classes hold anything. Two dicts, by a block's first and by its last place, find the free neighbours to
join with. Only free space is described: used space is whatever is not free, which is why any part of what was
allocated can be freed by itself (I9: used and free partition the segment exactly).

Large objects need 4 KiB alignment. Large allocations cut aligned blocks from the front and small ones from the
back, so that the blocks that large ones need keep their alignment, and nothing is lost to padding. Inside, all is
counted in units of 64 bytes: as keys of a dict, multiples of 64 would fall on each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.ids import LARGE_ALIGN, SMALL_ALIGN

_UNIT_BITS = SMALL_ALIGN.bit_length() - 1
_UNIT_MASK = SMALL_ALIGN - 1
_PAGE_MASK = LARGE_ALIGN // SMALL_ALIGN - 1
"""In units. A block on a page can begin something large; one off it loses up to this many units to padding."""
_STEP_BITS = 4
_LOOKED_AT = 256
"""Holes looked at, before giving up, in the classes where some fit and some do not."""

OrderedSet = dict[int, None]
"""A set that gives its members back in an order that hash seeds do not matter to."""


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

    __slots__ = ("_classes", "_filled", "_size_at", "_start_of", "_starts", "free_bytes", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        if size_bytes <= 0 or size_bytes & _UNIT_MASK:
            raise ValueError(f"a segment of {size_bytes} bytes: a positive multiple of {SMALL_ALIGN} is needed")
        units = size_bytes >> _UNIT_BITS
        self.size_bytes = size_bytes
        self.free_bytes = size_bytes
        self._size_at: dict[int, int] = {0: units}
        self._start_of: dict[int, int] = {units: 0}
        # Both speak of keys: twice the size of a block, plus one if it begins on a page.
        self._starts: dict[int, OrderedSet] = {}
        self._classes: list[OrderedSet] = [{} for _ in range(class_of(units) + 1)]
        self._filled = 0
        self._offer(0, units)

    @classmethod
    def rebuild(cls, size_bytes: int, offsets: NDArray[Any], sizes: NDArray[Any]) -> Allocator:
        """The allocator in which exactly these ranges are used; ValueError names the first range that cannot be."""
        self = cls(size_bytes)
        if len(offsets):
            starts, ends = _sorted_ranges(offsets, sizes, size_bytes)
            gap_starts = np.concatenate((np.zeros(1, np.int64), ends))
            gap_sizes = np.concatenate((starts, np.array([size_bytes >> _UNIT_BITS]))) - gap_starts
            is_gap = gap_sizes > 0
            self._adopt(gap_starts[is_gap], gap_sizes[is_gap])
        return self

    @property
    def used_bytes(self) -> int:
        return self.size_bytes - self.free_bytes

    @property
    def largest_free(self) -> int:
        """The size of the largest free block, exactly. (A block off a page holds a little less at page alignment.)"""
        if not self._filled:
            return 0
        return (max(self._classes[self._filled.bit_length() - 1]) >> 1) << _UNIT_BITS

    def alloc(self, size: int, align: int = SMALL_ALIGN) -> int | None:
        """The offset of `size` bytes (a multiple of 64) that are now used; None if no free block can hold them."""
        if size <= 0 or size & _UNIT_MASK:
            raise ValueError(f"cannot allocate {size} bytes: sizes are positive multiples of {SMALL_ALIGN}")
        if align != SMALL_ALIGN and align != LARGE_ALIGN:
            raise ValueError(f"cannot align to {align}: {SMALL_ALIGN} and {LARGE_ALIGN} are known")
        units = size >> _UNIT_BITS
        # A hole of exactly this size; a small one rather not on a page, where something large may want to begin.
        key = units << 1
        if align != SMALL_ALIGN:
            key |= 1
        starts = self._starts.get(key)
        if starts is None and align == SMALL_ALIGN:
            key |= 1
            starts = self._starts.get(key)
        if starts is None:
            return self._alloc_part(units, align)
        start, _ = starts.popitem()
        if not starts:
            self._forget(key)
        del self._size_at[start]
        del self._start_of[start + units]
        self.free_bytes -= size
        return start << _UNIT_BITS

    def free(self, offset: int, size: int) -> None:
        """[offset, offset + size), all or part of what was allocated, is free again.

        A double free that begins or ends where a free block does raises ValueError and changes nothing; one in the
        middle of a free block is not seen here (that would need a search) but by `check`.
        """
        if size <= 0 or offset < 0 or offset + size > self.size_bytes or (offset | size) & _UNIT_MASK:
            raise ValueError(self._refusal(offset, offset + size, "is not a range of this segment"))
        size_at, start_of = self._size_at, self._start_of
        start = offset >> _UNIT_BITS
        end = start + (size >> _UNIT_BITS)
        if start in size_at or end in start_of or self.free_bytes + size > self.size_bytes:
            raise ValueError(self._refusal(offset, offset + size, "is free already"))
        self.free_bytes += size
        self._release((start,), (end,))

    def free_many(self, offsets: NDArray[Any], sizes: NDArray[Any]) -> None:
        """Free all of these ranges. Ranges that touch are freed as one, so a batch that lay together costs one free.

        ValueError, and nothing changed, if they overlap each other or one of them is seen to be free already.
        """
        if len(offsets) == 0:
            return
        starts, ends = _sorted_ranges(offsets, sizes, self.size_bytes)
        breaks = np.flatnonzero(starts[1:] != ends[:-1])
        run_starts = starts[np.concatenate((np.zeros(1, np.int64), breaks + 1))].tolist()
        run_ends = ends[np.concatenate((breaks, np.array([len(ends) - 1])))].tolist()
        freed = int((ends - starts).sum()) << _UNIT_BITS
        if self.free_bytes + freed > self.size_bytes:
            first, last = run_starts[0] << _UNIT_BITS, run_ends[-1] << _UNIT_BITS
            raise ValueError(self._refusal(first, last, "holds ranges that are free already"))
        size_at, start_of = self._size_at, self._start_of
        if not (size_at.keys().isdisjoint(run_starts) and start_of.keys().isdisjoint(run_ends)):
            runs = zip(run_starts, run_ends, strict=True)
            start, end = next((start, end) for start, end in runs if start in size_at or end in start_of)
            raise ValueError(self._refusal(start << _UNIT_BITS, end << _UNIT_BITS, "is free already"))
        self.free_bytes += freed
        self._release(run_starts, run_ends)

    def cut_off(self, limit: int) -> None:
        """Nothing at `limit` or beyond is lent any more. What is occupied there must not be freed later."""
        first = limit >> _UNIT_BITS
        for start, units in list(self._size_at.items()):
            if start + units <= first:
                continue
            self._withdraw(start, units)
            del self._size_at[start], self._start_of[start + units]
            kept = max(0, first - start)
            if kept:
                self._size_at[start] = kept
                self._start_of[start + kept] = start
                self._offer(start, kept)
            self.free_bytes -= (units - kept) << _UNIT_BITS

    def free_ranges(self) -> list[tuple[int, int]]:
        """Every free block as (offset, size), in order of offset. For tests and diagnosis: it sorts them all."""
        return sorted((start << _UNIT_BITS, units << _UNIT_BITS) for start, units in self._size_at.items())

    def check(self) -> None:
        """AssertionError unless free space is described consistently: blocks apart, found rightly, summing up (I9)."""
        last_end = -1
        for start in sorted(self._size_at):
            units = self._size_at[start]
            key = _key_of(start, units)
            at = f"the free block at {start << _UNIT_BITS}"
            assert start > last_end, f"{at} overlaps or touches the one that ends at {last_end << _UNIT_BITS}"
            assert 0 < units <= (self.size_bytes >> _UNIT_BITS) - start, f"{at} leaves the segment"
            assert self._start_of.get(start + units) == start, f"{at} is not found by its end"
            assert start in self._starts.get(key, ()), f"{at} is not found by its size"
            assert key in self._classes[class_of(units)], f"{at} has a size that is in no class"
            last_end = start + units
        offered = sum(map(len, self._starts.values()))
        assert offered == len(self._size_at) == len(self._start_of), "something is offered that is not free"
        assert all(self._starts.values()), "a size is kept that no free block has"
        assert sum(map(len, self._classes)) == len(self._starts), "a class holds a size that no free block has"
        assert sum(self._size_at.values()) << _UNIT_BITS == self.free_bytes, "the free bytes do not sum up"
        filled = sum(1 << number for number, keys in enumerate(self._classes) if keys)
        assert filled == self._filled, "the bitmap does not match the classes"

    def _release(self, run_starts: Sequence[int], run_ends: Sequence[int]) -> None:
        """Make free blocks of these ranges, each joined with the free blocks that touch it."""
        # Much of an eviction's time is spent in this loop, so it calls nothing in the common case.
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

    def _alloc_part(self, units: int, align: int) -> int | None:
        """Cut the range from a larger block, whose rest stays free."""
        found = self._take(units, 0 if align == SMALL_ALIGN else _PAGE_MASK)
        if found is None:
            return None
        start, block = found
        size_at, start_of = self._size_at, self._start_of
        left = block - units
        self.free_bytes -= units << _UNIT_BITS
        if align == SMALL_ALIGN:
            del start_of[start + block]
            size_at[start] = left
            start_of[start + left] = start
            self._offer(start, left)
            return (start + left) << _UNIT_BITS
        pad = -start & _PAGE_MASK
        del size_at[start]
        if pad:
            size_at[start] = pad
            start_of[start + pad] = start
            self._offer(start, pad)
        left -= pad
        end = start + pad + units
        if left:
            size_at[end] = left
            start_of[end + left] = end
            self._offer(end, left)
        else:
            del start_of[end]
        return (start + pad) << _UNIT_BITS

    def _take(self, units: int, mask: int) -> tuple[int, int] | None:
        """Withdraw a larger free block that can hold such a range (aligned, by the mask), as (start, size)."""
        sure = class_that_fits(units + mask)
        above = self._filled >> sure
        if not above:
            return self._take_by_search(units, mask, sure)
        number = sure + (above & -above).bit_length() - 1
        # popitem, because looking at the last item of a dict walks over the entries that were deleted there.
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
        """The same in the few classes where some blocks fit and some do not; the last resort, so it is bounded."""
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
        """No free block has this size any more."""
        del self._starts[key]
        number = class_of(key >> 1)
        keys = self._classes[number]
        del keys[key]
        if not keys:
            self._filled ^= 1 << number

    def _adopt(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Make these gaps, in order of offset, all the free blocks there are."""
        start_list = starts.tolist()
        self._size_at = dict(zip(start_list, sizes.tolist(), strict=True))
        self._start_of = dict(zip((starts + sizes).tolist(), start_list, strict=True))
        self.free_bytes = int(sizes.sum()) << _UNIT_BITS
        self._forget(next(iter(self._starts)))
        if not start_list:
            return
        keys = sizes << 1 | ((starts & _PAGE_MASK) == 0)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        firsts = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist()]
        in_order = starts[order].tolist()
        for key, first, last in zip(keys[firsts].tolist(), firsts, [*firsts[1:], len(in_order)], strict=True):
            number = class_of(key >> 1)
            self._starts[key] = dict.fromkeys(in_order[first:last])
            self._classes[number][key] = None
            self._filled |= 1 << number

    def _refusal(self, start: int, end: int, why: str) -> str:
        return f"[{start}, {end}) of {self.size_bytes} {why}; nothing was freed"


def _key_of(start: int, units: int) -> int:
    return units << 1 if start & _PAGE_MASK else units << 1 | 1


def _sorted_ranges(
    offsets: NDArray[Any], sizes: NDArray[Any], size_bytes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts and ends, in units, in order; ValueError names the first range that is no range or overlaps another."""
    starts = np.asarray(offsets).astype(np.int64)
    lengths = np.asarray(sizes).astype(np.int64)
    if not bool((starts[1:] >= starts[:-1]).all()):
        order = np.argsort(starts, kind="stable")
        starts, lengths = starts[order], lengths[order]
    ends = starts + lengths
    bad = (lengths <= 0) | (starts < 0) | (ends > size_bytes) | (((starts | lengths) & _UNIT_MASK) != 0)
    bad[1:] |= starts[1:] < ends[:-1]
    if bad.any():
        at = int(bad.argmax())
        raise ValueError(
            f"[{starts[at]}, {ends[at]}) of {size_bytes} overlaps another range or is not inside the segment; "
            "nothing was changed"
        )
    return starts >> _UNIT_BITS, ends >> _UNIT_BITS
