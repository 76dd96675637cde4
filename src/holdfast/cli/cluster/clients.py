"""`clients`: who is connected to the primary; `clients revoke WHO` ends one of them, or all of an identity."""

from __future__ import annotations

from typing import Annotated

from holdfast.cli import connection
from holdfast.cli.cluster.masters import ask_one
from holdfast.cli.declared import Operand
from holdfast.cli.exit_codes import OK
from holdfast.cli.output import Output, counted, human_bytes, human_ms
from holdfast.environment.client_settings import BadSetting, ClientSettings
from holdfast.instant import now_seconds
from holdfast.messages.of_masters import ClientInfo, ClientList, EndClient, ListClients
from holdfast.messages.requests import Done

HEADINGS = ("CLIENT", "NAME", "TENANT", "KIND", "ADDRESS", "PID", "GRANTS", "LEASES", "REQUESTS/S", "BYTES/S", "SINCE")
SPARE = ("PID", "GRANTS", "LEASES", "BYTES/S", "TENANT")
RIGHT = ("PID", "GRANTS", "LEASES", "REQUESTS/S", "BYTES/S", "SINCE")


def clients(
    settings: ClientSettings,
    out: Output,
    action: Annotated[str, Operand("[ACTION]", "revoke, or nothing to list them.")] = "",
    who: Annotated[str, Operand("[WHO]", "Of revoke: a client, or an identity's name.")] = "",
) -> int:
    """List who is connected, and what they do; or end a client's grants, leases and connections."""
    if action not in ("", "revoke") or bool(action) != bool(who):
        raise BadSetting("write `holdfast clients`, or `holdfast clients revoke WHO`")
    with connection.open_cache(settings) as cache:
        primary = cache.status().leader
    deadline = now_seconds() + settings.timeout
    if action:
        ended = ask_one(primary, settings.token, EndClient(who), Done, deadline).count
        if out.as_json:
            out.data({"revoked": ended})
        else:
            out.line(f"{counted(ended, 'client')} revoked: grants and leases ended, connections closed")
        return OK
    found = ask_one(primary, settings.token, ListClients(), ClientList, deadline)
    if out.as_json:
        out.data({"clients": found.clients, "total": found.total})
        return OK
    out.table(HEADINGS, [_row(one) for one in found.clients], RIGHT, SPARE)
    if found.total > len(found.clients):
        out.note(f"the busiest {len(found.clients):,} of {found.total:,}")
    return OK


def _row(one: ClientInfo) -> tuple[object, ...]:
    return (
        one.handle,
        one.name or "-",
        one.tenant or "-",
        one.kind,
        one.address,
        one.pid or "-",
        f"{one.grants} ({human_bytes(one.granted_bytes)})" if one.grants else 0,
        one.leases,
        f"{one.requests_per_second:,.1f}",
        human_bytes(one.bytes_per_second),
        human_ms(one.connected_ms),
    )
