"""From object id to slot.

Ids are dense, so pages of slots indexed by the id take 4 bytes an object where a dict takes 106. A page without
a live object is dropped; pages are small, so that a few long-lived objects do not keep much behind them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from holdfast.ids import ObjectId

PAGE_BITS = 10
_PAGE = 1 << PAGE_BITS
_MASK = _PAGE - 1
_EMPTY = array("i", [-1]) * _PAGE


class IdIndex:
    __slots__ = ("_live", "_pages")

    def __init__(self) -> None:
        self._pages: dict[int, array[int]] = {}
        self._live: dict[int, int] = {}

    def slot_of(self, oid: ObjectId) -> int:
        page = self._pages.get(oid >> PAGE_BITS)
        return -1 if page is None else page[oid & _MASK]

    def slots_of(self, ids: Iterable[ObjectId]) -> list[int]:
        pages = self._pages
        return [-1 if (page := pages.get(oid >> PAGE_BITS)) is None else page[oid & _MASK] for oid in ids]

    def bind_one(self, oid: ObjectId, slot: int) -> None:
        number = oid >> PAGE_BITS
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = _EMPTY[:]
            self._live[number] = 0
        page[oid & _MASK] = slot
        self._live[number] += 1

    def bind(self, first_id: ObjectId, slots: Sequence[int]) -> None:
        """Ids first_id, first_id + 1, ... now live in these slots."""
        done = 0
        while done < len(slots):
            oid = first_id + done
            number, at = oid >> PAGE_BITS, oid & _MASK
            count = min(_PAGE - at, len(slots) - done)
            page = self._pages.get(number)
            if page is None:
                page = self._pages[number] = _EMPTY[:]
                self._live[number] = 0
            page[at : at + count] = array("i", slots[done : done + count])
            self._live[number] += count
            done += count

    def unbind(self, ids: Iterable[ObjectId]) -> None:
        pages, live = self._pages, self._live
        for oid in ids:
            number = oid >> PAGE_BITS
            pages[number][oid & _MASK] = -1
            live[number] -= 1
            if not live[number]:
                del pages[number], live[number]
