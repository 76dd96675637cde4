"""Bugs planted on purpose in how room is made for puts (ADR 28)."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np

from holdfast.core.objects import eviction, puts, room
from holdfast.core.objects.placement import Room, place
from holdfast.core.primary.object_counts import EvictionReason
from tests.simulation.planted import Patch, Planted


def evict_the_oldest_until_luck_helps() -> Patch:
    """As it was: the longest unused of all go, a margin at a time, until a piece happens to be long enough."""

    def make_room(primary: Any, grant: Any, wanted: Any, lengths: Any, now: int, last_resort: bool = True) -> Any:
        need = wanted.length * wanted.replicas
        if primary.unlent_bytes >= need:
            return room.RoomSought()
        margin = int(primary.rules.eviction_margin * primary.capacity_bytes)
        slots = eviction.victims_saved_first(primary, max(need, margin), now)
        records, freed = eviction.let_go(primary, slots, now, EvictionReason.PUT)
        places = None if records else place(primary, wanted.length, wanted.replicas, wanted.prefer, now)
        return room.RoomSought(None if places is None else Room(wanted.length, places), records, freed)

    return patch.object(puts, "make_room", make_room)


def take_soft_pins_for_none_in_windows() -> Patch:
    real = room.layout_of

    def layout_of(primary: Any, segment: Any, now: int, soft_too: bool, *more: Any) -> Any:
        layout = real(primary, segment, now, True, *more)
        layout.soft = np.zeros_like(layout.soft)
        return layout

    return patch.object(room, "layout_of", layout_of)


def let_puts_wait_for_leases_although_there_is_a_window() -> Patch:
    """Only windows without any object are seen."""
    return patch.object(room, "_choose", lambda primary, *more: ([], room._NONE))


PLANTED_IN_ROOM = (
    Planted("evict the oldest until luck helps", evict_the_oldest_until_luck_helps, ("I10",), 60),
    Planted("take soft pins for none in windows", take_soft_pins_for_none_in_windows, ("soft pins",), 60),
    Planted("see no window", let_puts_wait_for_leases_although_there_is_a_window, ("I10",), 60),
)
