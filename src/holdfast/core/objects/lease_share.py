"""Leases cannot stop the world: of the memory that a tenant may have, a share may be leased at the same time.

That memory is what is neither held by others nor guaranteed to them, and at most the tenant's limit: all memory, for
the only tenant of a cluster; what it holds, where memory is full. Beyond the share a read gets no lease, and its reader
asks after the copy whether the object is still there (I2). A lease that lives is renewed, unless the tenant has more
than its share by now.

The bytes are counted by a pass over the columns when the room that the last count found is used up, so that a lease
costs a subtraction. Leases that a promotion assumes (the guard) do not count: nobody may have asked for them.
"""

from __future__ import annotations

import numpy as np

from holdfast.core.catalogue.catalogue import LIVE, MASKED, Slots
from holdfast.core.primary.primary import Primary
from holdfast.core.state.tenants import Tenant
from holdfast.instant import Instant

COUNT_AGAIN_MS = 100
COUNT_EVERY_MS = 1_000
SLOTS_A_MS = 500
"""A count of a million objects takes 5 ms: with nothing left one is made every two seconds, otherwise every ten."""


def may_lease(primary: Primary, slot: int, now: Instant) -> bool:
    """May this object be leased, or its lease be renewed? If so, it is counted."""
    catalogue, room = primary.state.catalogue, primary.tenants.lease_room
    if now >= room.count_at:
        count(primary, now)
    number = 0 if catalogue.holdings is None else catalogue.holdings.of_slot(slot)
    size = catalogue.size_at[slot] * catalogue.wanted_of(slot) if catalogue.lease_at[slot] <= now else 0
    left = room.left.get(number, 0)
    if size > left or left < 0:
        if now < room.count_again_at:
            return False
        count(primary, now)
        left = room.left.get(number, 0)
        if size > left or left < 0:
            return False
    room.left[number] = left - size
    return True


def leasable(primary: Primary, slots: Slots, now: Instant) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None:
    """Like `may_lease`, for many objects of one tenant: which of them. None: all."""
    catalogue, room = primary.state.catalogue, primary.tenants.lease_room
    if now >= room.count_at:
        count(primary, now)
    number = 0 if catalogue.holdings is None or not len(slots) else catalogue.holdings.of_slot(slots[0])
    sizes = np.where(catalogue.lease_until[slots] <= now, catalogue.sizes[slots] * catalogue.wanted(slots), 0)
    total = int(sizes.sum())
    if total > room.left.get(number, 0) and now >= room.count_again_at:
        count(primary, now)
    left = room.left.get(number, 0)
    if total <= left:
        room.left[number] = left - total
        return None
    if left < 0:
        return np.zeros(len(slots), np.bool_)
    taken = np.cumsum(sizes)
    leased: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = (taken <= left) | (sizes == 0)
    room.left[number] = left - int(sizes[leased].sum())
    return leased


def count(primary: Primary, now: Instant) -> None:
    """Count the leased bytes of each tenant, and how many more may be leased."""
    state, room = primary.state, primary.tenants.lease_room
    catalogue = state.catalogue
    pause_ms = catalogue.top // SLOTS_A_MS
    room.count_again_at, room.count_at = now + COUNT_AGAIN_MS + pause_ms, now + COUNT_EVERY_MS + 5 * pause_ms
    until = max(now, primary.old_leases_end_at)
    top = catalogue.top
    slots = np.flatnonzero((catalogue.lease_until[:top] > until) & (catalogue.flags[:top] & (LIVE | MASKED) == LIVE))
    sizes = catalogue.sizes[slots] * catalogue.wanted(slots)
    if catalogue.holdings is None:
        room.leased = {0: int(sizes.sum())}
    else:
        sums = np.bincount(catalogue.holdings.column[slots], sizes)
        room.leased = {number: int(size) for number, size in enumerate(sums.tolist())}
    room.left = {number: most - room.leased.get(number, 0) for number, most in _shares(primary).items()}


def _shares(primary: Primary) -> dict[int, int]:
    """The bytes that each tenant may have leased."""
    state, capacity = primary.state, primary.capacity_bytes
    holdings, tenants = state.catalogue.holdings, state.tenants
    if holdings is None:
        return {0: int(primary.rules.lease_share * capacity)}
    numbers = {0, *tenants.by_number}
    taken = {number: max(holdings.of(number).used_bytes, tenants.of(number).guaranteed_bytes) for number in numbers}
    everything = sum(taken.values())
    shares: dict[int, int] = {}
    for number in numbers:
        tenant = tenants.of(number)
        most = max(0, capacity - everything + taken[number])
        if tenant.limit_bytes:
            most = min(most, tenant.limit_bytes)
        shares[number] = int(share_of(primary, tenant) * most)
    return shares


def share_of(primary: Primary, tenant: Tenant) -> float:
    return tenant.lease_share if tenant.lease_share >= 0 else primary.rules.lease_share
