"""`tenants`: what each tenant holds of its quotas, and changing them. They are in the log, and outlive a failover."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import connection
from holdfast.cli.cluster.masters import ask_one
from holdfast.cli.exit_codes import NOT_FOUND, OK
from holdfast.cli.options import takes
from holdfast.cli.output import Output, counted, human_bytes, plain
from holdfast.errors import BadValue
from holdfast.instant import now_seconds
from holdfast.messages.of_tenants import ChangeTenant, ListTenants, RemoveTenant, TenantInfo, TenantList
from holdfast.messages.requests import Done
from holdfast.settings import BadSetting, ClientSettings, parse_size

SPARE = ("OF", "LEASED", "PINNED", "REQUESTS/S", "GUARANTEED", "REFUSED")
_RESET = "default"


def _quota(flag: str, what: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        flag, metavar="VALUE", help=f"Of set: {what}. '{_RESET}' takes it back.", show_default=False
    )
    return option


@takes(ClientSettings)
def tenants(
    settings: ClientSettings,
    out: Output,
    action: Annotated[str, typer.Argument(metavar="[ACTION]", help="set or remove.")] = "",
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="The tenant; 'default' for clients of none.")] = "",
    guaranteed: Annotated[str, _quota("--guaranteed", "memory that others cannot evict, such as 10GiB")] = "",
    limit: Annotated[str, _quota("--limit", "memory that it cannot exceed, such as 40GiB")] = "",
    objects: Annotated[str, _quota("--objects", "the most objects")] = "",
    hard_pin_share: Annotated[str, _quota("--hard-pin-share", "the share of its memory that may be hard-pinned")] = "",
    clients: Annotated[str, _quota("--clients", "the most clients at the same time")] = "",
    requests_per_second: Annotated[str, _quota("--requests-per-second", "the most requests of all its clients")] = "",
    lease_share: Annotated[str, _quota("--lease-share", "the share of its memory that may be leased")] = "",
) -> int:
    """List the tenants and what they hold of their quotas; or set quotas of one, or remove one that is empty."""
    given = {
        "guaranteed_bytes": guaranteed,
        "limit_bytes": limit,
        "max_objects": objects,
        "hard_pin_share": hard_pin_share,
        "max_clients": clients,
        "requests_per_second": requests_per_second,
        "lease_share": lease_share,
    }
    quotas = {quota: _parsed(quota, value) for quota, value in given.items() if value}
    if action not in ("", "set", "remove") or bool(action) != bool(name) or (quotas and action != "set"):
        raise BadSetting("write: tenants; tenants set NAME --limit 40GiB ...; or tenants remove NAME")
    with connection.open_cache(settings) as cache:
        primary = cache.status().leader
    deadline = now_seconds() + settings.timeout
    if action == "remove":
        removed = ask_one(primary, settings.token, RemoveTenant(name), Done, deadline).count
        if out.as_json:
            out.data({"removed": removed})
        elif removed:
            out.line(f"{counted(removed, 'tenant')} removed")
        else:
            out.note(f"holdfast: no tenant is called {name!r}; nothing was removed. `holdfast tenants` lists them")
        return OK if removed else NOT_FOUND
    request = ChangeTenant(name, quotas) if action else ListTenants()
    found = ask_one(primary, settings.token, request, TenantList, deadline).tenants
    if out.as_json:
        out.data({"tenants": plain(found)})
    else:
        _print(out, found)
    return OK


def _parsed(quota: str, value: str) -> int | float | None:
    if value == _RESET:
        return None
    try:
        if quota.endswith("_bytes"):
            return parse_size(value)
        return float(value) if quota.endswith("_share") else int(value)
    except ValueError as error:
        raise BadValue(f"{value!r} cannot be {quota}: {error}; nothing was changed") from None


def _print(out: Output, found: list[TenantInfo]) -> None:
    rows = [
        (
            one.name,
            human_bytes(one.used_bytes),
            human_bytes(one.guaranteed_bytes) if one.guaranteed_bytes else "-",
            human_bytes(one.limit_bytes) if one.limit_bytes else "-",
            f"{one.objects:,}",
            f"{one.max_objects:,}" if one.max_objects else "-",
            f"{human_bytes(one.leased_bytes)} (share {one.lease_share:g})",
            f"{human_bytes(one.pinned_bytes)} (share {one.hard_pin_share:g})",
            f"{one.clients:,} of {one.max_clients:,}" if one.max_clients else f"{one.clients:,}",
            f"{one.request_rate:,.1f} of {one.requests_per_second:,}"
            if one.requests_per_second
            else f"{one.request_rate:,.1f}",
            f"{one.evicted:,}",
            f"{one.refused:,}",
        )
        for one in found
    ]
    headings = ("NAME", "USED", "GUARANTEED", "LIMIT", "OBJECTS", "OF", "LEASED", "PINNED", "CLIENTS", "REQUESTS/S")
    out.table((*headings, "EVICTED", "REFUSED"), rows, ("USED", "GUARANTEED", "LIMIT", "OBJECTS", "OF"), SPARE)
