"""Quotas of tenants (I20), one by one. `test_quota_storm` has them all at once."""

from __future__ import annotations

import pytest

from holdfast.core.promotion import promote
from holdfast.core.rules import EVICT_STEP, Rules
from holdfast.errors import BadValue, NoRoom, OverCommitted, Refused, TenantFull
from holdfast.messages import of_tenants as t
from holdfast.messages import requests as q
from holdfast.messages.records import TenantChanged
from holdfast.replication.batches import Position
from holdfast.replication.snapshots import dump, load
from tests.core.tenants_world import KIB, TenantsWorld
from tests.core.world import check_holdings

PRESETS = ("follow", "independent", "none")


def world_of(size_kib: int, **rules: float | str) -> TenantsWorld:
    world = TenantsWorld(**{"high_watermark": 1.0, "eviction_margin": 0.0, **rules})
    world.node("a", size=size_kib * KIB)
    return world


def names(first: int, last: int) -> list[str]:
    return [f"k{i:03}" for i in range(first, last)]


def fill(world: TenantsWorld, number: int, first: int, last: int) -> None:
    for name in names(first, last):
        assert world.store(number, name) is None
        world.pass_time(1)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_put_evicts_from_the_tenant_furthest_above_its_guarantee_and_none_below_it(preset: str) -> None:
    world = world_of(100, standby_eviction=preset)
    world.define(1, guaranteed_bytes=30 * KIB)
    world.define(2)
    fill(world, 1, 0, 30)  # The oldest of all, and guaranteed.
    fill(world, 2, 0, 50)
    fill(world, 0, 0, 20)
    fill(world, 0, 20, 40)  # Memory is full: 20 KiB leave.
    assert world.used(1) == 30 * KIB, "no put of others takes what is guaranteed (I20)"
    assert world.used(2) == 30 * KIB, "it was the furthest above its guarantee"
    assert world.names_of(2) == set(names(20, 50)), "inside a tenant the longest unused leave first"
    assert world.names_of(0) == set(names(0, 40))
    world.check()


@pytest.mark.parametrize("preset", PRESETS)
def test_eviction_by_watermark_stops_at_guarantees(preset: str) -> None:
    world = world_of(100, standby_eviction=preset)
    world.define(1, guaranteed_bytes=60 * KIB)
    fill(world, 1, 0, 60)
    fill(world, 0, 0, 40)
    world.ask(q.SettingsInForce, q.ChangeSettings({"high_watermark": 0.5, "eviction_margin": 0.1}))
    world.pass_time(50)
    assert (world.used(1), world.used(0)) == (60 * KIB, 0)
    world.pass_to_twin()
    check_holdings(world.primary.twin)
    held = world.primary.twin.catalogue.holdings
    assert held is not None
    assert held.of(1).used_bytes == 60 * KIB, "a standby that evicts on its own keeps them too"


@pytest.mark.parametrize("preset", PRESETS)
def test_a_soft_pinned_object_stays_while_another_tenant_has_unpinned_ones_to_give(preset: str) -> None:
    """One tenant's next object was larger than the rest of its surplus, and what it could not give was taken from soft
    pins instead of from the others (found by simulated seed 12002909)."""
    world = world_of(100, standby_eviction=preset)
    world.define(1, guaranteed_bytes=30 * KIB)
    assert world.store(1, "large", size=40 * KIB) is None  # Larger than the surplus of 10 KiB: it must stay.
    fill(world, 0, 0, 9)
    assert world.store(0, "pinned", soft_pin=True) is None
    world.ask(q.SettingsInForce, q.ChangeSettings({"high_watermark": 0.44, "eviction_margin": 0.0}))
    world.pass_time(50)
    assert world.names_of(1) == {"large"}
    assert world.names_of(0) == {*names(6, 9), "pinned"}
    world.check()


def test_a_put_may_evict_its_own_tenants_objects_below_the_guarantee_if_there_is_nothing_else() -> None:
    world = world_of(64)
    world.define(1, guaranteed_bytes=60 * KIB)
    fill(world, 1, 0, 60)
    assert isinstance(world.store(0, "large", size=8 * KIB), NoRoom)
    assert world.store(1, "large", size=8 * KIB) is None
    assert "large" in world.names_of(1)
    world.check()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_tenant_at_its_limit_evicts_its_own_oldest(preset: str) -> None:
    world = world_of(100, standby_eviction=preset)
    world.define(1, limit_bytes=10 * KIB)
    fill(world, 0, 0, 20)
    fill(world, 1, 0, 10)
    world.read(1, "k000")
    world.pass_time(1)
    assert world.store(1, "new", "newer") is None
    assert world.names_of(1) == {*names(3, 10), "k000", "new", "newer"}, "k001 and k002 were unused for longest"
    assert world.used(0) == 20 * KIB
    assert world.used(1) == 10 * KIB
    world.check()


def test_a_put_beyond_the_limit_is_refused_with_the_arithmetic_where_all_is_leased_or_pinned() -> None:
    world = world_of(100, lease_share=1.0)
    world.define(1, limit_bytes=4 * KIB, max_objects=5)
    assert world.store(1, "pinned", "pinned too", hard_pin=True) is None
    fill(world, 1, 0, 2)
    world.read(1, "k000", "k001")
    before = world.names_of(1)
    error = world.store(1, "new")
    assert isinstance(error, TenantFull)
    for figure in ("4,096 bytes of 4,096", "adds 1,024", "4 objects of 5", "'t1'"):
        assert figure in str(error)
    assert world.names_of(1) == before, "nothing that was acknowledged is thrown away (I20)"
    world.pass_time(20_000)
    assert world.store(1, "new") is None, "leases end"
    [info] = [one for one in world.ask(t.TenantList, t.ListTenants()).tenants if one.name == "t1"]
    assert (info.refused, info.evicted, info.used_bytes, info.objects) == (1, 1, 4 * KIB, 4)
    world.check()


def test_memory_for_named_keys_is_refused_before_anything_is_copied() -> None:
    world = world_of(100)
    world.define(1, limit_bytes=4 * KIB)
    with pytest.raises(TenantFull, match="adds 5,120"):
        world.grant(5 * KIB, client=101, keys=["\x01\x02\x03large"])
    assert not world.state.grants


def test_the_number_of_objects_has_a_limit_too() -> None:
    world = world_of(100)
    world.define(1, max_objects=3)
    fill(world, 1, 0, 5)
    assert world.names_of(1) == set(names(2, 5))
    error = world.store(1, *names(10, 14))
    assert isinstance(error, TenantFull)
    assert "adds 4" in str(error)
    world.check()


def test_an_upsert_at_the_limit_replaces_its_object_and_evicts_no_other() -> None:
    world = world_of(100)
    world.define(1, limit_bytes=4 * KIB, max_objects=4)
    fill(world, 1, 0, 4)
    assert world.store(1, "k002", upsert=True) is None
    assert world.names_of(1) == set(names(0, 4))
    world.check()


def test_a_lowered_limit_is_reached_by_the_next_tick() -> None:
    world = world_of(100)
    world.define(1)
    fill(world, 1, 0, 20)
    world.define(1, limit_bytes=5 * KIB)
    world.pass_time(50)
    assert world.names_of(1) == set(names(15, 20))
    world.check()


def test_hard_pins_have_a_share() -> None:
    world = world_of(100)
    world.define(1, limit_bytes=10 * KIB, hard_pin_share=0.5)
    assert world.store(1, *names(0, 5), hard_pin=True) is None
    error = world.store(1, "more", hard_pin=True)
    assert isinstance(error, TenantFull)
    assert "50% of 10,240" in str(error)
    assert world.store(1, "more") is None
    world.check()


def test_more_than_there_is_cannot_be_guaranteed() -> None:
    world = world_of(100, high_watermark=0.9)
    world.define(1, guaranteed_bytes=60 * KIB)
    with pytest.raises(
        OverCommitted, match=r"40,960 bytes for 't2' and 61,440 .* more than 92,160, 90% of the 102,400"
    ):
        world.define(2, guaranteed_bytes=40 * KIB)
    assert world.define(2, guaranteed_bytes=30 * KIB).guaranteed_bytes == 30 * KIB
    world.define(1, guaranteed_bytes=0)
    world.define(2, guaranteed_bytes=90 * KIB)
    world.check()


@pytest.mark.parametrize(
    ("quota", "value"),
    [("guaranteed_bytes", -1), ("limit_bytes", 0.5), ("lease_share", 1.5), ("max_objects", True), ("unknown", 1)],
)
def test_a_value_that_is_none_is_refused_and_nothing_changes(quota: str, value: float) -> None:
    world = world_of(100)
    with pytest.raises(BadValue, match="nothing was changed"):
        world.define(1, **{quota: value})
    assert not world.state.tenants


def test_at_its_limit_a_put_evicts_the_oldest_and_no_more_than_one_step_ahead() -> None:
    """I17: a share of a large limit would be tens of thousands of objects at once (ADR 51)."""
    world = world_of(2_000, eviction_margin=0.9)
    most = 2 * EVICT_STEP
    world.define(1, max_objects=most)
    for first in range(0, most, EVICT_STEP // 2):
        some = [f"k{number}" for number in range(first, first + EVICT_STEP // 2)]
        assert world.store(1, *some, size=64) is None
        world.now += 1
    assert world.store(1, "new", size=64) is None
    left = world.names_of(1)
    assert left == {"new", *(f"k{number}" for number in range(EVICT_STEP, most))}


def test_a_put_that_needs_more_room_than_one_step_frees_still_gets_it() -> None:
    world = world_of(4_000, eviction_margin=0.05)
    world.define(1, limit_bytes=(EVICT_STEP + 1_000) * 64)
    for first in range(0, EVICT_STEP + 1_000, 1_024):
        some = [f"k{number}" for number in range(first, min(first + 1_024, EVICT_STEP + 1_000))]
        assert world.store(1, *some, size=64) is None
    assert world.store(1, "large", size=(EVICT_STEP + 500) * 64) is None
    assert "large" in world.names_of(1)
    assert world.used(1) <= (EVICT_STEP + 1_000) * 64


def test_a_change_that_changes_nothing_is_no_record() -> None:
    world = world_of(100)
    world.define(1, limit_bytes=5 * KIB)
    count = len(world.primary.records)
    world.define(1, limit_bytes=5 * KIB)
    world.define(0)
    assert len(world.primary.records) == count
    assert isinstance(world.primary.records[-1], TenantChanged)
    assert world.define(1, limit_bytes=None).limit_bytes == 0  # type: ignore[arg-type]


def test_only_an_empty_tenant_can_be_removed() -> None:
    world = world_of(100)
    world.define(1, limit_bytes=5 * KIB)
    fill(world, 1, 0, 1)
    with pytest.raises(Refused, match="1 objects and 1 connected"):
        world.ask(q.Done, t.RemoveTenant("t1"))
    world.primary.namespaces.clear()
    world.remove("\x01\x02\x03k000")
    assert world.ask(q.Done, t.RemoveTenant("t1")).count == 1
    assert world.ask(q.Done, t.RemoveTenant("t1")).count == 0
    assert world.state.catalogue.holdings is None
    assert world.define(2).number == 2, "its number is given to nobody else"
    world.check()


def test_quotas_outlive_the_primary_and_a_snapshot() -> None:
    world = world_of(100)
    world.define(1, guaranteed_bytes=10 * KIB, limit_bytes=20 * KIB, requests_per_second=7, lease_share=0.5)
    fill(world, 1, 0, 15)
    fill(world, 0, 0, 5)
    loaded = load(b"".join(dump(world.state, Position(1, world.state.index, b""), world.now)), world.now).state
    for state in (world.primary.twin, loaded):
        assert state.tenants.by_number == world.state.tenants.by_number
        check_holdings(state)
        primary = promote(state, Rules(), 100, True, world.now)
        assert primary.state.catalogue.holdings is not None
        assert primary.state.catalogue.holdings.of(1).used_bytes == 15 * KIB


def test_the_default_tenant_costs_nothing_without_others_and_may_have_quotas() -> None:
    world = world_of(100)
    fill(world, 0, 0, 3)
    assert world.state.catalogue.holdings is None
    [info] = world.ask(t.TenantList, t.ListTenants()).tenants
    assert (info.name, info.used_bytes, info.objects) == ("default", 3 * KIB, 3)
    world.define(0, max_objects=2)
    world.pass_time(50)
    assert world.names_of(0) == set(names(1, 3))
    world.check()


def test_a_tenant_is_one_byte_per_object_and_two_beyond_255_tenants() -> None:
    world = world_of(100)
    for number in range(1, 257):
        world.define(number)
        holdings = world.state.catalogue.holdings
        assert holdings is not None
        assert holdings.column.itemsize == (1 if number < 256 else 2)
    fill(world, 256, 0, 2)
    assert world.used(256) == 2 * KIB
    world.check()


def test_a_tenant_that_is_not_there_yet_holds_nothing() -> None:
    """Though nothing is counted per tenant before there is a second one."""
    world = world_of(100)
    fill(world, 0, 0, 5)
    [shown] = world.ask(t.TenantList, t.ChangeTenant("new", {})).tenants
    assert (shown.used_bytes, shown.objects) == (0, 0)
