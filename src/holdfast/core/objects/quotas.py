"""Limits of tenants: a put that would exceed one evicts the tenant's own oldest objects, or is refused (I20, ADR 50).

A commit is where limits hold exactly, because there the objects are known: the evictions and the commit are records of
one decision. These evictions are logged whatever the rules say, so that a later master finds the same. Nothing that
was acknowledged is thrown away to refuse a put: where too little of the tenant's own may be evicted, nothing changes.
Copies that the cluster makes by itself may exceed a limit; upkeep then evicts the tenant's oldest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from holdfast.core.catalogue.catalogue import COPYING, HARD_PIN, LIVE, MASKED, SOFT_PIN, Slots
from holdfast.core.catalogue.holdings import Held, Holdings, memory_bytes_of
from holdfast.core.objects.eviction import evicted, let_go
from holdfast.core.primary.object_counts import EvictionReason
from holdfast.core.primary.primary import Primary
from holdfast.core.rules import EVICT_STEP
from holdfast.core.state.tenants import Tenant
from holdfast.errors import TenantFull
from holdfast.ids import MAX_BATCH, extent_of, tenant_of
from holdfast.instant import Instant
from holdfast.messages.shapes import Record

NOTHING: Slots = np.zeros(0, np.intp)
_LATER = 1 << 60
"""More than any time of last use."""


class Coming(NamedTuple):
    """What a put would add."""

    keys: list[str]
    size_bytes: int
    """Memory, all replicas together."""
    hard_pin: bool = False
    spared: Sequence[str] = ()
    """Keys whose objects do not give way: the same request says that they are stored."""


class _Excess(NamedTuple):
    size_bytes: int
    objects: int


def _limited(primary: Primary, key: str, hard_pin: bool) -> Tenant | None:
    """The key's tenant if it has a limit that a put could exceed; otherwise None."""
    tenants = primary.state.tenants
    if not tenants.any_limits:
        return None
    tenant = tenants.by_number.get(tenant_of(key))
    if tenant is None or not (tenant.limit_bytes or tenant.max_objects or (hard_pin and tenant.hard_pin_share < 1)):
        return None
    return tenant


def are_limited(primary: Primary, keys: Sequence[str], hard_pin: bool = False) -> bool:
    """Could a put of these keys, which are one tenant's, exceed a limit? If not, nothing need be added up for it:
    `make_way` would return nothing, and `check_grant` raise nothing."""
    return bool(keys) and _limited(primary, keys[0], hard_pin) is not None


def fits(primary: Primary, key: str, size_bytes: int, hard_pin: bool) -> bool:
    """Is one more object of this size within all limits of its tenant, without any eviction?"""
    tenant = _limited(primary, key, hard_pin)
    holdings = primary.state.catalogue.holdings
    if tenant is None or holdings is None:
        return True
    if hard_pin and tenant.hard_pin_share < 1:
        return False
    held = holdings.of(tenant.number)
    return (not tenant.limit_bytes or held.used_bytes + size_bytes <= tenant.limit_bytes) and (
        not tenant.max_objects or held.objects < tenant.max_objects
    )


def leaves_room(primary: Primary, slot: int, coming: Counter[int]) -> bool:
    """Does the tenant's limit leave room for one more replica of this object, beside the bytes that are `coming` for
    each tenant? If so it is counted there."""
    holdings = primary.state.catalogue.holdings
    if holdings is None:
        return True
    number, size = holdings.of_slot(slot), extent_of(primary.state.catalogue.size_at[slot])
    if _excess(primary.state.tenants.of(number), holdings.of(number), coming[number] + size, 0).size_bytes > 0:
        return False
    coming[number] += size
    return True


def make_way(primary: Primary, coming: Coming, leaving: Slots, now: Instant) -> list[Record]:
    """Records that evict the oldest objects of the tenant, so that what comes stays within its limits. `leaving`:
    objects that the put replaces. Raises TenantFull, with nothing changed, if too few may be evicted."""
    return _records(primary, *_giving_way(primary, coming, leaving, now), now)


def check_grant(primary: Primary, coming: Coming, leaving: Slots, now: Instant) -> None:
    """Raise TenantFull where a commit of this would: before any byte is copied."""
    _giving_way(primary, coming, leaving, now)


def _giving_way(primary: Primary, coming: Coming, leaving: Slots, now: Instant) -> tuple[Slots, Slots]:
    """The tenant's own objects that leave completely, and those that leave memory only."""
    holdings = primary.state.catalogue.holdings
    if holdings is None or not coming.keys:
        return NOTHING, NOTHING
    number = tenant_of(coming.keys[0])
    tenant, held = primary.state.tenants.of(number), _without(primary, holdings, number, leaving)
    if coming.hard_pin:
        advice = "Nothing was stored. Put without a hard pin, or remove what is pinned"
        _check_share(primary, tenant, held, coming.size_bytes, "this put", advice)
    excess = _excess(tenant, held, coming.size_bytes, len(coming.keys))
    if excess.size_bytes <= 0 and excess.objects <= 0:
        return NOTHING, NOTHING
    own = _own_evictable(primary, holdings, number, coming.spared, now)
    margin = primary.rules.eviction_margin
    # A part of the limit more than this put needs, so that not every put evicts; but no more than one step of eviction.
    ahead = _Excess(
        excess.size_bytes + int(margin * tenant.limit_bytes) if excess.size_bytes > 0 else 0,
        excess.objects + int(margin * tenant.max_objects) if excess.objects > 0 else 0,
    )
    leaving_now = _oldest(primary, _in_order(primary, own, EVICT_STEP), ahead)
    if len(own) > EVICT_STEP and not _is_enough(primary, *leaving_now, excess):
        leaving_now = _oldest(primary, _in_order(primary, own, len(own)), excess)
    if not _is_enough(primary, *leaving_now, excess):
        primary.tenants.refused[number] += 1
        raise TenantFull(_arithmetic(tenant, held, coming, own, primary))
    return leaving_now


def evict_beyond_limits(primary: Primary, now: Instant) -> list[Record]:
    """One bounded step for each tenant that is above a limit: it was lowered, or copies exceeded it."""
    state = primary.state
    holdings = state.catalogue.holdings
    if holdings is None:
        return []
    records: list[Record] = []
    for number, held in holdings.by_number.items():
        excess = _excess(state.tenants.of(number), held, 0, 0)
        if excess.size_bytes > 0 or excess.objects > 0:
            own = _own_evictable(primary, holdings, number, (), now)
            gone, dropped = _oldest(primary, _in_order(primary, own, EVICT_STEP), excess)
            records += _records(primary, gone, dropped, now)
    return records


def _excess(tenant: Tenant, held: Held, more_bytes: int, more_objects: int) -> _Excess:
    size = held.used_bytes + more_bytes - tenant.limit_bytes if tenant.limit_bytes else 0
    return _Excess(size, held.objects + more_objects - tenant.max_objects if tenant.max_objects else 0)


def _without(primary: Primary, holdings: Holdings, number: int, leaving: Slots) -> Held:
    """What the tenant holds without the objects that leave anyway."""
    held, catalogue = holdings.of(number), primary.state.catalogue
    if not len(leaving):
        return held
    leaving = leaving[catalogue.flags[leaving] & MASKED == 0]
    sizes = memory_bytes_of(catalogue, leaving)
    pinned = sizes[catalogue.flags[leaving] & HARD_PIN != 0]
    return Held(held.used_bytes - int(sizes.sum()), held.objects - len(leaving), held.pinned_bytes - int(pinned.sum()))


def check_hard_pins(primary: Primary, slots: Slots) -> None:
    """Raise TenantFull if hard pins on all of these objects, which are one tenant's and have none, exceed its share."""
    catalogue = primary.state.catalogue
    holdings = catalogue.holdings
    if holdings is None or not len(slots):
        return
    number = holdings.of_slot(int(slots[0]))
    more, advice = int(memory_bytes_of(catalogue, slots).sum()), "No pin was changed. Pin fewer, or unpin others first"
    tenant, held = primary.state.tenants.of(number), holdings.of(number)
    _check_share(primary, tenant, held, more, "this request", advice)


def _check_share(primary: Primary, tenant: Tenant, held: Held, more_bytes: int, what: str, advice: str) -> None:
    if tenant.hard_pin_share >= 1:
        return
    whole = memory_of(primary, tenant)
    most = int(tenant.hard_pin_share * whole)
    if held.pinned_bytes + more_bytes > most:
        primary.tenants.refused[tenant.number] += 1
        raise TenantFull(
            f"the tenant {tenant.name!r} has hard-pinned {held.pinned_bytes:,} bytes, and {what} would pin "
            f"{more_bytes:,} more; it may pin {most:,}, {tenant.hard_pin_share:.0%} of {whole:,}. {advice}"
        )


def memory_of(primary: Primary, tenant: Tenant) -> int:
    """The most memory that this tenant could have: its limit, or all that is not guaranteed to others."""
    tenants = primary.state.tenants
    to_others = sum(one.guaranteed_bytes for one in tenants.by_number.values() if one.number != tenant.number)
    most = max(0, primary.capacity_bytes - to_others)
    return min(tenant.limit_bytes, most) if tenant.limit_bytes else most


def _own_evictable(primary: Primary, holdings: Holdings, number: int, keys: Sequence[str], now: Instant) -> Slots:
    """Objects of the tenant that may be evicted, without those under these keys."""
    catalogue = primary.state.catalogue
    own = np.flatnonzero(holdings.column[: catalogue.top] == number)
    stays = HARD_PIN | COPYING | (0 if primary.rules.evict_soft_pinned else SOFT_PIN)
    flags = catalogue.flags[own]
    own = own[(flags & (LIVE | MASKED | stays) == LIVE) & (catalogue.lease_until[own] <= now)]
    return np.setdiff1d(own, catalogue.by_key.slots_of(list(keys))) if keys else own


def _in_order(primary: Primary, own: Slots, most: int) -> Slots:
    """The first of these objects, oldest use first and soft-pinned ones last. Sorting a million takes 0.2 s; choosing
    some thousands of them, and sorting those, a tenth of that."""
    catalogue = primary.state.catalogue
    used = catalogue.last_used[own] + np.where(catalogue.flags[own] & SOFT_PIN, _LATER, 0)
    if len(own) > most:
        first = np.argpartition(used, most - 1)[:most]
        own, used = own[first], used[first]
    return own[np.lexsort((catalogue.ids[own], used))]


def _is_enough(primary: Primary, gone: Slots, dropped: Slots, excess: _Excess) -> bool:
    freed = int(memory_bytes_of(primary.state.catalogue, np.concatenate([gone, dropped])).sum())
    return freed >= excess.size_bytes and len(gone) >= excess.objects


def _oldest(primary: Primary, own: Slots, excess: _Excess) -> tuple[Slots, Slots]:
    """The first of these until the excess is gone: those that leave completely, and those that leave memory only."""
    gone = own[: max(0, excess.objects)]
    rest = own[len(gone) :]
    sizes = memory_bytes_of(primary.state.catalogue, rest)
    rest, sizes = rest[sizes > 0], sizes[sizes > 0]
    missing = excess.size_bytes - int(memory_bytes_of(primary.state.catalogue, gone).sum())
    if missing <= 0:
        return gone, NOTHING
    return gone, rest[: int(np.searchsorted(np.cumsum(sizes), missing)) + 1]


def _records(primary: Primary, gone: Slots, dropped: Slots, now: Instant) -> list[Record]:
    primary.counts.count_evicted(primary.state.catalogue, gone, EvictionReason.QUOTA)
    records: list[Record] = [evicted(primary.state, gone[at : at + MAX_BATCH]) for at in range(0, len(gone), MAX_BATCH)]
    for at in range(0, len(dropped), MAX_BATCH):
        records += let_go(primary, dropped[at : at + MAX_BATCH], now, EvictionReason.QUOTA, logged=True).records
    return records


def _arithmetic(tenant: Tenant, held: Held, coming: Coming, own: Slots, primary: Primary) -> str:
    evictable = int(memory_bytes_of(primary.state.catalogue, own).sum())
    parts = []
    if tenant.limit_bytes:
        parts.append(
            f"{held.used_bytes:,} bytes of {tenant.limit_bytes:,}, and this put adds {coming.size_bytes:,}, where "
            f"{evictable:,} of its own may be evicted"
        )
    if tenant.max_objects:
        parts.append(
            f"{held.objects:,} objects of {tenant.max_objects:,}, and this put adds {len(coming.keys):,}, where "
            f"{len(own):,} of its own may be evicted"
        )
    return (
        f"the tenant {tenant.name!r} holds " + "; ".join(parts) + ". The others are leased or pinned. Nothing was "
        "stored. Remove some, wait until leases end, or have the limit raised"
    )
