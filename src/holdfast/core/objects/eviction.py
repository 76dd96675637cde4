"""Which objects to evict: those without a live lease or hard pin, the longest unused first (I8).

Soft-pinned objects are taken in a second pass, and only if the rules allow it. A choice is a bounded number of array
operations over the columns, so that a full cache never stops for long. An eviction is a record; or, where the rules
do not log evictions, a change of the mask: then the memory is free at once, and other masters learn of the eviction
from the record of the grant that reuses the memory. Where there are tenants, `surplus` says whose objects give way.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.core.catalogue.catalogue import (
    COPYING,
    DISK,
    HARD_PIN,
    LIVE,
    MASKED,
    MEMORY,
    ON_DISK,
    SEVERAL,
    SOFT_PIN,
    Catalogue,
    Slots,
)
from holdfast.core.catalogue.holdings import memory_bytes_of
from holdfast.core.objects.surplus import Surplus
from holdfast.core.primary.object_counts import EvictionReason
from holdfast.core.primary.primary import Primary
from holdfast.core.rules import BRIM_SHARE, EVICT_STEP, Rules
from holdfast.core.state.apply import Place, ranges_of
from holdfast.core.state.packed_numbers import pack_sorted_ids
from holdfast.core.state.state import State
from holdfast.instant import Instant
from holdfast.messages.records import ObjectsEvicted, ReplicaDropped
from holdfast.messages.rows import PlaceRow
from holdfast.messages.shapes import Record


def victims(
    state: State, need_bytes: int, now: Instant, soft_too: bool, most: int = EVICT_STEP, grace_ms: int = 0
) -> Slots:
    """Slots to evict, oldest use first, until they free `need_bytes` or there are `most` of them.

    With `grace_ms`, only objects whose lease ended and whose last use was at least that long ago.
    """
    catalogue = state.catalogue
    top = catalogue.top
    let_soft_pins_end(state, now)
    # One comparison selects the objects that are live, unpinned and in memory.
    concerned = LIVE | MASKED | HARD_PIN | SOFT_PIN | ON_DISK | COPYING
    unleased = catalogue.lease_until[:top] <= now - grace_ms
    if grace_ms:
        unleased &= catalogue.last_used[:top] <= now - grace_ms
    plain = np.flatnonzero(((catalogue.flags[:top] & concerned) == LIVE) & unleased)
    holdings = catalogue.holdings
    oldest = Surplus(state, holdings).oldest if holdings is not None else partial(_oldest, state)
    chosen = oldest(plain, need_bytes, most)
    if soft_too and len(chosen) < most and (len(chosen) == len(plain) or holdings is not None):
        missing = need_bytes - _bytes_of(state, chosen)
        if missing > 0:
            soft = np.flatnonzero(((catalogue.flags[:top] & concerned) == (LIVE | SOFT_PIN)) & unleased)
            chosen = np.concatenate([chosen, oldest(soft, missing, most - len(chosen))])
    return chosen


def _oldest(state: State, slots: Slots, need_bytes: int, most: int) -> Slots:
    used = state.catalogue.last_used[slots]
    if len(slots) > most:
        kept = np.argpartition(used, most - 1)[:most]
        slots, used = slots[kept], used[kept]
    slots = slots[np.lexsort((state.catalogue.ids[slots], used))]
    return within(state, slots, need_bytes)


def _bytes_of(state: State, slots: Slots) -> int:
    return int(memory_bytes_of(state.catalogue, slots).sum())


def must_stay(catalogue: Catalogue, slots: Slots, now: Instant, soft_too: bool) -> npt.NDArray[np.bool_]:
    """Which of these objects may not be evicted (I8): those with a live lease, those that are hard-pinned or being
    copied, and unless `soft_too` the soft-pinned ones."""
    kept = HARD_PIN | COPYING | (0 if soft_too else SOFT_PIN)
    stays: npt.NDArray[np.bool_] = (catalogue.flags[slots] & kept != 0) | (catalogue.lease_until[slots] > now)
    return stays


def let_soft_pins_end(state: State, now: Instant) -> None:
    """Drop expired soft pins: a pin lasts for its time-to-live since the put or the last use, whichever is later."""
    catalogue = state.catalogue
    used = now - state.soft_pin_ttl_ms
    over = [
        slot for slot, until in catalogue.soft_pin_until.items() if until <= now and catalogue.used_at[slot] <= used
    ]
    for slot in over:
        del catalogue.soft_pin_until[slot]
        catalogue.flags_at[slot] &= ~SOFT_PIN


def evicted(state: State, slots: Slots) -> ObjectsEvicted:
    # In order of id, which is the order of the puts: neighbours in memory are then freed one after another.
    return ObjectsEvicted(pack_sorted_ids(state.catalogue.ids[slots]))


class LetGo(NamedTuple):
    records: list[Record]
    freed: bool = False
    """Memory is free already: objects were evicted without a record."""


def let_go(primary: Primary, slots: Slots, now: Instant, reason: EvictionReason, logged: bool = False) -> LetGo:
    """Evict these objects from memory. Objects that are also on a disk lose only their memory replicas, by a record.
    The others are evicted by a record, or, if evictions are not logged, without one, and their memory is free at once.
    `logged`: by a record in any case.
    """
    places, slots = kept_on_disk(primary.state, slots)
    records: list[Record] = [ReplicaDropped(PlaceRow.pack_rows(places))] if places else []
    if not len(slots):
        return LetGo(records)
    state = primary.state
    primary.counts.count_evicted(state.catalogue, slots, reason)
    if logged or primary.rules.logs_evictions:
        return LetGo([*records, evicted(state, slots)])
    freed = ranges_of(state, slots)
    primary.count_by_tenant(slots)
    state.departed.add(state.mask.add(state.catalogue, slots), "EVICTED", now)
    primary.reclaim(primary.unclaimed(freed))
    return LetGo(records, freed=True)


def kept_on_disk(state: State, slots: Slots) -> tuple[list[Place], Slots]:
    """Memory replicas of the objects that also have a disk replica, and the slots of the other objects."""
    catalogue = state.catalogue
    several = np.flatnonzero(catalogue.flags[slots] & SEVERAL)
    kept = [int(i) for i in several if on_disk_too(state, int(slots[i]))]
    places: list[Place] = []
    for slot in slots[kept].tolist():
        oid = catalogue.id_at[slot]
        places += [(oid, at.segment, at.offset) for at in catalogue.replicas(slot) if at.kind == MEMORY]
    return places, np.delete(slots, kept) if kept else slots


def over_watermark(primary: Primary) -> int:
    """Bytes to evict to bring usage one margin below the watermark; 0 while usage is under the watermark."""
    in_use = [s for s in primary.state.memory_segments() if s.name.node not in primary.state.modes]
    capacity = sum(segment.usable_bytes for segment in in_use)
    # Memory of objects on their way to a disk is about to be free; so is memory freed by records not yet durable.
    used = sum(map(primary.used_on, in_use)) - primary.copies.leaving_bytes - primary.unlent_bytes
    return excess_bytes(primary.rules, capacity, used)


def over_brim(primary: Primary) -> int:
    """Bytes above the brim, which cannot wait for a disk to take them: memory above it is kept for current puts."""
    in_use = [s for s in primary.state.memory_segments() if s.name.node not in primary.state.modes]
    capacity = sum(segment.usable_bytes for segment in in_use)
    brim = 1 - (1 - primary.rules.high_watermark) * BRIM_SHARE
    return sum(map(primary.used_on, in_use)) - primary.unlent_bytes - int(brim * capacity)


def excess_bytes(rules: Rules, capacity: int, used: int) -> int:
    if used <= rules.high_watermark * capacity:
        return 0
    return used - int((rules.high_watermark - rules.eviction_margin) * capacity)


def victims_saved_first(primary: Primary, need_bytes: int, now: Instant) -> Slots:
    """Victims, preferring objects that also have a disk replica: evicting those loses nothing. The preference
    reaches as far into the longest unused as `offload_ahead` keeps them on disks."""
    state, rules = primary.state, primary.rules
    if not state.disks():
        return victims(state, need_bytes, now, rules.evict_soft_pinned)
    ahead = int(rules.offload_ahead * primary.capacity_bytes)
    slots = victims(state, need_bytes + ahead, now, rules.evict_soft_pinned)
    several = np.flatnonzero(state.catalogue.flags[slots] & SEVERAL)
    lost = np.ones(len(slots), bool)
    lost[[i for i in several.tolist() if on_disk_too(state, int(slots[i]))]] = False
    soft = state.catalogue.flags[slots] & SOFT_PIN != 0
    slots = slots[np.lexsort((np.arange(len(slots)), lost, soft))]
    return within(state, slots, need_bytes)


def within(state: State, slots: Slots, need_bytes: int) -> Slots:
    """The shortest prefix of `slots` that frees `need_bytes`."""
    freed = np.cumsum(memory_bytes_of(state.catalogue, slots))
    return slots[: int(np.searchsorted(freed, need_bytes)) + 1]


def on_disk_too(state: State, slot: int) -> bool:
    return any(place.kind == DISK and place.segment not in state.away for place in state.catalogue.replicas(slot))
