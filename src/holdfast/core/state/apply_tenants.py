"""Apply records of tenants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import asdict

from holdfast.core.catalogue.holdings import Holdings
from holdfast.core.state.applied import UNREMARKABLE, Applied
from holdfast.core.state.state import State
from holdfast.core.state.tenants import Tenant
from holdfast.instant import Instant
from holdfast.messages import records as r
from holdfast.messages.shapes import Record


def _tenant_changed(state: State, record: r.TenantChanged, now: Instant) -> Applied:
    state.tenants.put(Tenant(**asdict(record)))
    catalogue = state.catalogue
    if catalogue.holdings is None:
        catalogue.holdings = Holdings(catalogue)
    catalogue.holdings.make_room(record.number)
    return UNREMARKABLE


def _tenant_removed(state: State, record: r.TenantRemoved, now: Instant) -> Applied:
    state.tenants.remove(record.number)
    if not state.tenants:
        state.catalogue.holdings = None
    return UNREMARKABLE


APPLY_TENANTS: dict[type[Record], Callable[[State, Any, Instant], Applied]] = {
    r.TenantChanged: _tenant_changed,
    r.TenantRemoved: _tenant_removed,
}
