"""Pins that are changed after the put: what they keep, whose share they take, and what a standby knows of them."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.core.catalogue.catalogue import HARD_PIN
from holdfast.core.promotion import promote
from holdfast.core.rules import Rules
from holdfast.core.state.state import State
from holdfast.errors import LogHeldBack, TenantFull, TryAgain
from holdfast.ids import MAX_KEYS, GrantId, namespace_of
from holdfast.messages import requests as q
from holdfast.messages.log_versions import PINS
from holdfast.messages.records import PinsChanged
from holdfast.replication.batches import Position
from holdfast.replication.snapshots import dump, load
from holdfast.wire.codec import raised
from tests.core.tenants_world import KIB, TenantsWorld
from tests.core.world import CLIENT, World, check_holdings

HARD = {"hard_pin": True}
SOFT = {"soft_pin": True}


def world_of(size_kib: int = 100, **rules: float | str) -> World:
    world = World(**{"high_watermark": 1.0, **rules})
    world.node("a", size=size_kib * KIB)
    return world


def pin(world: World, *keys: str, **pins: bool) -> list[bool]:
    return [bool(found) for found in world.ask(q.Presence, q.ChangePins(list(keys), **pins)).found]


def stat(world: World, key: str) -> q.ObjectStat:
    [found] = world.ask(q.Stats, q.Stat([key])).stats
    assert found is not None
    return found


def fill(world: World, first: int, last: int) -> list[str]:
    keys = [f"k{i}" for i in range(first, last)]
    for key in keys:
        assert world.put(key, size=KIB) == [True]
        world.now += 1
    return keys


@pytest.mark.parametrize("preset", ["follow", "independent", "none"])
def test_what_is_pinned_hard_is_not_evicted_and_what_is_unpinned_is(preset: str) -> None:
    """I8"""
    world = world_of(standby_eviction=preset, eviction_margin=0.0)
    kept = fill(world, 0, 100)[:10]
    assert pin(world, *kept, **HARD) == [True] * 10
    fill(world, 100, 250)
    assert all(world.has(*kept)), "they are the longest unused, and stay"
    assert pin(world, *kept[:5]) == [True] * 5
    fill(world, 250, 350)
    assert world.has(*kept) == [False] * 5 + [True] * 5
    assert world.remove(kept[5]).pinned == 1
    world.check()


def test_a_soft_pin_goes_last_and_ends() -> None:
    world = world_of(eviction_margin=0.0)
    fill(world, 0, 100)
    pin(world, "k0", **SOFT)
    ttl_ms = world.state.soft_pin_ttl_ms
    assert stat(world, "k0").soft_pin_left_ms == ttl_ms
    fill(world, 100, 150)
    assert world.has("k0", "k1") == [True, False]
    world.pass_time(1_000)
    assert 0 < stat(world, "k0").soft_pin_left_ms < ttl_ms
    pin(world, "k0", **SOFT)
    assert stat(world, "k0").soft_pin_left_ms == ttl_ms, "it begins anew"
    world.pass_time(ttl_ms + 1)
    fill(world, 150, 151)
    assert world.has("k0") == [False]
    world.check()


def test_a_pin_takes_the_place_of_the_one_before() -> None:
    world = world_of()
    world.put("key", soft_pin=True)
    pin(world, "key", **HARD)
    assert (stat(world, "key").hard_pin, stat(world, "key").soft_pin_left_ms) == (True, 0)
    pin(world, "key", **SOFT)
    assert not stat(world, "key").hard_pin
    assert stat(world, "key").soft_pin_left_ms > 0
    pin(world, "key")
    assert (stat(world, "key").hard_pin, stat(world, "key").soft_pin_left_ms) == (False, 0)
    assert not world.state.catalogue.soft_pin_until
    assert not world.primary.twin.catalogue.soft_pin_until
    world.check()


def test_keys_are_answered_one_by_one_and_what_is_so_already_needs_no_record() -> None:
    world = world_of()
    world.put("a", "b")
    assert pin(world, "none", "b", "a", "b", **HARD) == [False, True, True, True]
    index = world.state.index
    assert pin(world, "b", "none", **HARD) == [True, False], "sent twice, it changes nothing"
    assert pin(world, "none", **SOFT) == [False]
    assert pin(world) == []
    assert world.state.index == index
    assert pin(world, "a", "b", **SOFT) == [True, True]
    assert isinstance(world.primary.records[-1], PinsChanged)
    world.check()


def test_a_later_object_under_the_key_does_not_inherit_the_pin() -> None:
    world = world_of()
    world.put("key")
    pin(world, "key", **HARD)
    assert world.put("key", upsert=True) == [True]
    assert not stat(world, "key").hard_pin
    world.check()


def test_more_keys_than_a_request_may_have_are_refused_and_change_nothing() -> None:
    """I17"""
    world = world_of()
    world.put("key")
    reply = world.send(q.ChangePins(["key"] * (MAX_KEYS + 1), **HARD))
    assert isinstance(reply, q.Failed)
    assert not stat(world, "key").hard_pin


def test_a_waiting_put_gets_the_room_of_what_is_unpinned() -> None:
    world = world_of()
    fill(world, 0, 100)
    pin(world, *(f"k{i}" for i in range(100)), **HARD)
    request = q.GrantRanges(GrantId(CLIENT, 9_999), (64).to_bytes(8, "little"))
    assert world.send(request) is None
    pin(world, "k50")
    world.pass_time(1)
    assert isinstance(world.late[0], q.Granted)
    assert world.has("k49", "k50") == [True, False]
    world.check()


def test_a_standby_that_guessed_an_eviction_takes_it_back() -> None:
    """I8: it masked the object before it knew of the pin, and would evict it as soon as it led."""
    world = world_of(high_watermark=0.5, standby_eviction="independent", standby_eviction_grace_ms=0)
    fill(world, 0, 40)
    twin = world.primary.twin
    twin.mask.add(twin.catalogue, np.array(twin.catalogue.by_key.slots_of(["k0"]), np.intp))
    assert twin.catalogue.by_key.slot_of("k0") < 0
    pin(world, "k0", **HARD)
    assert twin.catalogue.by_key.slot_of("k0") >= 0
    assert not twin.mask
    world.check()


def test_pins_outlive_a_promotion_and_a_snapshot() -> None:
    world = world_of()
    world.put("hard", "soft", "none")
    pin(world, "hard", "none", **HARD)
    pin(world, "soft", **SOFT)
    pin(world, "none")
    promoted = promote(world.primary.twin, Rules(), 1_000, True, world.now)
    restored = load(b"".join(dump(world.state, Position(4), world.now)), world.now).state
    for state in (promoted.state, restored):
        flags = [pins_in(state, key) for key in ("hard", "soft", "none")]
        assert flags == [(True, False), (False, True), (False, False)]


def pins_in(state: State, key: str) -> tuple[bool, bool]:
    """(hard, soft)"""
    catalogue = state.catalogue
    slot = catalogue.by_key.slot_of(key)
    return bool(catalogue.flags_at[slot] & HARD_PIN), slot in catalogue.soft_pin_until


def test_while_a_master_cannot_read_of_it_it_is_refused_and_nothing_changes() -> None:
    world = world_of()
    world.put("key")
    world.primary.read_by_all = lambda: PINS - 1
    index = world.state.index
    reply = world.send(q.ChangePins(["key"], **HARD))
    assert isinstance(reply, q.Failed)
    assert isinstance(raised(reply), LogHeldBack)
    assert (world.state.index, stat(world, "key").hard_pin) == (index, False)
    world.primary.read_by_all = lambda: PINS
    assert pin(world, "key", **HARD) == [True]
    assert world.state.log_version == PINS


def test_before_the_first_look_at_the_other_masters_a_client_is_to_try_again() -> None:
    world = world_of()
    world.put("key")
    world.primary.read_by_all = lambda: 0
    reply = world.send(q.ChangePins(["key"], **HARD))
    assert isinstance(reply, q.Failed)
    assert isinstance(raised(reply), TryAgain)
    assert not stat(world, "key").hard_pin


def tenants() -> TenantsWorld:
    world = TenantsWorld(high_watermark=1.0, eviction_margin=0.0)
    world.node("a", size=100 * KIB)
    world.define(1, limit_bytes=10 * KIB, hard_pin_share=0.5)
    world.define(2)
    assert world.store(1, *names(8)) is None
    return world


def names(count: int) -> list[str]:
    return [f"k{i}" for i in range(count)]


def keys_of(number: int, count: int) -> list[str]:
    return [namespace_of(number) + name for name in names(count)]


def pinned_bytes(world: World, number: int) -> int:
    assert world.state.catalogue.holdings is not None
    return world.state.catalogue.holdings.of(number).pinned_bytes


def test_a_tenants_share_holds_and_a_request_beyond_it_changes_no_pin() -> None:
    """I20"""
    world = tenants()
    mine = keys_of(1, 8)
    reply = world.send(q.ChangePins(mine[:6], **HARD), 101)
    assert isinstance(reply, q.Failed)
    error = raised(reply)
    assert isinstance(error, TenantFull)
    assert "this request would pin 6,144 more; it may pin 5,120, 50% of 10,240. No pin was changed" in str(error)
    assert pinned_bytes(world, 1) == 0
    assert pin(world, *mine[:5], **HARD) == [True] * 5
    assert pinned_bytes(world, 1) == 5 * KIB
    assert pin(world, *mine[:5], *mine[:5], **HARD) == [True] * 10, "what has its pin already takes nothing more"
    assert isinstance(world.send(q.ChangePins(mine[5:6], **HARD)), q.Failed)
    assert pin(world, *mine[:1], **SOFT) == [True]
    assert pin(world, *mine[1:2]) == [True]
    assert pinned_bytes(world, 1) == 3 * KIB
    assert pin(world, *mine[5:7], **HARD) == [True] * 2
    assert world.primary.tenants.refused[1] == 2
    world.check()


@pytest.mark.parametrize("count", [3, 90])
def test_holdings_follow_few_and_many_pins(count: int) -> None:
    world = TenantsWorld(high_watermark=1.0)
    world.node("a", size=1_000 * KIB)
    world.define(1)
    assert world.store(1, *names(count)) is None
    assert pin(world, *keys_of(1, count), **HARD) == [True] * count
    assert pinned_bytes(world, 1) == count * KIB
    assert pin(world, *keys_of(1, count - 1)) == [True] * (count - 1)
    assert pinned_bytes(world, 1) == KIB
    check_holdings(world.primary.twin)
    world.check()
