"""Every master counts the same holdings of tenants as a look at every object finds (I20, ADR 50); and a standby that
evicts on its own takes nothing below a guarantee."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core.catalogue.catalogue import HARD_PIN, MASKED, MEMORY
from holdfast.core.catalogue.holdings import Held
from holdfast.core.state.state import State
from holdfast.ids import extent_of, tenant_of
from holdfast.simulation.checks.log_checks import Report


class OwnedObject(NamedTuple):
    tenant: int
    size_bytes: int
    """Memory, all replicas together."""
    is_pinned: bool


def owned_objects(state: State) -> dict[int, OwnedObject]:
    """All visible objects, by a look at each."""
    catalogue = state.catalogue
    return {
        catalogue.id_at[slot]: OwnedObject(
            tenant_of(str(catalogue.keys[slot])),
            extent_of(catalogue.size_at[slot]) * sum(place.kind == MEMORY for place in catalogue.replicas(slot)),
            bool(catalogue.flags_at[slot] & HARD_PIN),
        )
        for slot in catalogue.live().tolist()
        if not catalogue.flags_at[slot] & MASKED
    }


def held_by(objects: dict[int, OwnedObject], tenant: int) -> Held:
    own = [one for one in objects.values() if one.tenant == tenant]
    pinned = sum(one.size_bytes for one in own if one.is_pinned)
    return Held(sum(one.size_bytes for one in own), len(own), pinned)


class StandbyView(NamedTuple):
    """A standby at the last look."""

    state: State
    applied: int
    objects: dict[int, OwnedObject]


class HoldingChecks:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._standbys: dict[str, StandbyView] = {}

    def hidden(self, name: str, state: State) -> None:
        """Check what a standby that evicts on its own has hidden since the last look, if it has applied nothing since.
        Called now and then."""
        objects, before = owned_objects(state), self._standbys.get(name)
        self._standbys[name] = StandbyView(state, state.index, objects)
        if before is None or before.state is not state or before.applied != state.index:
            return
        for tenant in {one.tenant for oid, one in before.objects.items() if oid not in objects}:
            quota, held = state.tenants.of(tenant), held_by(objects, tenant).used_bytes
            if held < quota.guaranteed_bytes:
                what = f"{name} hides objects of {quota.name!r}: {held:,} bytes are left"
                self._report("I20", f"{what}, and {quota.guaranteed_bytes:,} are guaranteed", name)

    def look(self, name: str, state: State) -> None:
        """A master's sums of holdings are what a look at every object finds. Called now and then, and at the end."""
        holdings = state.catalogue.holdings
        if (holdings is None) != (not state.tenants):
            self._report("I20", f"{name} {'counts no' if holdings is None else 'counts'} holdings of tenants", name)
        if holdings is None:
            return
        objects = owned_objects(state)
        for number in sorted({one.tenant for one in objects.values()} | holdings.by_number.keys()):
            counted, held = holdings.of(number), held_by(objects, number)
            if counted != held:
                self._report("I20", f"{name} counts {counted} for tenant {number}, which has {held}", name)
