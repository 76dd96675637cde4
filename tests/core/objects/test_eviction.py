"""Eviction, leases and pins."""

from __future__ import annotations

import pytest

from holdfast import errors
from holdfast.ids import GrantId
from holdfast.messages import requests as q
from tests.core.world import CLIENT, World

KIB = 1 << 10


@pytest.fixture
def world() -> World:
    world = World()
    world.node("a", size=100 * KIB)
    return world


def fill(world: World, count: int, **more: object) -> list[str]:
    keys = [f"k{i}" for i in range(count)]
    for key in keys:
        world.put(key, size=KIB, **more)
        world.now += 1
    return keys


def test_over_the_watermark_the_longest_unused_go_until_the_margin_is_free(world: World) -> None:
    keys = fill(world, 90)
    world.locate("k0")
    world.pass_time(world.primary.rules.lease_ttl_ms + 1)
    world.put("one more", size=KIB)
    world.pass_time(1)
    gone = [key for key, there in zip(keys, world.has(*keys), strict=True) if not there]
    assert gone == [f"k{i}" for i in range(1, 7)], "91 KiB down to 85 KiB, without the one that was used last"
    assert world.engine.evicted == 6
    world.check()


def test_a_put_that_finds_no_room_evicts_and_gets_it() -> None:
    world = World(high_watermark=1.0)
    world.node("a", size=100 * KIB)
    fill(world, 100)
    assert world.put("new", size=KIB) == [True]
    assert not world.has("k0")[0]
    world.check()


def test_leased_and_hard_pinned_objects_are_never_evicted() -> None:
    """I8"""
    world = World(high_watermark=1.0)
    world.node("a", size=100 * KIB)
    keys = fill(world, 100, hard_pin=True)
    request = q.GrantRanges(GrantId(CLIENT, 9_999), (64).to_bytes(8, "little"))
    assert world.send(request) is None
    world.pass_time(1_000)
    assert isinstance(world.late[0], q.Failed)
    assert all(world.has(*keys))
    leased = World(high_watermark=1.0, lease_share=1.0)
    leased.node("a", size=100 * KIB)
    keys = fill(leased, 100)
    leased.locate(*keys)
    assert leased.send(request) is None
    assert all(leased.has(*keys))
    leased.pass_time(leased.primary.rules.lease_ttl_ms)
    assert leased.put("another", size=KIB) == [True]


@pytest.mark.parametrize("eviction", ["follow", "none"])
def test_a_put_that_waits_for_leases_to_end_gets_its_room_then(eviction: str) -> None:
    """I10: also under the watermark, where nothing else would be evicted."""
    world = World(standby_eviction=eviction)
    world.node("a", size=100 * KIB)
    keys = fill(world, 80)
    world.locate(*keys)
    assert (
        world.send(q.GrantRanges(GrantId(CLIENT, 9_999), (30 * KIB).to_bytes(8, "little")), timeout_ms=60_000) is None
    )
    world.pass_time(world.primary.rules.lease_ttl_ms - 1)
    assert world.late == []
    world.pass_time(1)
    world.pass_time(1)
    assert isinstance(world.late[0], q.Granted)
    world.check()


def test_a_waiting_put_gets_the_room_that_a_removal_frees() -> None:
    world = World(high_watermark=1.0)
    world.node("a", size=100 * KIB)
    fill(world, 100, hard_pin=True)
    request = q.GrantRanges(GrantId(CLIENT, 9_999), (64).to_bytes(8, "little"))
    assert world.send(request) is None
    world.remove("k50", force=True)
    assert isinstance(world.late[0], q.Granted)
    world.check()


def test_a_large_object_gets_contiguous_room_while_anything_may_be_evicted() -> None:
    world = World(high_watermark=1.0)
    world.node("a", size=100 * KIB)
    fill(world, 100)
    for i in range(1, 100, 2):
        world.remove(f"k{i}")
    assert world.send(q.GrantRanges(GrantId(CLIENT, 9_999), (90 * KIB).to_bytes(8, "little"))) is not None or world.late
    world.check()


def test_soft_pins_go_last_and_only_if_allowed() -> None:
    for allowed in (True, False):
        world = World(high_watermark=1.0, evict_soft_pinned=allowed)
        world.node("a", size=100 * KIB)
        pinned = fill(world, 50, soft_pin=True)
        for i in range(50):
            world.put(f"plain{i}", size=KIB)
        for i in range(50):
            world.put(f"more{i}", size=KIB)
        assert all(world.has(*pinned)), "there were others to evict"
        for i in range(50):
            world.remove(f"more{i}")
            world.put(f"pin{i}", size=KIB, hard_pin=True)
        request = q.GrantRanges(GrantId(CLIENT, 9_999), (10 * KIB).to_bytes(8, "little"))
        reply = world.send(request)
        assert (reply is not None or bool(world.late)) is allowed
        world.check()


def test_a_soft_pin_ends_when_the_object_is_not_used_for_its_time() -> None:
    world = World(high_watermark=1.0, soft_pin_ttl_ms=60_000, evict_soft_pinned=False)
    world.node("a", size=100 * KIB)
    fill(world, 100, soft_pin=True)
    stat = world.ask(q.Stats, q.Stat(["k0"])).stats[0]
    assert stat is not None
    assert 0 < stat.soft_pin_left_ms <= 60_000
    world.pass_time(40_000)
    world.locate("k0")
    world.pass_time(30_000)
    world.put("new", size=KIB)
    assert world.has("k0") == [True]
    assert world.has("k1") == [False]


def test_probing_does_not_lease_unless_asked(world: World) -> None:
    world.put("k")
    world.has("k")
    assert world.remove("k").removed == 1
    world.put("k")
    world.ask(q.Presence, q.Exists(["k"], touch=True))
    assert world.remove("k").leased == 1


def test_a_lease_only_grows(world: World) -> None:
    world.put("k")
    world.locate("k")
    before = world.state.catalogue.lease_at[0]
    world.now -= 5_000
    world.locate("k")
    world.locate(*["k"] * 20)
    assert world.state.catalogue.lease_at[0] == before


def test_a_batch_of_one_and_of_many_locate_alike(world: World) -> None:
    keys = fill(world, 30)
    rows = world.locate(*keys, "absent")
    assert rows == [*(world.locate(key)[0] for key in keys), (0, 0, 0, 0, 0)]


def test_explain_tells_why_an_object_is_kept_and_why_it_is_gone(world: World) -> None:
    world.put("k", hard_pin=True)
    world.locate("k")
    world.put("gone")
    world.remove("gone")
    told = world.ask(q.Explanations, q.Explain(["k", "gone", "never"]))
    assert told.stats[0] is not None
    assert any("hard-pinned" in reason for reason in told.reasons[0])
    assert any("leased" in reason for reason in told.reasons[0])
    assert "removed by its key" in told.reasons[1][0]
    assert "no object" in told.reasons[2][0]
    fill(world, 95)
    world.pass_time(world.primary.rules.lease_ttl_ms)
    assert "evicted" in world.ask(q.Explanations, q.Explain(["k0"])).reasons[0][0]


def test_a_stat_of_a_bad_key_is_refused(world: World) -> None:
    with pytest.raises(errors.BadKey):
        world.ask(q.Stats, q.Stat([""]))
