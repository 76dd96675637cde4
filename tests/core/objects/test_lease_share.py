"""Leases have a share of memory: reads beyond it work without one, so that readers stop nobody's puts."""

from __future__ import annotations

import pytest

from holdfast.core.promotion import promote
from holdfast.core.rules import Rules
from holdfast.messages import requests as q
from holdfast.messages.rows import SeenRow
from tests.core.tenants_world import KIB, TenantsWorld
from tests.core.test_tenants import PRESETS, fill, names, world_of


def leased(world: TenantsWorld, number: int, *keys: str) -> list[bool]:
    located = world.read(number, *keys)
    if located.leased:
        assert (located.lease_ttl_ms, located.leased_ms) == (0, world.primary.rules.lease_ttl_ms)
        return [bool(one) for one in located.leased]
    return [located.lease_ttl_ms > 0] * len(keys)


def test_a_batch_gets_leases_up_to_the_share_and_places_beyond_it() -> None:
    world = world_of(100)
    fill(world, 0, 0, 100)
    assert leased(world, 0, *names(0, 100)) == [True] * 80 + [False] * 20
    assert not leased(world, 0, "k090")[0]
    assert leased(world, 0, "k010")[0], "a lease that lives is renewed"
    world.pass_time(20_000)
    assert leased(world, 0, *names(50, 100)) == [True] * 50


def test_few_objects_in_much_memory_are_all_leased() -> None:
    world = world_of(100)
    fill(world, 0, 0, 1)
    assert leased(world, 0, "k000")[0]
    fill(world, 0, 1, 70)
    assert all(leased(world, 0, *names(0, 70)))


@pytest.mark.parametrize("preset", PRESETS)
def test_a_client_that_locates_everything_costs_nobody_a_put(preset: str) -> None:
    world = world_of(100, standby_eviction=preset)
    fill(world, 0, 0, 100)
    for i in range(100):
        world.pass_time(300)
        world.read(0, *sorted(world.names_of(0)))
        assert world.store(0, f"new {i}") is None
    world.check()


def test_objects_that_are_leased_one_by_one_or_by_id_count_too() -> None:
    world = world_of(10)
    fill(world, 0, 0, 10)
    assert [leased(world, 0, name)[0] for name in names(0, 10)] == [True] * 8 + [False] * 2
    [row] = world.locate("k009")
    found = world.ask(q.Presence, q.RenewLeases(SeenRow.pack_rows([row[:3]])))
    assert (found.found, found.lease_ttl_ms) == (b"\1", 0), "it is still there, and has no lease"
    world.touch(*names(0, 10))
    until = [world.state.catalogue.lease_at[slot] > world.now for slot in range(10)]
    assert sum(until) == 8


def test_a_tenant_has_its_own_share_of_what_it_holds_where_memory_is_full() -> None:
    world = world_of(100)
    world.define(1)
    world.define(2, lease_share=0.5)
    fill(world, 1, 0, 50)
    fill(world, 2, 0, 50)
    assert sum(leased(world, 1, *names(0, 50))) == 40
    assert sum(leased(world, 2, *names(0, 50))) == 25
    assert world.store(1, "new") is None
    assert world.store(2, "new") is None
    world.check()


def test_what_is_guaranteed_to_others_cannot_be_leased_away() -> None:
    world = world_of(100)
    world.define(1, guaranteed_bytes=50 * KIB)
    fill(world, 0, 0, 100)
    for _ in range(50):
        world.pass_time(300)
        assert sum(leased(world, 0, *sorted(world.names_of(0)))) <= 40
    fill(world, 1, 0, 50)
    assert world.used(1) == 50 * KIB
    world.check()


def test_a_tenant_with_more_than_its_share_by_now_renews_nothing() -> None:
    world = world_of(100)
    fill(world, 0, 0, 100)
    assert sum(leased(world, 0, *names(0, 100))) == 80
    world.define(1, guaranteed_bytes=90 * KIB)
    world.pass_time(2_000)
    assert not any(leased(world, 0, *names(0, 100)))
    world.pass_time(20_000)
    assert sum(leased(world, 0, *sorted(world.names_of(0)))) == 8


def test_a_changed_share_counts_at_once() -> None:
    world = world_of(100)
    world.define(1)
    fill(world, 1, 0, 20)
    assert all(leased(world, 1, *names(0, 10)))
    world.define(1, lease_share=0.1)
    assert not any(leased(world, 1, *names(10, 20)))
    world.define(1, lease_share=1.0)
    assert all(leased(world, 1, *names(10, 20)))


def test_leases_that_a_promotion_assumes_do_not_count() -> None:
    world = world_of(100)
    fill(world, 0, 0, 100)
    primary = promote(world.primary.twin, Rules(), 100, True, world.now)
    assert (primary.state.catalogue.lease_until[:100] > world.now).all()
    world.engine.primary = primary
    world.now += 1
    assert all(leased(world, 0, *names(0, 100))), "they are leased already"


def test_every_renewal_in_the_log_says_what_was_leased() -> None:
    world = world_of(10, lease_sync="every")
    fill(world, 0, 0, 10)
    world.read(0, *names(0, 10))
    twin = world.primary.twin.catalogue
    ours = world.state.catalogue
    assert ((twin.lease_until[:10] > 0) == (ours.lease_until[:10] > 0)).all()
    assert sum(ours.lease_until[:10] > world.now) == 8
