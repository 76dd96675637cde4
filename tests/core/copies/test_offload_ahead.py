"""The longest unused objects are on disk before memory needs them to leave; what is lost all the same, and what not."""

from __future__ import annotations

import pytest

from holdfast.messages import commands as c
from tests.core.copies.test_disks import DISK, fill, with_disk
from tests.core.copying import Nodes, files, kinds
from tests.core.world import World

SIZE = 16_000
BATCH = 5
"""Objects that come at once: more than memory has room for above the watermark's margin, less than what is ahead."""


def obey(world: World, nodes: Nodes, rounds: int = 12) -> None:
    for _ in range(rounds):
        world.pass_time(200)
        nodes.obey("offload")


def storm(world: World, nodes: Nodes, batches: int) -> list[str]:
    """Batches that each need room at once, with the time that a disk needs for as much between them."""
    keys: list[str] = []
    for number in range(batches):
        some = [f"s{number:03}/{i}" for i in range(BATCH)]
        for key in some:  # Each by itself: five side by side may have others between them that are on no disk yet.
            assert world.put(key, size=SIZE) == [True]
        keys += some
        obey(world, nodes)
    return keys


def both(world: World, keys: list[str]) -> list[str]:
    return [key for key in keys if kinds(world, key) == [("MEMORY", "a"), ("DISK", "a")]]


def test_under_a_storm_that_the_disk_keeps_up_with_nothing_is_lost() -> None:
    world, nodes = with_disk(high_watermark=0.99, eviction_margin=0.02)
    keys = storm(world, nodes, 40)
    assert all(world.has(*keys))
    assert len(files(world, DISK)) > 130, "memory holds 65 of these"
    assert world.engine.evicted == 0
    world.check()


def test_without_it_what_a_put_needs_at_once_is_lost() -> None:
    """That is what the share is for; 0 is as if there was none."""
    world, nodes = with_disk(high_watermark=0.99, eviction_margin=0.02, offload_ahead=0.0)
    keys = storm(world, nodes, 40)
    assert not all(world.has(*keys))
    world.check()


def test_the_longest_unused_are_kept_on_disk_as_well_and_no_more_than_the_share() -> None:
    world, nodes = with_disk(offload_ahead=0.2)
    keys = fill(world, nodes, 31)
    assert files(world, DISK) == [], "there is memory enough"
    keys += fill(world, nodes, 22, prefix="m")
    obey(world, nodes)
    saved = both(world, keys)
    assert saved == keys[: len(saved)], "the longest unused"
    assert 0.2 * (1 << 20) <= len(saved) * SIZE <= 0.2 * (1 << 20) + SIZE
    for key in saved:
        world.locate(key)
    world.pass_time(2_000)
    assert both(world, keys) == saved, "what is used again stays on disk"
    obey(world, nodes)
    assert both(world, keys) == keys[: 2 * len(saved)], "and others are the longest unused now"
    world.check()


def test_an_object_that_was_just_used_does_not_give_way_because_it_is_on_disk() -> None:
    """Only among the longest unused do those on disk come first."""
    world, nodes = with_disk()
    keys = fill(world, nodes, 120)
    assert nodes.bring_back(keys[0], 300) == 1
    world.pass_time(2_000)
    world.put(*[f"now{i}" for i in range(8)], size=SIZE)
    assert ("MEMORY", "a") in kinds(world, keys[0])
    world.check()


def test_objects_wait_for_the_disk_until_memory_is_full_to_the_brim() -> None:
    """The node does nothing: what is over the watermark waits, and what is over the brim does not (I17)."""
    world, nodes = with_disk(offload_ahead=0.0)
    count = 0
    while all(world.has(*[f"k{i}" for i in range(count)])):
        assert world.put(f"k{count}", size=SIZE) == [True]
        count += 1
        world.pass_time(60)
    assert 0.94 * (1 << 20) < count * SIZE <= 1.02 * (1 << 20)
    assert len(nodes.take("offload")) > 0
    world.check()


def test_an_object_larger_than_the_queue_goes_to_the_disk_alone() -> None:
    world, nodes = with_disk()
    keys = [f"k{i}" for i in range(20)]
    for key in keys:
        world.put(key, size=150_000)
        world.pass_time(300)
        told = nodes.take("offload")
        assert len(told) <= 1
        for one in told:
            assert isinstance(one.body, c.CopyObjects)
            assert len(one.body.rows) == 6 * 8, "one at a time"
            nodes.copy(one)
    assert all(world.has(*keys))


def test_a_small_disk_is_not_filled_and_emptied_again_and_again() -> None:
    world, nodes = with_disk(disk_size=1 << 17, offload_ahead=0.5)
    fill(world, nodes, 52)
    obey(world, nodes, 20)
    told = 0
    for _ in range(50):
        world.pass_time(500)
        told += len(nodes.take("offload"))
    assert told == 0
    world.check()


@pytest.mark.parametrize("preset", ["follow", "none"])
def test_what_is_on_disk_leaves_memory_by_a_record_in_every_preset(preset: str) -> None:
    """I5: also where evictions are not logged, the standby knows that it is on disk alone."""
    world, nodes = with_disk(high_watermark=0.99, eviction_margin=0.02, standby_eviction=preset)  # type: ignore[arg-type]
    keys = storm(world, nodes, 30)
    alone = [key for key in keys if kinds(world, key) == [("DISK", "a")]]
    assert len(alone) > 60
    assert all(world.has(*keys))
    world.check()
