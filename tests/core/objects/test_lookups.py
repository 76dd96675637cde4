"""Lookups that use without leasing, and lookups by those who cannot reach every node."""

from __future__ import annotations

import pytest

from holdfast.messages import requests as q
from holdfast.messages.requests import Exists, Presence
from holdfast.wire.codec import decode_request, encode
from tests.core.world import World

KIB = 1 << 10


@pytest.fixture
def world() -> World:
    world = World(high_watermark=1.0)
    world.node("a", size=100 * KIB)
    return world


def stat(world: World, key: str) -> q.ObjectStat:
    (found,) = world.ask(q.Stats, q.Stat([key])).stats
    assert found is not None
    return found


def test_to_use_puts_off_eviction_and_takes_no_lease(world: World) -> None:
    for number in range(100):
        world.put(f"k{number}", size=KIB)
        world.now += 1
    assert world.ask(Presence, Exists(["k0", "missing"], use=True)).found == b"\1\0"
    assert stat(world, "k0").lease_left_ms == 0
    assert stat(world, "k0").unused_ms == 0
    assert world.put("new", size=KIB) == [True]
    assert world.has("k0", "k1") == [True, False]
    world.check()


def test_a_use_is_told_to_standbys_as_a_lease_of_no_time() -> None:
    world = World(lease_sync="every")
    world.node("a", size=100 * KIB)
    world.put("key")
    world.pass_time(50)
    world.ask(Presence, Exists(["key"], use=True))
    slot = world.state.catalogue.by_key.slot_of("key")
    assert world.state.catalogue.used_at[slot] == world.now
    assert world.state.catalogue.lease_at[slot] <= world.now
    world.check()


def test_what_lies_only_where_the_caller_cannot_reach_is_not_there_for_it() -> None:
    world = World()
    for boot, name in enumerate(("a", "b"), 5):
        world.node(name, size=100 * KIB, boot=boot, connection=boot)
    for name in ("a", "b"):
        grant, _ = world.grant(1_000, prefer=[name])
        world.commit(grant, [(f"on {name}", 0, 1_000)])
    world.put("on both", replicas=2)
    keys = ["on a", "on b", "on both", "missing"]
    a, b = world.handle_of("a"), world.handle_of("b")

    def seen(*without: int, touch: bool = False) -> bytes:
        return world.ask(Presence, Exists(keys, touch, without=list(without))).found

    assert seen() == b"\1\1\1\0"
    assert seen(a) == b"\0\1\1\0"
    assert seen(a, touch=True) == b"\0\1\1\0"
    assert stat(world, "on a").lease_left_ms == 0, "nobody reads it"
    assert stat(world, "on b").lease_left_ms > 0
    assert seen(a, b) == b"\0\0\0\0"
    world.check()


def test_older_peers_understand_each_other() -> None:
    """An older client's request has neither field; an older master passes over them."""
    assert decode_request(b"\x93\x02\x91\xa3key\xc3") == Exists(["key"], touch=True)
    assert encode(Exists(["key"], use=True)).startswith(b"\x95\x02\x91\xa3key\xc2")


def test_a_lookup_of_no_keys_is_answered_with_no_rows() -> None:
    """I17: found by `make fuzz`; the request failed with a ValueError."""
    world = World()
    world.node("a", size=1 << 20)
    assert world.locate() == []
