"""The memory and the objects of each tenant, counted as objects come and go (ADR 50).

They exist once there is a tenant: a column of one byte per object (two once there are more than 255 tenants) tells
whose it is, and three sums per tenant follow every change of the catalogue. Objects that this master has masked are not
counted, because their memory is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.core.catalogue.catalogue import HARD_PIN, MEMORY, ON_DISK, SEVERAL, Catalogue, Slots, extents_of
from holdfast.core.catalogue.growing_array import GrowingArray
from holdfast.core.rules import SCALAR_BELOW
from holdfast.ids import (
    FIRST_FREE,
    LARGE_FROM,
    NAMESPACE_CHARACTERS,
    RESERVED,
    SMALL_ALIGN,
    are_of,
    extent_of,
    namespace_of,
    tenant_of,
)

_NOBODYS = RESERVED * NAMESPACE_CHARACTERS
"""No tenant's prefix: it has no digits."""
_NARROW = 256
"""Numbers of tenants below it fit into one byte."""


@dataclass(slots=True)
class Held:
    """What one tenant holds."""

    used_bytes: int = 0
    """Memory of its objects, all replicas together. Disks do not count."""
    objects: int = 0
    pinned_bytes: int = 0
    """Memory of its hard-pinned objects."""


def memory_bytes_of(catalogue: Catalogue, slots: Slots) -> npt.NDArray[np.int64]:
    """The memory that each of these objects takes, all replicas together; 0 for those that are on disks only."""
    sizes = extents_of(catalogue.sizes[slots])
    flags = catalogue.flags[slots]
    sizes[flags & ON_DISK != 0] = 0
    for i in np.flatnonzero(flags & SEVERAL):
        sizes[i] *= sum(place.kind == MEMORY for place in catalogue.replicas(int(slots[i])))
    return sizes


class Holdings:
    __slots__ = ("_last_held", "_last_number", "_last_prefix", "_numbers", "by_number")

    def __init__(self, catalogue: Catalogue) -> None:
        """Count all objects, in one pass."""
        self.by_number: dict[int, Held] = {}
        self._last_prefix, self._last_number, self._last_held = _NOBODYS, 0, Held()
        """The tenant of the object that was inserted last, if not the default one: mostly it is the next one's."""
        numbers = [0 if key is None or key >= FIRST_FREE else tenant_of(key) for key in catalogue.keys]
        self._numbers = GrowingArray(len(catalogue.ids), np.uint8)
        self.make_room(max(numbers, default=0))
        self.column[: len(numbers)] = numbers
        self.change(catalogue, np.flatnonzero(catalogue.is_visible(0, catalogue.top)), 1)

    @property
    def column(self) -> npt.NDArray[Any]:
        """The tenant of each slot."""
        return self._numbers.array

    def of_slot(self, slot: int) -> int:
        """The number of the object's tenant."""
        number: int = self._numbers.cells[slot]
        return number

    def of(self, number: int) -> Held:
        held = self.by_number.get(number)
        if held is None:
            held = self.by_number[number] = Held()
        return held

    def make_room(self, number: int) -> None:
        """Widen the column, if this number does not fit into it."""
        if number >= _NARROW and self.column.dtype == np.uint8:
            narrow = self._numbers
            self._numbers = GrowingArray(len(narrow.array), np.uint16)
            self._numbers.array[:] = narrow.array

    def grow(self, capacity: int) -> None:
        self._numbers.grow(capacity)

    def insert_one(self, slot: int, key: str, size: int, flags: int) -> None:
        """This object is new, and has one replica in memory. The same as `insert`; it takes a tenth of the time."""
        if key.startswith(self._last_prefix):
            number, held = self._last_number, self._last_held
        else:
            number = tenant_of(key)
            held = self.of(number)
            if number:
                self._last_prefix, self._last_number, self._last_held = key[:NAMESPACE_CHARACTERS], number, held
        self._numbers.cells[slot] = number
        extent = -(-size // SMALL_ALIGN) * SMALL_ALIGN if size < LARGE_FROM else extent_of(size)
        held.objects += 1
        held.used_bytes += extent
        if flags & HARD_PIN:
            held.pinned_bytes += extent

    def insert(self, catalogue: Catalogue, slots: Slots | slice, keys: list[str]) -> None:
        """These objects are new."""
        number = tenant_of(keys[0])
        # The keys of one commit are of one tenant.
        is_alone = are_of(namespace_of(number), keys) if number else min(keys) >= FIRST_FREE
        self.column[slots] = number if is_alone else [tenant_of(key) for key in keys]
        if is_alone and not (catalogue.flags[slots] & (HARD_PIN | ON_DISK | SEVERAL)).any():
            self._add(number, len(keys), int(extents_of(catalogue.sizes[slots]).sum()), 0)
            return
        at = np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
        self.change(catalogue, at, 1)

    def change(self, catalogue: Catalogue, slots: Sequence[int] | Slots, sign: int) -> None:
        """Add these objects to the sums of their tenants (1), or take them away (-1)."""
        if len(slots) < SCALAR_BELOW:
            for slot in slots:
                self._change_one(catalogue, int(slot), sign)
            return
        at = np.asarray(slots, np.intp)
        numbers, sizes = self.column[at], memory_bytes_of(catalogue, at)
        pinned = sizes * (catalogue.flags[at] & HARD_PIN != 0)
        if (numbers == numbers[0]).all():  # Most batches are one tenant's.
            self._add(int(numbers[0]), sign * len(at), sign * int(sizes.sum()), sign * int(pinned.sum()))
            return
        # Sums of floats: exact up to 2**53 bytes.
        columns = (np.bincount(numbers), np.bincount(numbers, sizes), np.bincount(numbers, pinned))
        for number in np.flatnonzero(columns[0]).tolist():
            self._add(number, *(sign * int(sums[number]) for sums in columns))

    def _add(self, number: int, objects: int, used_bytes: int, pinned_bytes: int) -> None:
        held = self.of(number)
        held.objects += objects
        held.used_bytes += used_bytes
        held.pinned_bytes += pinned_bytes

    def _change_one(self, catalogue: Catalogue, slot: int, sign: int) -> None:
        flags = catalogue.flags_at[slot]
        size = extent_of(catalogue.size_at[slot])
        if flags & (SEVERAL | ON_DISK):
            size *= sum(place.kind == MEMORY for place in catalogue.replicas(slot))
        self._add(self.of_slot(slot), sign, sign * size, sign * size if flags & HARD_PIN else 0)
