"""Tenants are defined, changed and removed by records, so that every later master knows them by the same numbers and
with the same quotas (ADR 50)."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import asdict, replace

from holdfast.core.catalogue.holdings import Held
from holdfast.core.objects.lease_share import count, share_of
from holdfast.core.primary.decision import Decision
from holdfast.core.primary.primary import Primary
from holdfast.core.state.state import State
from holdfast.core.state.tenants import DEFAULT_NAME, Tenant
from holdfast.errors import BadValue, OverCommitted, Refused
from holdfast.ids import MAX_TENANTS, namespace_of, tenant_of
from holdfast.instant import Instant
from holdfast.messages.of_tenants import ChangeTenant, ListTenants, RemoveTenant, TenantInfo, TenantList
from holdfast.messages.records import TenantChanged, TenantRemoved
from holdfast.messages.requests import Done

MAX_NAME_BYTES = 64
_MOST = 1 << 60
_DEFAULTS = Tenant(0, DEFAULT_NAME)


def _whole(value: float) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _share(value: float) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


QUOTAS: dict[str, tuple[Callable[[float], bool], str]] = {
    "guaranteed_bytes": (_whole, "a number of bytes"),
    "limit_bytes": (_whole, "a number of bytes, 0 for no limit"),
    "max_objects": (_whole, "a number, 0 for no limit"),
    "hard_pin_share": (_share, "a number from 0 to 1"),
    "max_clients": (_whole, "a number, 0 for no limit"),
    "requests_per_second": (_whole, "a number, 0 for no limit"),
    "lease_share": (_share, "a number from 0 to 1"),
}
"""Name -> (is this a value for it?, which values are)."""


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


def change_tenant(primary: Primary, request: ChangeTenant, client: int, now: Instant) -> Decision:
    state = primary.state
    name = request.name or DEFAULT_NAME
    number = state.tenants.number_of(name)
    if number is None:
        new = defined(state, name)
        before: Tenant | None = None
        tenant = Tenant(new.number, new.name)
    else:
        before = state.tenants.by_number.get(number)
        tenant = state.tenants.of(number)
    tenant = _with(tenant, request.quotas)
    _check(primary, tenant)
    info = _info(primary, tenant, now)
    if tenant == before or (before is None and tenant == _DEFAULTS):
        return Decision(TenantList([info]))
    return Decision(TenantList([info]), [TenantChanged(**asdict(tenant))])


def _with(tenant: Tenant, quotas: dict[str, int | float | None]) -> Tenant:
    changed: dict[str, int | float] = {}
    for name, value in quotas.items():
        if name not in QUOTAS:
            raise BadValue(f"{name!r} is no quota; nothing was changed. There are: " + ", ".join(QUOTAS))
        is_one, wanted = QUOTAS[name]
        if value is not None and not is_one(value):
            raise BadValue(f"{name} is {wanted}, not {value!r}; nothing was changed")
        changed[name] = getattr(_DEFAULTS, name) if value is None else value
    return replace(tenant, **changed)


def _check(primary: Primary, tenant: Tenant) -> None:
    """Refuse a guarantee that could not be kept."""
    if tenant.limit_bytes and tenant.guaranteed_bytes > tenant.limit_bytes:
        raise BadValue(
            f"a guarantee of {tenant.guaranteed_bytes:,} bytes is above the limit of {tenant.limit_bytes:,}; nothing "
            "was changed"
        )
    if tenant.max_clients and not tenant.number:
        raise BadValue("the clients of the default tenant are not counted: nodes are among them; nothing was changed")
    before = primary.state.tenants.of(tenant.number).guaranteed_bytes
    if tenant.guaranteed_bytes <= before:
        return
    others = [one for one in primary.state.tenants.by_number.values() if one.number != tenant.number]
    promised = sum(one.guaranteed_bytes for one in others)
    capacity, watermark = primary.capacity_bytes, primary.rules.high_watermark
    most = int(watermark * capacity)
    if promised + tenant.guaranteed_bytes > most:
        raise OverCommitted(
            f"{tenant.guaranteed_bytes:,} bytes for {tenant.name!r} and {promised:,} guaranteed to others are more "
            f"than {most:,}, {watermark:.0%} of the {capacity:,} bytes of memory there are; nothing was changed. "
            "Guarantee less, or add memory"
        )


def remove_tenant(primary: Primary, request: RemoveTenant, client: int, now: Instant) -> Decision:
    """The default tenant is always there: to remove it takes its quotas away."""
    tenants, catalogue = primary.state.tenants, primary.state.catalogue
    number = tenants.number_of(request.name or DEFAULT_NAME)
    if number is None or number not in tenants.by_number:
        return Decision(Done(0))
    held = catalogue.holdings.of(number) if catalogue.holdings is not None else Held()
    clients = _clients(primary, number)
    masked = any(tenant_of(catalogue.keys[slot] or "") == number for slot in primary.state.mask.slots().tolist())
    if number and (held.objects or clients or masked):
        raise Refused(
            f"the tenant {request.name!r} has {held.objects:,} objects and {clients:,} connected clients; nothing was "
            "changed. Remove its objects and its identities first"
        )
    return Decision(Done(1), [TenantRemoved(number)])


def list_tenants(primary: Primary, request: ListTenants, client: int, now: Instant) -> Decision:
    count(primary, now)
    return Decision(TenantList(tenants_of(primary, now)))


def tenants_of(primary: Primary, now: Instant) -> list[TenantInfo]:
    """All tenants, the default one first."""
    tenants = primary.state.tenants
    return [_info(primary, tenants.of(number), now) for number in sorted({0, *tenants.by_number})]


def _clients(primary: Primary, number: int) -> int:
    if not number:
        return 0  # Nodes and masters are among its connections.
    prefix = namespace_of(number)
    return sum(one == prefix for one in primary.namespaces.values())


def _info(primary: Primary, tenant: Tenant, now: Instant) -> TenantInfo:
    holdings, number = primary.state.catalogue.holdings, tenant.number
    if holdings is not None:
        held = holdings.by_number.get(number, Held())
    else:
        # Nothing is counted per tenant while there is none but the default: a new one holds nothing.
        held = Held() if number else Held(primary.capacity_bytes - primary.free_bytes, primary.state.objects)
    book = primary.tenants
    return TenantInfo(
        **(asdict(tenant) | {"lease_share": share_of(primary, tenant)}),
        used_bytes=held.used_bytes,
        objects=held.objects,
        pinned_bytes=held.pinned_bytes,
        leased_bytes=book.lease_room.leased.get(number, 0),
        clients=_clients(primary, number),
        evicted=book.evicted[number] if holdings is not None else primary.counts.evicted.total(),
        refused=book.refused[number],
    )
