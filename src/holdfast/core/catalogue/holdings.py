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
from holdfast.core.rules import SCALAR_BELOW
from holdfast.ids import FIRST_FREE, extent_of, namespace_of, tenant_of

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
    __slots__ = ("by_number", "column")

    def __init__(self, catalogue: Catalogue) -> None:
        """Count all objects, in one pass."""
        self.by_number: dict[int, Held] = {}
        numbers = [0 if key is None or key >= FIRST_FREE else tenant_of(key) for key in catalogue.keys]
        self.column: npt.NDArray[Any] = np.zeros(len(catalogue.ids), np.uint8)
        self.make_room(max(numbers, default=0))
        self.column[: len(numbers)] = numbers
        self.change(catalogue, np.flatnonzero(catalogue.is_visible(0, catalogue.top)), 1)

    def of(self, number: int) -> Held:
        return self.by_number.setdefault(number, Held())

    def make_room(self, number: int) -> None:
        """Widen the column, if this number does not fit into it."""
        if number >= _NARROW and self.column.dtype == np.uint8:
            self.column = self.column.astype(np.uint16)

    def grow(self, capacity: int) -> None:
        grown = np.zeros(capacity, self.column.dtype)
        grown[: len(self.column)] = self.column
        self.column = grown

    def insert(self, catalogue: Catalogue, slots: list[int], keys: list[str]) -> None:
        """These objects are new."""
        number = tenant_of(keys[0])
        prefix = namespace_of(number)
        # The keys of one commit are of one tenant.
        if all(key.startswith(prefix) for key in keys) if number else min(keys) >= FIRST_FREE:
            self.column[slots] = number
        else:
            self.column[slots] = [tenant_of(key) for key in keys]
        self.change(catalogue, slots, 1)

    def change(self, catalogue: Catalogue, slots: Sequence[int] | Slots, sign: int) -> None:
        """Add these objects to the sums of their tenants (1), or take them away (-1)."""
        if len(slots) < SCALAR_BELOW:
            for slot in slots:
                self._change_one(catalogue, int(slot), sign)
            return
        at = np.asarray(slots, np.intp)
        numbers, sizes = self.column[at], memory_bytes_of(catalogue, at)
        pinned = np.where(catalogue.flags[at] & HARD_PIN, sizes, 0)
        # Sums of floats: exact up to 2**53 bytes.
        columns = (np.bincount(numbers), np.bincount(numbers, sizes), np.bincount(numbers, pinned))
        for number in np.flatnonzero(columns[0]).tolist():
            held = self.of(number)
            held.objects += sign * int(columns[0][number])
            held.used_bytes += sign * int(columns[1][number])
            held.pinned_bytes += sign * int(columns[2][number])

    def _change_one(self, catalogue: Catalogue, slot: int, sign: int) -> None:
        held = self.of(int(self.column[slot]))
        flags = catalogue.flags_at[slot]
        size = extent_of(catalogue.size_at[slot])
        if flags & (SEVERAL | ON_DISK):
            size *= sum(place.kind == MEMORY for place in catalogue.replicas(slot))
        held.objects += sign
        held.used_bytes += sign * size
        if flags & HARD_PIN:
            held.pinned_bytes += sign * size
