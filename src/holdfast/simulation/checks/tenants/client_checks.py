"""Quotas of a tenant's clients hold (I20, ADR 50): how many are connected, and how many requests they have decided.

The clients are counted by their connections, and the requests by a second look at every one that reaches the engine:
those that a quota refuses never do. What keeps leases and grants alive is not refused, and not counted here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.core.primary.decision import NextStep
from holdfast.core.state.tenants import Tenant
from holdfast.identity.roles import Role
from holdfast.instant import Instant
from holdfast.master.engine.engine import Engine, Reply
from holdfast.master.server import RpcServer
from holdfast.messages.of_tenants import ChangeTenant
from holdfast.messages.requests import ExtendGrants, RenewLeases, ReturnGrants
from holdfast.messages.shapes import Message
from holdfast.simulation.checks.log_checks import Report

KEEPING = (RenewLeases, ExtendGrants, ReturnGrants)
Handle = Callable[[Message | NextStep, int, int, Instant], tuple[Reply, int]]


@dataclass(eq=False)
class ClientChecks:
    """Watches one primary."""

    _name: str
    _engine: Engine
    _server: RpcServer
    _report: Report
    _left: dict[int, tuple[Tenant, float, Instant]] = field(default_factory=dict)
    """Tenant -> (its quotas, requests that it may have decided at once, as of when)."""

    def handle(
        self, handle: Handle, request: Message | NextStep, client: int, connection: int, now: Instant
    ) -> tuple[Reply, int]:
        peer = self._server.connections.get(connection)
        if self._engine.state.tenants and peer is not None and not isinstance(request, NextStep):
            number = self._engine.state.tenants.number_of(peer.identity.tenant)
            tenant = self._engine.state.tenants.of(number or 0)
            if tenant.max_clients:
                self._count(tenant)
            if tenant.requests_per_second and request.needs in (Role.READER, Role.WRITER):
                self._take(tenant, request, now)
        answered = handle(request, client, connection, now)
        if isinstance(request, ChangeTenant):  # A rate that was changed begins anew.
            of = self._engine.state.tenants.of
            self._left = {number: one for number, one in self._left.items() if one[0] == of(number)}
        return answered

    def _count(self, tenant: Tenant) -> None:
        there = {
            peer.client
            for peer in self._server.connections.values()
            if peer.is_greeted and not peer.transport.is_closing() and peer.identity.tenant == tenant.name
        }
        if len(there) > tenant.max_clients:
            what = f"serves {len(there)} clients of {tenant.name!r}, which may have {tenant.max_clients}"
            self._report("I20", f"{self._name} {what}", self._name)

    def _take(self, tenant: Tenant, request: Message, now: Instant) -> None:
        most = float(tenant.requests_per_second)
        _, left, since = self._left.get(tenant.number, (tenant, most, now))
        left = min(most, left + (now - since) * most / 1_000) - (not isinstance(request, KEEPING))
        self._left[tenant.number] = tenant, left, now
        if left < -1e-6:
            what = f"decides more requests of {tenant.name!r} than {tenant.requests_per_second} a second"
            self._report("I20", f"{self._name} {what}", self._name)
