"""Tenants are defined and changed by records, so that every later master knows them by the same numbers (ADR 50)."""

from __future__ import annotations

from holdfast.core.state.state import State
from holdfast.errors import BadValue
from holdfast.ids import MAX_TENANTS
from holdfast.messages.records import TenantChanged

MAX_NAME_BYTES = 64


def defined(state: State, name: str) -> TenantChanged:
    """The record of a new tenant."""
    if not name.isprintable() or not 0 < len(name.encode()) <= MAX_NAME_BYTES:
        raise BadValue(
            f"{name!r} cannot be a tenant's name: 1 to {MAX_NAME_BYTES} printable bytes; nothing was changed"
        )
    number = state.tenants.next_number
    if number > MAX_TENANTS:
        raise BadValue(f"{MAX_TENANTS:,} tenants were defined, the most there may be; nothing was changed")
    return TenantChanged(number, name)
