"""Bugs of tenants, of their quotas and of tickets for bytes, planted on purpose (I20, ADR 48, ADR 50)."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from holdfast.core.catalogue.holdings import Holdings
from holdfast.core.objects import puts, quotas, reads
from holdfast.core.objects.surplus import Surplus
from holdfast.core.primary.primary import Primary
from holdfast.core.primary.request_rate import RequestRate
from holdfast.core.state.tenants import Tenants
from holdfast.master import tenancy
from holdfast.messages import requests
from holdfast.node.commands.copier import Copier
from holdfast.node.memory import proofs
from holdfast.node.memory.proofs import TicketBook, check_write
from holdfast.replication import snapshot_store
from holdfast.simulation.world import nodes
from tests.simulation.planted import Patch, Planted, both


def evict_below_guarantees() -> Patch:
    real = Surplus.__init__

    def init(self: Surplus, state: Any, holdings: Holdings, *own: int) -> None:
        real(self, state, holdings, *own)
        for number, held in holdings.by_number.items():
            self._left[number] = held.used_bytes

    return patch.object(Surplus, "__init__", init)


def evict_beyond_limits_after_the_commit() -> Patch:
    """The excess of a put leaves with the next tick. Shares of hard pins hold."""
    real, fits = puts.make_way, puts.fits

    def make_way(primary: Any, coming: Any, *more: Any) -> Any:
        return real(primary, coming, *more) if coming.hard_pin else []

    def all_fit(primary: Any, key: str, size: int, hard_pin: bool) -> bool:
        return not hard_pin or fits(primary, key, size, hard_pin)

    return both(patch.object(puts, "make_way", make_way), patch.object(puts, "fits", all_fit))


def let_keys_of_one_put_give_way_to_each_other() -> Patch:
    real = quotas._own_evictable

    def own_evictable(primary: Any, holdings: Any, number: int, keys: Any, now: int) -> Any:
        return real(primary, holdings, number, (), now)

    return patch.object(quotas, "_own_evictable", own_evictable)


def forget_the_share_of_hard_pins() -> Patch:
    return patch.object(quotas, "_check_share", lambda *given: None)


def forget_the_share_of_leases() -> Patch:
    return both(
        patch.object(reads, "may_lease", lambda *given: True), patch.object(reads, "leasable", lambda *given: None)
    )


def _untranslated(kind: type[requests.Message]) -> Patch:
    """Neither alone nor in a batch."""
    return both(
        patch.dict(tenancy.INWARD, {kind: lambda *given: None}),
        patch.object(tenancy, "_FREQUENT", tenancy._FREQUENT - {kind}),
    )


def locate_in_the_default_tenant() -> Patch:
    return _untranslated(requests.Locate)


def remove_in_the_default_tenant() -> Patch:
    return _untranslated(requests.Remove)


def match_in_the_default_tenant() -> Patch:
    return _untranslated(requests.RemoveMatching)


def store_in_the_default_tenant() -> Patch:
    return _untranslated(requests.CommitPuts)


def list_keys_of_all() -> Patch:
    def key_list(view: tenancy.Tenancy, reply: requests.KeyList) -> None:
        reply.keys = [key[3:] if tenancy.is_reserved(key) else key for key in reply.keys]

    return both(
        patch.dict(
            tenancy.INWARD, {requests.ListKeys: lambda view, request, catalogue: setattr(request, "prefix", "")}
        ),
        patch.dict(tenancy.OUTWARD, {requests.KeyList: key_list}),
    )


def count_one_replica_of_each() -> Patch:
    """Holdings drift from what there is, on every master."""
    return patch.object(Holdings, "_change_one", _change_one)


def _change_one(self: Holdings, catalogue: Any, slot: int, sign: int) -> None:
    held = self.of(int(self.column[slot]))
    held.objects += sign
    held.used_bytes += sign * catalogue.size_at[slot]


def lose_quotas_in_snapshots() -> Patch:
    real = snapshot_store.load

    def load(content: Any, now: int) -> Any:
        restored = real(content, now)
        known = restored.state.tenants
        names = [type(one)(one.number, one.name) for one in known.by_number.values()]
        restored.state.tenants = Tenants(names, known.next_number)
        return restored

    return patch.object(snapshot_store, "load", load)


def lose_holdings_in_snapshots() -> Patch:
    """A master that starts from one counts from there on only."""
    real = snapshot_store.load

    def load(content: Any, now: int) -> Any:
        restored = real(content, now)
        if restored.state.catalogue.holdings is not None:
            restored.state.catalogue.holdings.by_number.clear()
        return restored

    return patch.object(snapshot_store, "load", load)


def take_expired_tickets() -> Patch:
    return patch.object(TicketBook, "_check_age", lambda *given: None)


def take_tickets_for_other_ranges() -> Patch:
    return patch.object(proofs, "_is_inside", lambda piece, ranges: True)


def take_tickets_for_other_segments() -> Patch:
    return patch.object(proofs, "same_mac", lambda one, other: True)


def give_memory_of_another_tenant_as_it_is() -> Patch:
    return patch.object(Primary, "needs_clearance", lambda *given: [])


def take_tickets_of_the_tenant_before() -> Patch:
    return patch.object(TicketBook, "_check_fences", lambda *given: None)


def take_grants_of_the_tenant_before() -> Patch:
    return patch.object(TicketBook, "check_write", lambda self, request: check_write(self.key, request))


def leave_the_bytes_of_the_tenant_before() -> Patch:
    return patch.object(nodes, "wipe", lambda room: None)


def copy_to_where_another_tenant_was_as_it_is() -> Patch:
    return patch.object(Copier, "_fenced", lambda *given: True)


def _of_tenants(name: str, plant: Any, *promises: str, seeds: int = 60) -> Planted:
    return Planted(name, plant, promises, seeds, scene="tenants")


def give_each_connection_a_rate_of_its_own() -> Patch:
    """Whoever connects again begins a new second."""
    real = tenancy.Tenancies._tenancy

    def fresh(self: tenancy.Tenancies, number: int, engine: Any) -> tenancy.Tenancy:
        self._rates.pop(number, None)
        return real(self, number, engine)

    return patch.object(tenancy.Tenancies, "_tenancy", fresh)


def refuse_no_request() -> Patch:
    return patch.object(RequestRate, "take", lambda *given: 0)


def let_any_number_of_clients_in() -> Patch:
    return patch.object(tenancy.Tenancies, "_check_clients", lambda *given: None)


def keep_clients_beyond_a_lowered_quota() -> Patch:
    real = tenancy.Tenancies.settle_all

    def settle_all(self: tenancy.Tenancies, peers: Any, engine: Any, now: int) -> Any:
        with patch.object(tenancy.Tenancies, "_check_clients", lambda *given: None):
            return real(self, peers, engine, now)

    return patch.object(tenancy.Tenancies, "settle_all", settle_all)


def grant_before_it_is_known_what_the_other_masters_read() -> Patch:
    return patch.object(Primary, "knows_clearance", True)


PLANTED_IN_TENANTS = (
    _of_tenants("evict below guarantees", evict_below_guarantees, "I20"),
    _of_tenants("evict beyond limits after the commit", evict_beyond_limits_after_the_commit, "I20"),
    _of_tenants("let keys of one put give way", let_keys_of_one_put_give_way_to_each_other, "I20", seeds=300),
    _of_tenants("forget the share of hard pins", forget_the_share_of_hard_pins, "I20", seeds=200),
    _of_tenants("forget the share of leases", forget_the_share_of_leases, "I20"),
    _of_tenants("locate in the default tenant", locate_in_the_default_tenant, "I20", "I7"),
    _of_tenants("remove in the default tenant", remove_in_the_default_tenant, "I20", "I7"),
    _of_tenants("match in the default tenant", match_in_the_default_tenant, "I20", seeds=300),
    _of_tenants("store in the default tenant", store_in_the_default_tenant, "I20"),
    _of_tenants("list keys of all tenants", list_keys_of_all, "I20"),
    _of_tenants("count one replica of each", count_one_replica_of_each, "I20"),
    _of_tenants("lose quotas in snapshots", lose_quotas_in_snapshots, "I5"),
    _of_tenants("lose holdings in snapshots", lose_holdings_in_snapshots, "I20"),
    _of_tenants("take expired tickets", take_expired_tickets, "I20"),
    _of_tenants("take tickets for other ranges", take_tickets_for_other_ranges, "I20"),
    _of_tenants("take tickets for other segments", take_tickets_for_other_segments, "I20"),
    _of_tenants("give memory of another tenant as it is", give_memory_of_another_tenant_as_it_is, "I20"),
    _of_tenants("take tickets of the tenant before", take_tickets_of_the_tenant_before, "I20", seeds=150),
    _of_tenants("take grants of the tenant before", take_grants_of_the_tenant_before, "I20"),
    _of_tenants("leave the bytes of the tenant before", leave_the_bytes_of_the_tenant_before, "I20"),
    _of_tenants(
        "copy to where another tenant was as it is", copy_to_where_another_tenant_was_as_it_is, "I20", seeds=150
    ),
    _of_tenants("give each connection a rate of its own", give_each_connection_a_rate_of_its_own, "I20", seeds=150),
    _of_tenants(
        "grant before it is known what the other masters read",
        grant_before_it_is_known_what_the_other_masters_read,
        "I20",
        seeds=450,
    ),
    _of_tenants("refuse no request", refuse_no_request, "I20"),
    _of_tenants("let any number of clients in", let_any_number_of_clients_in, "I20"),
    _of_tenants("keep clients beyond a lowered quota", keep_clients_beyond_a_lowered_quota, "I20"),
)
