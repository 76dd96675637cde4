"""Which tenants give way: those above their guarantee, the furthest above first, in each the longest unused (ADR 50).

A tenant's surplus is the memory that it holds above its guarantee. Objects are evicted so that the largest surpluses
become equal, from the top down, and no tenant falls below its guarantee: only its own puts may take that from it (I20).
Without tenants nothing of this exists.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from holdfast.core.catalogue.catalogue import Slots
from holdfast.core.catalogue.holdings import Holdings, memory_bytes_of
from holdfast.core.state.state import State

Column = npt.NDArray[np.int64]
NOBODY = -1
_ROUNDS = 16
"""An object that is larger than the rest of its tenant's surplus is passed over, at most this often in one choice."""


class Surplus:
    """Surpluses of all tenants, while objects are chosen to be evicted: what is chosen is taken away from them."""

    __slots__ = ("_chosen", "_column", "_left", "_state")

    def __init__(self, state: State, holdings: Holdings, own: int = NOBODY) -> None:
        """`own`: the tenant whose put asks for the room, if its own objects may leave below its guarantee."""
        self._state = state
        self._column = holdings.column
        self._chosen: Slots = np.zeros(0, np.intp)
        self._left = np.zeros(state.tenants.next_number, np.int64)
        for number, held in holdings.by_number.items():
            kept = state.tenants.of(number).guaranteed_bytes if number != own else 0
            self._left[number] = max(0, held.used_bytes - kept)

    def copy(self) -> Surplus:
        other = object.__new__(Surplus)
        other._state, other._column, other._chosen = self._state, self._column, self._chosen
        other._left = self._left.copy()
        return other

    def spares(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Which of these objects no put of another tenant may evict."""
        spared: npt.NDArray[np.bool_] = (self._left <= 0)[self._column[slots]]
        return spared

    def is_far_above(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Which of these objects are of tenants that are among the furthest above their guarantees."""
        far: npt.NDArray[np.bool_] = (2 * self._left >= self._left.max())[self._column[slots]]
        return far

    def allows(self, slots: Slots) -> bool:
        """May all of these be evicted together?"""
        return bool((self._bytes_of(slots) <= self._left).all())

    def take(self, slots: Slots) -> None:
        """These are evicted."""
        self._left -= self._bytes_of(slots)
        self._chosen = np.union1d(self._chosen, slots)

    def _bytes_of(self, slots: Slots) -> Column:
        """Of those that are not chosen already: an object may lie in the windows of two replicas."""
        slots = np.setdiff1d(slots, self._chosen)
        sizes = memory_bytes_of(self._state.catalogue, slots)
        return np.bincount(self._column[slots], sizes, len(self._left)).astype(np.int64)

    def oldest(self, slots: Slots, need_bytes: int, most: int) -> Slots:
        """Of these objects, which may all be evicted, those to evict until `need_bytes` are free: the oldest use first,
        and at most `most`."""
        chosen: list[Slots] = [slots[:0]]
        for _ in range(_ROUNDS):
            found = self._levelled_oldest(slots, need_bytes, most)
            if not len(found):
                break
            self.take(found)
            chosen.append(found)
            need_bytes -= int(memory_bytes_of(self._state.catalogue, found).sum())
            most -= len(found)
            # One tenant gave less than its part, because its next object is larger than its surplus: others give it.
            slots = np.setdiff1d(slots, found, assume_unique=True)
        return in_order_of_use(self._state, np.concatenate(chosen))

    def _levelled_oldest(self, slots: Slots, need_bytes: int, most: int) -> Slots:
        """The oldest of each tenant's part. Each tenant that has a part gives at least one object."""
        if need_bytes <= 0 or most <= 0:
            return slots[:0]
        numbers = self._column[slots]
        sizes = memory_bytes_of(self._state.catalogue, slots)
        fits = sizes <= self._left[numbers]
        slots, numbers, sizes = slots[fits], numbers[fits], sizes[fits]
        evictable = np.minimum(self._left, np.bincount(numbers, sizes, len(self._left)).astype(np.int64))
        parts = _levelled(self._left, evictable, need_bytes)
        chosen: list[Slots] = [slots[:0]]
        for number in np.flatnonzero(parts).tolist():
            own = numbers == number
            chosen.append(self._oldest_of(slots[own], sizes[own], int(parts[number]), int(self._left[number]), most))
        return in_order_of_use(self._state, np.concatenate(chosen))[:most]

    def _oldest_of(self, slots: Slots, sizes: Column, part: int, left: int, most: int) -> Slots:
        """The oldest of one tenant that free its part, and not more than its surplus."""
        used = self._state.catalogue.last_used[slots]
        if len(slots) > most:
            kept = np.argpartition(used, most - 1)[:most]
            slots, sizes, used = slots[kept], sizes[kept], used[kept]
        order = np.lexsort((self._state.catalogue.ids[slots], used))
        slots, sizes = slots[order], sizes[order]
        chosen: list[Slots] = [slots[:0]]
        for _ in range(_ROUNDS):
            fits = sizes <= left
            slots, sizes = slots[fits], sizes[fits]
            if part <= 0 or not len(slots):
                break
            freed = np.cumsum(sizes)
            count = min(int(np.searchsorted(freed, part)) + 1, int(np.searchsorted(freed, left, "right")))
            chosen.append(slots[:count])
            part, left = part - int(freed[count - 1]), left - int(freed[count - 1])
            slots, sizes = slots[count:], sizes[count:]
        return np.concatenate(chosen)


def in_order_of_use(state: State, slots: Slots) -> Slots:
    return slots[np.lexsort((state.catalogue.ids[slots], state.catalogue.last_used[slots]))]


def _levelled(surplus: Column, evictable: Column, need_bytes: int) -> Column:
    """The part that each tenant gives: whatever it has above one level for all, as far as it is evictable."""
    low, high = 0, int(surplus.max())  # The level is the highest that frees enough; 0 if none does.
    while low < high:
        level = (low + high + 1) // 2
        if int(np.minimum(evictable, (surplus - level).clip(0)).sum()) >= need_bytes:
            low = level
        else:
            high = level - 1
    parts: Column = np.minimum(evictable, (surplus - low).clip(0))
    return parts
