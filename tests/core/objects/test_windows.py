"""Puts that need adjacent memory in a full cache: what is evicted for them, and what never is.

I8: nothing leased or pinned goes. I9: memory is accounted for. I10: no put is refused while there is a window.
"""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from holdfast.core.objects import room
from holdfast.core.objects.placement import Wanted
from holdfast.ids import SMALL_ALIGN, GrantId, extent_of
from holdfast.messages import requests as q
from tests.core.world import CLIENT, World

KIB = 1 << 10
MIB = 1 << 20
EVICTIONS = pytest.mark.parametrize("eviction", ["follow", "none"])


def ask_for(world: World, length: int, serial: int = 9_999, **more: object) -> q.Granted | None:
    """Memory, or None while the request waits for it."""
    request = q.GrantRanges(GrantId(CLIENT, serial), struct.pack("<Q", length), **more)  # type: ignore[arg-type]
    reply = world.send(request, timeout_ms=60_000)
    if reply is None and world.late:
        reply = world.late.pop()
    assert reply is None or isinstance(reply, q.Granted), reply
    return reply


def filled(count: int, size: int = KIB, **rules: float | str) -> tuple[World, list[str]]:
    """A node that is full of objects, put in this order."""
    world = World(high_watermark=1.0, eviction_margin=0, **rules)
    world.node("a", size=count * size)
    keys = [f"k{i:05}" for i in range(count)]
    for at in range(0, count, 64):
        world.put(*keys[at : at + 64], size=size)
        world.now += 10
    world.check()
    return world, keys


def missing(world: World, keys: list[str]) -> list[str]:
    return [key for key, there in zip(keys, world.has(*keys), strict=True) if not there]


@EVICTIONS
@pytest.mark.parametrize("share", [0.005, 0.05])
def test_small_puts_through_shared_grants_do_not_empty_a_cache_with_a_few_leases(share: float, eviction: str) -> None:
    """A shared grant is as long as the room allows; eviction does not go on until a long piece happens to be free."""
    world = World(standby_eviction=eviction)
    world.node("a", size=16 * MIB)
    keys = [f"k{i}" for i in range(3_500)]
    for at in range(0, len(keys), 100):
        world.put(*keys[at : at + 100], size=4 * KIB)
    world.pass_time(10)
    before = world.engine.evicted
    kept = [key for key in random.Random(7).sample(keys, int(share * len(keys))) if world.has(key) == [True]]
    world.touch(*kept)
    granted: q.Granted | None = None
    grants = used = 0
    for number in range(1_500):
        if granted is None or used + 4 * KIB > granted.length:
            finished = [GrantId(CLIENT, 50_000 + grants)] if grants else []
            grants += 1
            granted = ask_for(world, 8 * MIB, 50_000 + grants, least_bytes=4 * KIB, finished=finished)
            assert granted is not None
            used = 0
        world.commit(GrantId(CLIENT, 50_000 + grants), [(f"n{number}", used, 4 * KIB)])
        used += 4 * KIB
        if number % 50 == 0:
            world.pass_time(1)
        assert world.primary.free_bytes <= 0.20 * world.primary.capacity_bytes, "watermark less twice the margin"
    assert world.engine.evicted - before <= 1.5 * 1_500
    assert grants <= 1_500 / 8, "a grant serves many small puts"
    assert all(world.has(*kept))
    world.check()


def test_the_window_that_costs_least_is_taken_and_no_more_than_it() -> None:
    """Oldest bytes first; what is leased lies in none (I8)."""
    world, keys = filled(640)
    world.pass_time(3_600_000)
    old = keys[300:320]
    for key in [*keys[:300], *keys[320:]]:
        world.ask(q.Presence, q.Exists([key], touch=True))
    world.pass_time(world.primary.rules.lease_ttl_ms)
    world.locate(old[3])
    assert ask_for(world, 16 * KIB) is not None
    assert missing(world, keys) == old[4:], "the longest run of old ones without the leased one"
    world.check()


def test_fewer_bytes_go_where_some_are_free_already() -> None:
    world, keys = filled(640)
    world.pass_time(60_000)
    world.remove(*keys[400:410], *keys[412:418])
    gone = missing(world, keys)
    granted = ask_for(world, 18 * KIB)
    assert granted is not None
    assert sorted(set(missing(world, keys)) - set(gone)) == keys[410:412]
    world.check()


@EVICTIONS
def test_a_put_gets_the_only_window_there_is(eviction: str) -> None:
    """I10: everything else is leased, and the window is found, not stumbled upon."""
    world, keys = filled(640, standby_eviction=eviction, lease_share=1.0)
    window = set(keys[128:192])
    world.touch(*[key for key in keys if key not in window])
    granted = ask_for(world, 64 * KIB)
    assert granted is not None
    assert set(missing(world, keys)) == window
    assert ask_for(world, KIB, serial=10_000) is None, "now there is none"
    world.pass_time(world.primary.rules.lease_ttl_ms)
    world.pass_time(1)
    assert isinstance(world.late[0], q.Granted)
    world.check()


def test_nothing_is_evicted_where_no_window_exists() -> None:
    world, keys = filled(640)
    world.touch(*keys[::8])
    assert ask_for(world, 16 * KIB) is None
    world.pass_time(1_000)
    assert missing(world, keys) == []
    granted = ask_for(world, 16 * KIB, serial=10_000, least_bytes=4 * KIB)
    assert granted is not None, "a shorter one is there"
    assert 4 * KIB <= granted.length <= 7 * KIB
    world.check()


def test_a_smaller_put_behind_one_that_cannot_be_served_is_served_when_leases_end() -> None:
    """I10: of the puts that wait, one of each length asks again."""
    world, keys = filled(640, lease_share=1.0)
    world.touch(*keys)
    world.pass_time(5_000)
    world.touch(*keys[::2])
    assert ask_for(world, 64 * KIB, serial=10_000) is None
    assert ask_for(world, KIB, serial=10_001) is None
    world.pass_time(5_000)
    world.pass_time(1)
    assert [type(reply) for reply in world.late] == [q.Granted]
    assert world.late[0].length == KIB  # type: ignore[attr-defined]
    world.check()


def test_soft_pinned_objects_are_in_a_window_only_if_there_is_none_without() -> None:
    for allowed in (True, False):
        world = World(high_watermark=1.0, evict_soft_pinned=allowed)
        world.node("a", size=640 * KIB)
        for i in range(320):
            world.put(f"s{i:03}", size=KIB, soft_pin=True)
            world.put(f"p{i:03}", size=KIB)
        world.pass_time(60_000)
        soft = [f"s{i:03}" for i in range(320)]
        assert ask_for(world, KIB, serial=10_000) is not None
        assert missing(world, soft) == [], "there is a window without: any plain object"
        assert (ask_for(world, 4 * KIB, serial=10_001) is not None) is allowed
        assert len(missing(world, soft)) <= (2 if allowed else 0), "as few soft-pinned bytes as can be"
        world.check()


def test_two_replicas_each_get_a_window() -> None:
    world = World(high_watermark=1.0)
    for boot, name in enumerate("ab", 5):
        world.node(name, size=256 * KIB, boot=boot, connection=100 + boot)
    keys = [f"k{i:03}" for i in range(256)]
    for key in keys:
        world.put(key, size=KIB, replicas=2)
        world.now += 1
    world.touch(*keys[::16])
    granted = ask_for(world, 8 * KIB, replicas=2)
    assert granted is not None
    assert len({one.segment for one in granted.ranges}) == 2
    assert len(missing(world, keys)) <= 17
    world.check()


def take_in_the_end(world: World, size: int, least_bytes: int = 0) -> None:
    """A put that waits until it has its room."""
    granted = ask_for(world, size, serial=10_000, least_bytes=least_bytes)
    while granted is None:
        world.engine.tick(world.now)
        granted = world.late.pop() if world.late else None  # type: ignore[assignment]


def window_begun(eviction: str) -> tuple[World, list[str]]:
    """A put of 128 KiB has made the first step towards its room."""
    world, keys = filled(640, standby_eviction=eviction)
    world.pass_time(60_000)
    request = q.GrantRanges(GrantId(CLIENT, 10_000), struct.pack("<Q", 128 * KIB))
    assert world.engine.handle(request, CLIENT, 1, world.now)[0] is not None
    return world, keys


def clear_window(world: World) -> None:
    """The same put waits until it has its room."""
    take_in_the_end(world, 128 * KIB)


@EVICTIONS
def test_a_window_of_very_many_objects_is_emptied_in_steps_that_nobody_else_profits_from(
    eviction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "EVICT_STEP", 16)
    world, keys = window_begun(eviction)
    assert 0 < len(missing(world, keys)) <= 16, "one step"
    claimed = len(missing(world, keys))
    other = ask_for(world, 8 * KIB, serial=10_001)
    assert other is not None
    assert len(missing(world, keys)) > claimed, "it has a window of its own"
    clear_window(world)
    assert len(missing(world, keys)) <= 128 + 8 + 2
    assert not world.primary.claims
    world.check()


@EVICTIONS
def test_a_window_is_given_up_when_an_object_in_it_is_leased_or_nobody_waits(
    eviction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8, I9: its memory is lent again."""
    monkeypatch.setattr(room, "EVICT_STEP", 16)
    world, _ = window_begun(eviction)
    (claim,) = world.primary.claims.values()
    inside = [world.state.catalogue.keys[slot] for slot in claim.slots if world.state.catalogue.flags_at[slot]]
    leased = next(key for key in inside if key is not None and world.touch(key) == [True])
    clear_window(world)
    assert world.has(leased) == [True]
    assert not world.primary.claims
    free = world.primary.free_bytes
    monkeypatch.setattr(room, "EVICT_STEP", 1)
    again = q.GrantRanges(GrantId(CLIENT, 10_002), struct.pack("<Q", 128 * KIB))
    world.engine.handle(again, CLIENT, 3, world.now)
    assert world.primary.claims
    world.primary.reclaim(world.primary.give_up(GrantId(CLIENT, 10_002)))
    world.engine.connection_lost(3)
    assert not world.primary.claims
    assert world.primary.free_bytes > free
    world.check()


@EVICTIONS
def test_a_put_whose_window_is_being_emptied_takes_no_other_place(
    eviction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: the part of the window that was empty already was nobody's afterwards, where evictions are not logged."""
    monkeypatch.setattr(room, "EVICT_STEP", 2)
    world, keys = filled(640, standby_eviction=eviction)
    world.pass_time(60_000)
    world.touch(*keys[:3], *keys[4:8])
    world.remove(keys[3])
    take_in_the_end(world, 512 * KIB, least_bytes=KIB)
    assert not world.primary.claims
    world.check()


def test_a_choice_among_objects_of_all_sizes_never_overlaps_what_stays() -> None:
    """I8 and I9, with chance: leases, pins, grants that are held, removals and puts of any length."""
    chance = random.Random(3)
    world = World(high_watermark=0.95)
    world.node("a", size=4 * MIB)
    pinned: set[str] = set()
    held: list[GrantId] = []
    for number in range(900):
        size = chance.choice((100, 3_000, 20_000, 70_000, 300_000))
        length = extent_of(size)
        granted = ask_for(world, length, serial=20_000 + number)
        if granted is None:
            world.late.clear()
            world.engine.connection_lost(1)
            continue
        grant = GrantId(CLIENT, 20_000 + number)
        if chance.random() < 0.05:
            held.append(grant)
            continue
        pin = chance.random() < 0.02 and size < 20_000
        world.commit(grant, [(f"k{number}", 0, size)], hard_pin=pin)
        if pin:
            pinned.add(f"k{number}")
        world.ask(q.Done, q.ReturnGrants([grant]))
        if chance.random() < 0.3:
            world.touch(f"k{chance.randrange(number + 1)}")
        if held and chance.random() < 0.2:
            world.ask(q.Done, q.ReturnGrants([held.pop(0)]))
        if chance.random() < 0.5:
            world.pass_time(chance.choice((1, 300, 3_000)))
    assert world.engine.evicted > 100
    assert all(world.has(*pinned))
    world.check()


@pytest.mark.parametrize("least", [64, 4_160, 6_528, 131_072])
def test_the_shortest_length_that_will_do_is_tried_too(least: int) -> None:
    """I10: halving alone may pass it over, and a put waited beside a window of its length (seeds 7010, 500311)."""
    world = World()
    world.node("a", size=1 << 20)
    wanted = Wanted(131_072, least, 1, [], will_fill=False)
    lengths = room.lengths_to_try(world.primary, wanted)
    assert lengths[-1] == wanted.floor
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("objects_per_ms", [room.OBJECTS_PER_MS, 1])
def test_a_put_that_waits_gets_a_window_of_a_node_that_is_back(
    monkeypatch: pytest.MonkeyPatch, objects_per_ms: int
) -> None:
    """I10: no record says that a node answers again, so what was found without it counts no more (seed 900645)."""
    monkeypatch.setattr(room, "OBJECTS_PER_MS", objects_per_ms)
    world = World(high_watermark=1.0, eviction_margin=0)
    world.node("a", size=64 * KIB, boot=5, connection=100)
    for number in range(64):
        world.put(f"leased{number}", size=KIB)
    world.node("b", size=64 * KIB, boot=6, connection=101)
    keys = [f"k{number}" for number in range(64)]
    for key in keys:
        world.put(key, size=KIB)
    world.now += world.primary.rules.session_lease_ms
    world.touch(*[f"leased{number}" for number in range(64)])
    world.keep_alive(5, connection=100)
    assert ask_for(world, 16 * KIB) is None, "the one node that answers has no window"
    world.keep_alive(6, connection=101)
    assert [type(reply) for reply in world.late] == [q.Granted]
    assert len(missing(world, keys)) == 16
    world.check()


def test_a_put_that_waits_gets_a_window_when_records_become_durable_in_the_same_moment() -> None:
    """I10: what a record freed is lent when that is durable, and no record says so (seed 1002982)."""
    world = World(high_watermark=1.0, eviction_margin=0)
    world.node("a", size=64 * KIB)
    for number in range(64):
        world.put(f"k{number}", size=KIB)
    world.touch(*[f"k{number}" for number in range(48)])
    primary = world.primary
    handle, allocator = next(iter(primary.allocators.items()))
    world.remove(*[f"k{number}" for number in range(48, 56)])
    start = allocator.alloc(8 * KIB, SMALL_ALIGN)
    assert start is not None
    number = primary.withhold([(handle, np.array([start]), np.array([8 * KIB]))])
    wanted = Wanted(16 * KIB, 16 * KIB, 1, [], will_fill=True)
    assert room.make_room(primary, GrantId(9, 1), wanted, [16 * KIB], world.now) == room.RoomSought()
    primary.reclaim(primary.release(number))
    found = room.make_room(primary, GrantId(9, 1), wanted, [16 * KIB], world.now)
    assert found.room is not None, "it lies beside what may be evicted"
