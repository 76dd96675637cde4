"""Quotas hold (I20, ADR 50): the decisions of a primary are watched, before and after.

1. for a put of one tenant, or for the watermark, nothing leaves of another that is at its guarantee or below;
2. after a commit its tenant is within its limits, and what the commit stored is there; a tenant that is above them
   otherwise (a limit was lowered, the cluster made copies) is brought back by the ticks that follow;
3. `TenantFull` changes nothing;
4. a new lease keeps its tenant within its share.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial

import numpy as np

from holdfast.core.catalogue.catalogue import COPYING, HARD_PIN, LIVE, MASKED, SOFT_PIN
from holdfast.core.objects.lease_share import COUNT_EVERY_MS
from holdfast.core.primary.decision import NextStep
from holdfast.core.state.state import State
from holdfast.errors import TenantFull
from holdfast.ids import object_id, tenant_of
from holdfast.instant import Instant
from holdfast.master.engine.engine import Engine, Reply
from holdfast.messages.requests import CommitPuts, Committed, Exists, Failed, GrantRanges, Locate, RenewLeases
from holdfast.messages.rows import PutRow
from holdfast.messages.shapes import Message
from holdfast.simulation.checks.log_checks import Report
from holdfast.simulation.checks.tenants.holding_checks import OwnedObject, held_by, owned_objects

ABOVE_MS = 1_500
"""So long a tenant may be above a limit although something of its own may be evicted: several ticks."""
Decide = Callable[[Message | NextStep, int, Instant], tuple[Reply, int]]


class QuotaChecks:
    """Watches one primary."""

    def __init__(self, name: str, engine: Engine, report: Report) -> None:
        self._name = name
        self._engine = engine
        self._report = report
        self._served: set[int] = set()
        """Tenants whose puts were decided since the tick began: their own objects may give way to them."""
        self._above: dict[int, Instant] = {}
        """Tenant -> since when it is above a limit, and something of its own may be evicted."""
        self._shares: deque[tuple[Instant, dict[int, int]]] = deque()
        """The bytes that each tenant may have leased, at the last moments."""
        engine._decide = partial(self._decide, engine._decide)  # type: ignore[method-assign]
        engine._look = partial(self._leased, engine._look)  # type: ignore[method-assign]

    # Decisions.

    def _decide(self, decide: Decide, request: Message | NextStep, caller: int, now: Instant) -> tuple[Reply, int]:
        state, primary = self._engine.state, self._engine.primary
        if type(request) is RenewLeases:
            return self._leased(decide, request, caller, now)
        if not state.tenants or not isinstance(request, GrantRanges | CommitPuts):
            return decide(request, caller, now)
        own, before = primary.tenant_of(caller), owned_objects(state)
        index, counter = state.index, state.next_counter
        keys = fresh_keys(state, request) if isinstance(request, CommitPuts) else []
        self._served.add(own)
        reply, wait_for = decide(request, caller, now)
        after = owned_objects(state)
        self._guarantees(before, after, spared={own})
        if isinstance(reply, Failed) and reply.code == TenantFull.code and (state.index != index or before != after):
            self._found("answers TenantFull, and has changed something")
        if isinstance(request, CommitPuts) and isinstance(reply, Committed) and state.next_counter > counter:
            ids = [object_id(state.epoch, number) for number in range(counter, state.next_counter)]
            self._committed(own, request.hard_pin, after, ids, keys)
        self._note_shares(now)
        return reply, wait_for

    def _found(self, what: str) -> None:
        self._report("I20", f"{self._name} {what}", self._name)

    def _guarantees(self, before: dict[int, OwnedObject], after: dict[int, OwnedObject], spared: set[int]) -> None:
        """Nothing left of tenants at or below their guarantee, except of these, for whose sake it may."""
        lost: Counter[int] = Counter()
        for oid, one in before.items():
            left = after[oid].size_bytes if oid in after else 0
            if left < one.size_bytes:
                lost[one.tenant] += one.size_bytes - left
        for tenant, size in lost.items():
            quota, held = self._engine.state.tenants.of(tenant), held_by(after, tenant).used_bytes
            if tenant not in spared and held < quota.guaranteed_bytes:
                what = f"evicts {size:,} bytes of {quota.name!r} for others: it holds {held:,} now"
                self._found(f"{what}, and {quota.guaranteed_bytes:,} are guaranteed")

    def _committed(
        self, own: int, hard_pin: bool, after: dict[int, OwnedObject], ids: list[int], keys: list[str]
    ) -> None:
        state = self._engine.state
        quota, held = state.tenants.of(own), held_by(after, own)
        if any(oid not in after for oid in ids) or min(state.catalogue.by_key.slots_of(keys)) < 0:
            self._found("says that a key is stored, and has thrown its object away")
        for what, count, most in (
            ("bytes", held.used_bytes, quota.limit_bytes),
            ("objects", held.objects, quota.max_objects),
        ):
            if most and count > most:
                self._found(f"has {quota.name!r} hold {count:,} {what} of {most:,} after a commit")
        to_others = sum(one.guaranteed_bytes for one in state.tenants.by_number.values() if one.number != own)
        whole = max(0, self._engine.primary.capacity_bytes - to_others)
        most = int(quota.hard_pin_share * (min(whole, quota.limit_bytes) if quota.limit_bytes else whole))
        if hard_pin and quota.hard_pin_share < 1 and held.pinned_bytes > most:
            self._found(f"has {quota.name!r} pin {held.pinned_bytes:,} bytes, which may pin {most:,}")

    # Upkeep.

    def tick(self, tick: Callable[[Instant], bool], now: Instant) -> bool:
        """Check eviction by watermark and by limits. When nodes come, go or are emptied, objects leave for other
        reasons."""
        state = self._engine.state
        if not state.tenants or now >= self._engine.leads_until():
            return tick(now)
        before, topology = owned_objects(state), state.topology
        above = {number for number in {0, *state.tenants.by_number} if self._is_above(state, before, number)}
        self._served.clear()
        more = tick(now)
        after = owned_objects(state)
        if state.topology == topology and not state.modes:
            self._guarantees(before, after, spared=above | self._served)
        for number in sorted({0, *state.tenants.by_number}):
            self._limits(after, number, now)
        self._note_shares(now)
        return more

    def _is_above(self, state: State, objects: dict[int, OwnedObject], number: int) -> bool:
        quota, held = state.tenants.of(number), held_by(objects, number)
        return 0 < quota.limit_bytes < held.used_bytes or 0 < quota.max_objects < held.objects

    def _limits(self, objects: dict[int, OwnedObject], number: int, now: Instant) -> None:
        state = self._engine.state
        if not self._is_above(state, objects, number) or not self._has_evictable(objects, number, now):
            self._above.pop(number, None)
        elif now - self._above.setdefault(number, now) > ABOVE_MS:
            quota = state.tenants.of(number)
            what = f"lets {quota.name!r} stay above {quota.limit_bytes:,} bytes or {quota.max_objects} objects"
            self._found(f"{what}, and some of its own may be evicted")

    def _has_evictable(self, objects: dict[int, OwnedObject], number: int, now: Instant) -> bool:
        primary = self._engine.primary
        catalogue = primary.state.catalogue
        stays = MASKED | HARD_PIN | COPYING | (0 if primary.rules.evict_soft_pinned else SOFT_PIN)
        most = primary.state.tenants.of(number).max_objects
        too_many = 0 < most < held_by(objects, number).objects  # Otherwise only what is in memory helps.
        for slot in catalogue.live().tolist():
            one = objects.get(catalogue.id_at[slot])
            if one is None or one.tenant != number or not (one.size_bytes or too_many):
                continue
            if not catalogue.flags_at[slot] & stays and catalogue.lease_at[slot] <= now:
                return True
        return False

    # Leases.

    def _leased(self, decide: Decide, request: Message | NextStep, caller: int, now: Instant) -> tuple[Reply, int]:
        primary = self._engine.primary
        leases = isinstance(request, Locate | RenewLeases) or (isinstance(request, Exists) and request.touch)
        # Leases that a promotion has assumed are renewed without being counted.
        sure_from = primary.old_leases_end_at + primary.state.longest_lease_ms
        if not leases or not primary.state.tenants or now < sure_from:
            return decide(request, caller, now)
        self._note_shares(now)
        before = _leased_objects(primary.state, now)
        reply, wait_for = decide(request, caller, now)
        after = _leased_objects(primary.state, now)
        for tenant in {tenant for oid, (tenant, _) in after.items() if oid not in before}:
            size = sum(size for whose, size in after.values() if whose == tenant)
            most = max(shares.get(tenant, 0) for _, shares in self._shares)
            if size > most:
                who = primary.state.tenants.of(tenant).name
                self._found(f"leases {size:,} bytes to {who!r}, which may lease {most:,}")
        return reply, wait_for

    def _note_shares(self, now: Instant) -> None:
        """Note how much each may lease now. Leases are counted every second: the share of then counts, too."""
        primary, state = self._engine.primary, self._engine.state
        holdings = state.catalogue.holdings
        while self._shares and self._shares[0][0] < now - COUNT_EVERY_MS - 200:
            self._shares.popleft()
        if holdings is None:
            return
        tenants = {number: state.tenants.of(number) for number in {0, *state.tenants.by_number}}
        kept = {number: max(holdings.of(number).used_bytes, one.guaranteed_bytes) for number, one in tenants.items()}
        shares: dict[int, int] = {}
        for number, one in tenants.items():
            most = max(0, primary.capacity_bytes - sum(kept.values()) + kept[number])
            most = min(most, one.limit_bytes) if one.limit_bytes else most
            shares[number] = int(most * (one.lease_share if one.lease_share >= 0 else primary.rules.lease_share))
        self._shares.append((now, shares))


def fresh_keys(state: State, request: CommitPuts) -> list[str]:
    """Its keys without those that an earlier attempt has stored: their objects may have left since."""
    grant = state.grants.get(request.grant)
    if grant is None or not PutRow.is_whole(request.rows) or PutRow.count(request.rows) != len(request.keys):
        return []
    rows = zip(request.keys, PutRow.iter_unpack(request.rows), strict=True)
    return [key for key, (offset, _, _) in rows if offset not in grant.commits]


def _leased_objects(state: State, now: Instant) -> dict[int, tuple[int, int]]:
    """Leased objects: their tenant and size."""
    catalogue = state.catalogue
    top = catalogue.top
    live = (catalogue.lease_until[:top] > now) & (catalogue.flags[:top] & (LIVE | MASKED) == LIVE)
    return {
        catalogue.id_at[slot]: (
            tenant_of(str(catalogue.keys[slot])),
            catalogue.size_at[slot] * catalogue.wanted_of(slot),
        )
        for slot in np.flatnonzero(live).tolist()
    }
