"""Leases that were renewed, from the primary to its standbys: by a record each, in packed values, or not at all.

Granting a lease only sets a bit. `take_renewed` gathers the objects whose bit is set, with how long their lease and
soft pin have left and how long ago they were used: durations, because no clock is shared (I16). `renew` is the other
end: it lengthens what is there and creates nothing (I7). All of it is soft: losing it can make a standby evict the
wrong object first, and can break no promise, because a promotion takes every lease to be as long as it may be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.core.catalogue.catalogue import LIVE, MASKED, SOFT_PIN, Catalogue, Slots
from holdfast.core.state.state import State
from holdfast.instant import Instant


@dataclass(frozen=True, slots=True)
class Renewed:
    """Columns, one row an object, in the order of their ids."""

    ids: npt.NDArray[np.uint64]
    lease_left_ms: npt.NDArray[np.int64]
    unused_ms: npt.NDArray[np.int64]
    soft_pin_left_ms: npt.NDArray[np.int64]
    """0 where there is no soft pin."""

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, start: int, stop: int) -> Renewed:
        rows = slice(start, stop)
        return Renewed(self.ids[rows], self.lease_left_ms[rows], self.unused_ms[rows], self.soft_pin_left_ms[rows])


def take_renewed(state: State, now: Instant) -> Renewed:
    """Everything renewed since the last time; the bits are cleared."""
    catalogue = state.catalogue
    slots = np.flatnonzero(catalogue.renewed[: catalogue.top].view(np.bool_))
    catalogue.renewed[slots] = 0
    slots = slots[(catalogue.flags[slots] & (LIVE | MASKED)) == LIVE]
    slots = slots[np.argsort(catalogue.ids[slots])]
    return Renewed(
        catalogue.ids[slots],
        np.maximum(catalogue.lease_until[slots] - now, 0),
        np.maximum(now - catalogue.last_used[slots], 0),
        _soft_pins_left(state, slots, now),
    )


def put_back(state: State, renewed: Renewed) -> None:
    """They were not written: they are renewed still. What has gone meanwhile is left alone."""
    catalogue = state.catalogue
    catalogue.renewed[_there(catalogue, renewed.ids)[1]] = 1


def _soft_pins_left(state: State, slots: Slots, now: Instant) -> npt.NDArray[np.int64]:
    catalogue = state.catalogue
    left = np.zeros(len(slots), np.int64)
    for row in np.flatnonzero(catalogue.flags[slots] & SOFT_PIN).tolist():
        slot = int(slots[row])
        until = max(catalogue.soft_pin_until.get(slot, 0), catalogue.used_at[slot] + state.soft_pin_ttl_ms)
        left[row] = max(0, until - now)
    return left


def _there(catalogue: Catalogue, ids: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.intp], Slots]:
    """(which of the ids are in the catalogue, and where)"""
    slots = np.array(catalogue.by_id.slots_of(ids.tolist()), np.intp)
    rows = np.flatnonzero(slots >= 0)
    return rows, slots[rows]


def renew(state: State, ids: npt.NDArray[np.uint64], until: Instant, used: Instant) -> None:
    """All of these have a lease until then, and were used then."""
    catalogue = state.catalogue
    _, slots = _there(catalogue, ids)
    _lengthen(state, slots, np.int64(until), np.int64(used))


def apply_renewed(state: State, renewed: Renewed, stale_ms: int, now: Instant) -> int:
    """What a primary said `stale_ms` ago; how many of these objects are here."""
    catalogue = state.catalogue
    rows, slots = _there(catalogue, renewed.ids)
    then = now - stale_ms
    _lengthen(state, slots, then + renewed.lease_left_ms[rows], then - renewed.unused_ms[rows])
    for row in np.flatnonzero(renewed.soft_pin_left_ms[rows]).tolist():
        slot, until = int(slots[row]), then + int(renewed.soft_pin_left_ms[rows[row]])
        if until > now:
            catalogue.soft_pin_until[slot] = max(catalogue.soft_pin_until.get(slot, 0), until)
            catalogue.flags_at[slot] |= SOFT_PIN
    return len(slots)


def _lengthen(
    state: State, slots: Slots, until: npt.NDArray[np.int64] | np.int64, used: npt.NDArray[np.int64] | np.int64
) -> None:
    catalogue = state.catalogue
    catalogue.lease_until[slots] = np.maximum(catalogue.lease_until[slots], until)
    catalogue.last_used[slots] = np.maximum(catalogue.last_used[slots], used)
    if state.mask:
        # The primary has it still: evicting it here was a guess, and wrong.
        state.mask.release(catalogue, slots.tolist())
