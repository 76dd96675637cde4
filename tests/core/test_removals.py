"""Removing by key, by pattern, and everything."""

from __future__ import annotations

import pytest

from holdfast import errors
from holdfast.core.rules import REMEMBERED_ANSWERS, VISIT_SLOTS
from holdfast.ids import extent_of
from holdfast.messages import requests as q
from holdfast.messages.records import ObjectsRemoved
from tests.core.world import CLIENT, World


@pytest.fixture
def world() -> World:
    world = World()
    world.node("a", size=1 << 24)
    return world


def test_a_leased_object_is_removed_only_by_force_and_its_memory_waits(world: World) -> None:
    """I2, I8"""
    world.put("k")
    world.locate("k")
    refused = world.remove("k")
    assert (refused.removed, refused.leased) == (0, 1)
    assert refused.lease_left_ms == world.primary.rules.lease_ttl_ms
    free = world.primary.free_bytes
    assert world.remove("k", force=True).removed == 1
    assert world.has("k") == [False]
    assert world.primary.free_bytes == free
    world.check()
    world.pass_time(world.primary.rules.lease_ttl_ms)
    assert world.primary.free_bytes == free + extent_of(1_000)
    world.check()


def test_a_hard_pin_is_removed_only_by_force(world: World) -> None:
    world.put("k", hard_pin=True)
    assert world.remove("k").pinned == 1
    assert world.remove_matching("k") == 0
    assert world.remove("k", force=True).removed == 1


def test_a_removal_asked_again_removes_nothing_more(world: World) -> None:
    """I7: the key was put anew in between, and the late copy of the request must not take that."""
    world.put("k", "l")
    request = q.Remove(["k", "l", "absent"], serial=77)
    first = world.ask(q.Removed, request)
    assert (first.removed, first.missing) == (2, 1)
    world.put("k")
    assert world.ask(q.Removed, request) == first
    assert world.has("k") == [True]
    by_pattern = q.RemoveMatching("k", serial=78)
    assert world.ask(q.Removed, by_pattern).removed == 1
    world.put("k")
    assert world.ask(q.Removed, by_pattern).removed == 1
    assert world.has("k") == [True]
    assert len(world.state.answers) == 2


def test_the_memory_of_answers_is_bounded(world: World) -> None:
    """I17"""
    world.state.answers.update({(1, i): b"" for i in range(REMEMBERED_ANSWERS)})
    world.put("k")
    world.remove("k")
    assert len(world.state.answers) == REMEMBERED_ANSWERS
    assert (CLIENT, world.serial) in world.state.answers


def test_a_pattern_removes_what_it_matches_and_is_logged_as_ids(world: World) -> None:
    """I7"""
    world.put("a/1", "a/2", "b/1")
    assert world.remove_matching("^a/") == 2
    assert world.has("a/1", "a/2", "b/1") == [False, False, True]
    [removed] = [record for record in world.primary.records if isinstance(record, ObjectsRemoved)]
    assert len(removed.ids) == 16
    world.check()


def test_everything_is_removed_in_bounded_steps(world: World) -> None:
    count = VISIT_SLOTS + 1_000
    keys = [f"k{i}" for i in range(count)]
    for start in range(0, count, 4_096):
        world.put(*keys[start : start + 4_096], size=64)
    first = world.ask(q.Removed, q.RemoveMatching("", 1))
    assert first.removed == VISIT_SLOTS
    assert first.cursor == VISIT_SLOTS
    assert world.remove_matching("") == 1_000
    assert world.state.catalogue.count == 0
    assert world.primary.free_bytes == world.primary.capacity_bytes
    world.check()


def test_a_catastrophic_pattern_is_matched_in_linear_time_and_a_broken_one_refused(world: World) -> None:
    world.put("a" * 1_000 + "b")
    assert world.remove_matching("(a+)+$") == 0
    for broken in ("(", "[", "a{9999999}", "(?=x)", "x" * 5_000):
        with pytest.raises(errors.BadPattern):
            world.remove_matching(broken)
    assert world.state.catalogue.count == 1


def test_listing_by_prefix_meets_every_key_once(world: World) -> None:
    keys = {f"p{i % 3}/{i}" for i in range(9_000)}
    world.put(*keys, size=64)
    found: list[str] = []
    cursor = 0
    while True:
        page = world.ask(q.KeyList, q.ListKeys("p1/", cursor))
        found += page.keys
        cursor = page.cursor
        if not cursor:
            break
    assert sorted(found) == sorted(key for key in keys if key.startswith("p1/"))
