"""The two indexes of the catalogue: from key to slot, and from object id to slot."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import and_, contains, delitem, setitem

import numpy as np
import numpy.typing as npt

from holdfast.ids import ObjectId

SHARDS = 64
_SHARD_MASK = SHARDS - 1
ONE_DICT_KEYS = 1 << 16
ABSENT = -1
_THERE, _GONE = b"\1", b"\0"


class KeyIndex:
    """From key to slot.

    One dict of a million keys stops the process for 65 to 400 ms when it grows; many small ones grow a little at a
    time. So a catalogue begins with one dict, whose lookups take half the time, and moves to many before its growth
    could be noticed. The shard of a key depends on the process's hash seed, so nothing may depend on a shard's order.
    """

    __slots__ = ("_one", "_shards")

    def __init__(self) -> None:
        self._one: dict[str, int] | None = {}
        """All keys, while they are few."""
        self._shards: list[dict[str, int]] = []

    def __len__(self) -> int:
        return len(self._one) if self._one is not None else sum(map(len, self._shards))

    def slot_of(self, key: str) -> int:
        if self._one is not None:
            return self._one.get(key, ABSENT)
        return self._shards[hash(key) & _SHARD_MASK].get(key, ABSENT)

    def slots_of(self, keys: list[str]) -> list[int]:
        if self._one is not None:
            return [*map(self._one.get, keys, repeat(ABSENT))]
        shards = self._shards
        return [shards[h & _SHARD_MASK].get(key, ABSENT) for h, key in zip(map(hash, keys), keys, strict=True)]

    def presence(self, keys: list[str]) -> bytes:
        """One byte per key: 1 if it is bound."""
        one, shards = self._one, self._shards
        if len(keys) == 1:
            key = keys[0]
            return _THERE if key in (shards[hash(key) & _SHARD_MASK] if one is None else one) else _GONE
        if one is not None:
            return bytes(map(one.__contains__, keys))
        # No interpreter step per key: the rest is mostly waiting for memory. The fewer instructions between two
        # lookups, the more lookups the processor overlaps, so all shards are found first.
        return bytes(map(contains, [*self._shards_of(keys)], keys))

    def _shards_of(self, keys: list[str]) -> Iterator[dict[str, int]]:
        return map(self._shards.__getitem__, map(and_, map(hash, keys), repeat(_SHARD_MASK)))

    def bind(self, key: str, slot: int) -> None:
        if self._one is None:
            self._shards[hash(key) & _SHARD_MASK][key] = slot
        else:
            self._one[key] = slot
            if len(self._one) > ONE_DICT_KEYS:
                self._go_over(self._one)

    def bind_many(self, keys: list[str], slots: list[int]) -> None:
        if self._one is not None:
            if len(self._one) + len(keys) <= ONE_DICT_KEYS:
                self._one.update(zip(keys, slots, strict=True))
                return
            self._go_over(self._one)
        assert len(keys) == len(slots), "a slot for each key"
        deque(map(setitem, self._shards_of(keys), keys, slots), maxlen=0)

    def unbind(self, keys: list[str]) -> None:
        dicts = repeat(self._one) if self._one is not None else self._shards_of(keys)
        deque(map(delitem, dicts, keys), maxlen=0)

    def _go_over(self, one: dict[str, int]) -> None:
        """Move from this one dict to many."""
        self._one, self._shards = None, [{} for _ in range(SHARDS)]
        self.bind_many(list(one), list(one.values()))


PAGE_BITS = 10
_PAGE = 1 << PAGE_BITS
_PAGE_MASK = _PAGE - 1
_EMPTY = array("i", [-1]) * _PAGE
MANY = 512
"""From this many ids on, look them up by array operations."""
MOST_AT_ONCE = 8192
"""The most ids per array operation: each may be in a page of its own, which is copied."""


class IdIndex:
    """From object id to slot.

    Ids are dense, so pages of slots indexed by the id take 4 bytes per object where a dict takes 106. A page without a
    live object is dropped; pages are small, so that a few long-lived objects do not hold much memory.
    """

    __slots__ = ("_live", "_pages")

    def __init__(self) -> None:
        self._pages: dict[int, array[int]] = {}
        self._live: dict[int, int] = {}

    def slot_of(self, oid: ObjectId) -> int:
        page = self._pages.get(oid >> PAGE_BITS)
        return -1 if page is None else page[oid & _PAGE_MASK]

    def slots_of(self, ids: Sequence[ObjectId]) -> list[int]:
        if len(ids) >= MANY:
            parts = (ids[first : first + MOST_AT_ONCE] for first in range(0, len(ids), MOST_AT_ONCE))
            return [slot for part in parts for slot in self._slots_of_many(np.array(part, np.uint64))]
        pages = self._pages
        return [-1 if (page := pages.get(oid >> PAGE_BITS)) is None else page[oid & _PAGE_MASK] for oid in ids]

    def bind_one(self, oid: ObjectId, slot: int) -> None:
        number = oid >> PAGE_BITS
        self._page(number)[oid & _PAGE_MASK] = slot
        self._live[number] += 1

    def bind_any(self, ids: npt.NDArray[np.uint64], slots: Sequence[int]) -> None:
        """Bind these ids, in any order, to these slots."""
        at_slots = np.array(slots, np.int32)
        for number, at, chosen in _by_page(ids):
            np.frombuffer(self._page(number), np.int32)[at] = at_slots[chosen]
            self._live[number] += len(at)

    def _page(self, number: int) -> array[int]:
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = _EMPTY[:]
            self._live[number] = 0
        return page

    def bind(self, first_id: ObjectId, slots: Sequence[int]) -> None:
        """Bind ids first_id, first_id + 1, ... to these slots."""
        done = 0
        while done < len(slots):
            oid = first_id + done
            number, at = oid >> PAGE_BITS, oid & _PAGE_MASK
            count = min(_PAGE - at, len(slots) - done)
            self._page(number)[at : at + count] = array("i", slots[done : done + count])
            self._live[number] += count
            done += count

    def _slots_of_many(self, ids: npt.NDArray[np.uint64]) -> list[int]:
        numbers, which = np.unique(ids >> np.uint64(PAGE_BITS), return_inverse=True)
        # Joined, the pages are one column; going page by page would take three times as long.
        column = np.frombuffer(b"".join(map(self._pages.get, numbers.tolist(), repeat(_EMPTY))), np.int32)
        slots: list[int] = column[(which << PAGE_BITS) + (ids & np.uint64(_PAGE_MASK)).astype(np.int64)].tolist()
        return slots

    def _unbind_many(self, ids: npt.NDArray[np.uint64]) -> None:
        pages, live = self._pages, self._live
        for number, at, _ in _by_page(ids):
            live[number] -= len(at)
            if live[number]:
                np.frombuffer(pages[number], np.int32)[at] = -1
            else:
                del pages[number], live[number]

    def unbind(self, ids: Sequence[ObjectId]) -> None:
        if len(ids) >= MANY:
            self._unbind_many(np.array(ids, np.uint64))
            return
        pages, live = self._pages, self._live
        for oid in ids:
            number = oid >> PAGE_BITS
            pages[number][oid & _PAGE_MASK] = -1
            live[number] -= 1
            if not live[number]:
                del pages[number], live[number]


def _by_page(ids: npt.NDArray[np.uint64]) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.intp]]]:
    """Per page: its number, the places in it, and the indices of the ids at those places."""
    order = np.argsort(ids, kind="stable")
    numbers = ids[order] >> np.uint64(PAGE_BITS)
    places = (ids[order] & np.uint64(_PAGE_MASK)).astype(np.int64)
    firsts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()]
    for first, last in zip(firsts, [*firsts[1:], len(ids)], strict=True):
        yield int(numbers[first]), places[first:last], order[first:last]
