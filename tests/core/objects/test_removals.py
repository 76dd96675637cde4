"""Removing by key, by pattern, and everything."""

from __future__ import annotations

import pytest

from holdfast import errors
from holdfast.core.primary.decision import Unfinished
from holdfast.core.primary.lessees import MOST_KNOWN, Lessees
from holdfast.core.promotion import guard_leases
from holdfast.core.rules import REMEMBERED_ANSWERS, REMOVAL_STEP_SLOTS, VISIT_SLOTS
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


def forgetful(*keys: str, serial: int) -> q.Remove:
    return q.Remove(list(keys), serial, forgotten=True)


@pytest.mark.parametrize("keys", [["k"], [f"k{i}" for i in range(100)]], ids=["one", "a batch"])
def test_leases_that_their_only_client_has_forgotten_do_not_keep_it_from_removing(
    world: World, keys: list[str]
) -> None:
    world.put(*keys)
    for _ in range(2):
        world.ask(q.Located, q.Locate(keys), client=7)
    assert world.ask(q.Removed, q.Remove(keys, serial=1), client=7).leased == len(keys), "it may be reading them"
    assert world.ask(q.Removed, forgetful(*keys, serial=2), client=8).leased == len(keys), "it forgot nothing of this"
    assert world.ask(q.Removed, forgetful(*keys, serial=3), client=7).removed == len(keys)
    assert not world.state.quarantine
    world.check()


@pytest.mark.parametrize("keys", [["k"], [f"k{i}" for i in range(100)]], ids=["one", "a batch"])
def test_a_lease_of_anybody_else_counts_until_it_ends(world: World, keys: list[str]) -> None:
    """I8: also where the forgetful client had leases before and after it."""
    world.put(*keys)
    for client in (7, 8, 7):
        world.ask(q.Located, q.Locate(keys), client=client)
    assert world.ask(q.Removed, forgetful(*keys, serial=1), client=7).leased == len(keys)
    assert world.ask(q.Removed, q.RemoveMatching("", 2, forgotten=True), client=8).leased == len(keys)
    world.pass_time(world.primary.rules.lease_ttl_ms)
    world.ask(q.Located, q.Locate(keys), client=8)
    assert world.ask(q.Removed, q.RemoveMatching("", 3, forgotten=True), client=8).removed == len(keys)


def test_nobody_knows_whose_the_leases_of_an_earlier_primary_are(world: World) -> None:
    """I8: the old one may have given a lease to somebody else in its last second."""
    world.put("k")
    world.locate("k")
    until = world.now + world.primary.rules.lease_ttl_ms
    guard_leases(world.state, until)
    assert world.ask(q.Removed, forgetful("k", serial=1)).leased == 1
    world.locate("k")
    assert world.ask(q.Removed, forgetful("k", serial=2)).leased == 1


def test_the_numbers_of_lessees_are_bounded_and_never_return() -> None:
    """I17, I8."""
    lessees = Lessees()
    first = lessees.number_of(1)
    assert lessees.number_of(1) == first != 0
    seen = {lessees.number_of(client) for client in range(2, 2 + MOST_KNOWN)}
    assert len(seen) == MOST_KNOWN
    assert len(lessees._numbers) <= MOST_KNOWN
    assert lessees.number_of(1) not in {first, *seen}


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
    for kind in range(3):
        world.put(*(key for key in keys if key.startswith(f"p{kind}/")), size=64)
    found: list[str] = []
    cursor = 0
    while True:
        page = world.ask(q.KeyList, q.ListKeys("p1/", cursor))
        found += page.keys
        cursor = page.cursor
        if not cursor:
            break
    assert sorted(found) == sorted(key for key in keys if key.startswith("p1/"))


def test_a_removal_that_was_cut_short_goes_on_where_it_stopped_and_counts_nothing_twice(world: World) -> None:
    """I10: its steps are logged with the answer so far, and the client sends it again to the next primary."""
    keys = [f"k{number}" for number in range(REMOVAL_STEP_SLOTS * 3)]
    world.put(*keys, size=64)
    request = q.RemoveMatching("^k", serial=1)
    reply, _ = world.engine.handle(request, CLIENT, 1, world.now)
    assert isinstance(reply, Unfinished)
    assert world.state.catalogue.count == REMOVAL_STEP_SLOTS * 2
    again = world.ask(q.Removed, request)
    assert (again.removed, again.cursor) == (REMOVAL_STEP_SLOTS, REMOVAL_STEP_SLOTS)
    rest = world.ask(q.Removed, q.RemoveMatching("^k", serial=2, cursor=again.cursor))
    assert (rest.removed, rest.cursor) == (REMOVAL_STEP_SLOTS * 2, 0)
    assert world.state.catalogue.count == 0
    world.check()
