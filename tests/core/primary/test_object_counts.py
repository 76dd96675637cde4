"""Hits, misses, puts and evictions are counted on every path that objects take."""

from __future__ import annotations

import pytest

from holdfast.core.primary.object_counts import EvictionReason
from holdfast.core.rules import SCALAR_BELOW
from tests.core.tenants_world import TenantsWorld
from tests.core.world import World

KIB = 1 << 10


@pytest.mark.parametrize("count", [1, 3, 2 * SCALAR_BELOW], ids=["one key", "a few", "many"])
def test_reads_are_hits_or_misses_and_count_the_bytes_that_they_find(count: int) -> None:
    world = World()
    world.node("a", size=4 << 20)
    keys = [f"k{number}" for number in range(count)]
    world.put(*keys, size=KIB)
    counts = world.primary.counts
    assert (counts.stored, counts.stored_bytes) == (count, count * KIB)
    world.locate(*keys)
    assert (counts.hits, counts.hit_bytes, counts.misses) == (count, count * KIB, 0)
    world.locate(*[f"other {key}" for key in keys])
    assert (counts.hits, counts.misses) == (count, count)
    world.locate(*keys, "absent")
    assert (counts.hits, counts.hit_bytes, counts.misses) == (2 * count, 2 * count * KIB, count + 1)


def test_a_probe_is_no_read_and_a_put_of_a_key_that_is_there_stores_nothing() -> None:
    world = World()
    world.node("a", size=1 << 20)
    world.put("k", size=KIB)
    world.has("k", "other")
    world.put("k", size=KIB)
    counts = world.primary.counts
    assert (counts.hits, counts.misses, counts.stored) == (0, 0, 1)


@pytest.mark.parametrize("standby_eviction", ["follow", "deferred"], ids=["logged", "unlogged"])
def test_evictions_are_counted_by_their_reason(standby_eviction: str) -> None:
    world = World(high_watermark=0.9, standby_eviction=standby_eviction)
    world.node("a", size=100 * KIB)
    for number in range(91):
        world.put(f"k{number}", size=KIB)
    world.pass_time(world.primary.rules.lease_ttl_ms + 1)
    counts = world.primary.counts
    gone = sum(not there for there in world.has(*[f"k{number}" for number in range(91)]))
    assert gone > 0
    assert counts.evicted == {EvictionReason.WATERMARK: gone}
    assert counts.evicted_bytes == {EvictionReason.WATERMARK: gone * KIB}


def test_room_for_a_put_is_a_reason_of_its_own() -> None:
    world = World(high_watermark=1.0)
    world.node("a", size=100 * KIB)
    for number in range(100):
        world.put(f"k{number}", size=KIB)
    world.put("new", size=KIB)
    counts = world.primary.counts
    assert counts.evicted[EvictionReason.PUT] > 0
    assert counts.evicted_bytes[EvictionReason.PUT] == counts.evicted[EvictionReason.PUT] * KIB
    assert counts.evicted.total() == world.engine.evicted


def test_objects_of_a_tenant_beyond_its_limit_are_evicted_for_its_quota() -> None:
    world = TenantsWorld()
    world.node("a", size=1 << 20)
    world.define(1, limit_bytes=4 * KIB)
    for number in range(6):
        assert world.store(1, f"k{number}") is None
    counts = world.primary.counts
    assert counts.evicted == {EvictionReason.QUOTA: 2}
    assert counts.evicted_bytes == {EvictionReason.QUOTA: 2 * KIB}
