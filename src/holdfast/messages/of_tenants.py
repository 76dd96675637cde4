"""Requests about tenants and their quotas (ADR 50). They name tenants, never keys."""

from __future__ import annotations

import msgspec

from holdfast.identity.roles import Role
from holdfast.messages.shapes import Message


class ListTenants(Message, tag=52):
    """Ask for all tenants, the default one included; the same as `/api/v1/tenants`. Answered by `TenantList`, after the
    half second in which requests are counted."""

    needs = Role.OPERATOR


class ChangeTenant(Message, tag=53):
    """Change these quotas of a tenant, which is defined if it is new. None resets one to its default. Sent again, it
    changes nothing more. Answered by a `TenantList` of this one."""

    needs = Role.OPERATOR
    name: str
    quotas: dict[str, int | float | None] = {}


class RemoveTenant(Message, tag=54):
    """Remove a tenant that has no objects, grants or clients. Answered by `Done`: 0 if there was none."""

    needs = Role.OPERATOR
    name: str


class TenantInfo(msgspec.Struct, array_like=True):
    """A tenant: its quotas, and what it has of them."""

    name: str
    number: int
    guaranteed_bytes: int
    limit_bytes: int
    max_objects: int
    hard_pin_share: float
    max_clients: int
    requests_per_second: int
    lease_share: float
    used_bytes: int
    """Memory of its objects, all replicas together."""
    objects: int
    pinned_bytes: int
    leased_bytes: int
    clients: int
    evicted: int
    """Objects evicted since this primary began."""
    refused: int
    """Requests that a quota refused since this primary began."""
    request_rate: float = 0.0
    """Requests per second of its clients, over the last half second; only in answers to `ListTenants`."""


class TenantList(Message, tag=121):
    tenants: list[TenantInfo]
