"""Lease renewals, sent from the primary to its standbys: one record each, in packed values, or not at all.

Granting a lease only sets a bit. `take_renewed` gathers the objects whose bit is set, with the time left of their lease
and soft pin and the time since their last use: durations, because no clock is shared (I16). `renew` is the receiving
end: it extends existing leases and creates no objects (I7). All of it is soft: losing it can make a standby evict the
wrong object first, and can break no promise, because a promotion assumes that every lease is as long as it may be.
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
    """Columns with one row per object, in order of id."""

    ids: npt.NDArray[np.uint64]
    lease_left_ms: npt.NDArray[np.int64]
    unused_ms: npt.NDArray[np.int64]
    soft_pin_left_ms: npt.NDArray[np.int64]
    """0 if there is no soft pin."""

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, start: int, stop: int) -> Renewed:
        rows = slice(start, stop)
        return Renewed(self.ids[rows], self.lease_left_ms[rows], self.unused_ms[rows], self.soft_pin_left_ms[rows])


def take_renewed(state: State, now: Instant) -> Renewed:
    """Everything renewed since the last call; clears the bits."""
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
    """Mark these as renewed again, because they were not written. Objects that are gone meanwhile are skipped."""
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
    """(indices of the ids that are in the catalogue, their slots)"""
    slots = np.array(catalogue.by_id.slots_of(ids.tolist()), np.intp)
    rows = np.flatnonzero(slots >= 0)
    return rows, slots[rows]


def renew(state: State, ids: npt.NDArray[np.uint64], until: Instant, used: Instant) -> None:
    """Extend the leases of these objects to `until`, and their last use to `used`."""
    catalogue = state.catalogue
    _, slots = _there(catalogue, ids)
    _lengthen(state, slots, np.int64(until), np.int64(used))


def apply_renewed(state: State, renewed: Renewed, stale_ms: int, now: Instant) -> int:
    """Apply renewals that a primary gathered `stale_ms` ago; return how many of these objects exist here."""
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
        # The primary still has it: evicting it here was a wrong guess.
        state.mask.release(catalogue, slots.tolist())
