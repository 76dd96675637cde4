"""What draining a node costs: reckoned before, counted meanwhile, said at the end."""

from __future__ import annotations

import pytest

from holdfast import errors
from holdfast.core.copies.drains import forecast
from holdfast.core.promotion import promote
from holdfast.ids import extent_of
from holdfast.master.events import EventHistory
from holdfast.master.status.sessions import by_node, node_info
from holdfast.messages import requests as q
from holdfast.replication.batches import Position
from holdfast.replication.snapshots import dump, load
from tests.core.copying import Nodes
from tests.core.world import World

SIZE = 1 << 20
OBJECT = 10_000


def two_nodes(objects: int, **rules: float) -> tuple[World, Nodes]:
    """Half of the objects on each."""
    world = World(lease_ttl_ms=1_000, **rules)
    world.node("a", SIZE)
    world.node("b", SIZE, boot=6, connection=101)
    for i in range(objects):
        assert world.put(f"k{i}", size=OBJECT) == [True]
    return world, Nodes(world)


def drain(world: World, nodes: Nodes, evict: bool = False) -> None:
    world.ask(q.Done, q.ChangeMode("a", "draining", evict))
    for _ in range(30):
        world.pass_time(1_000)
        nodes.obey()


def on(world: World, node: str) -> int:
    handle = world.handle_of(node)
    return len(world.state.catalogue.on_segment(handle))


def test_a_drain_that_fits_moves_everything_and_evicts_nothing() -> None:
    world, nodes = two_nodes(60)
    there = on(world, "a")
    costs = forecast(world.primary, "a", world.now)
    assert (costs.objects, costs.moved_bytes) == (there, there * extent_of(OBJECT))
    assert costs.evicted_bytes == 0
    history = EventHistory()
    world.note = history.note
    drain(world, nodes)
    assert all(world.has(*[f"k{i}" for i in range(60)]))
    told = node_info(world.primary, world.primary.members["a"], by_node(world.state)["a"], world.now)
    assert (told.moved_objects, told.moved_bytes) == (there, there * extent_of(OBJECT))
    assert (told.evicted_objects, told.objects_left, told.bytes_left) == (0, 0, 0)
    said = {event.kind: event.text for event in history.after(0, 10)}
    assert said.keys() == {"node_draining", "node_drained"}
    assert (
        f"{there:,} objects ({there * extent_of(OBJECT):,} bytes) moved, 0 (0 bytes) evicted, 0 left"
        in said["node_drained"]
    )
    world.check()


def test_a_drain_that_would_evict_is_refused_with_the_figures_and_changes_nothing() -> None:
    world, _ = two_nodes(140)
    world.touch("k0", "k1", "k2", "k3")
    costs = forecast(world.primary, "a", world.now)
    with pytest.raises(errors.WouldEvict, match="nothing was changed") as refused:
        world.ask(q.Done, q.ChangeMode("a", "draining"))
    for figure in (costs.objects, costs.moved_bytes, costs.held_bytes, costs.room_bytes, costs.evicted_bytes):
        assert f"{figure:,}" in str(refused.value)
    leased = [row for row in world.locate("k0", "k1", "k2", "k3") if row[1] == world.handle_of("a")]
    assert costs.held_bytes == len(leased) * extent_of(OBJECT) > 0
    assert not world.state.modes
    world.ask(q.Done, q.ChangeMode("a", "cordoned"))
    world.check()


def test_what_is_evicted_is_about_what_was_reckoned_and_is_counted() -> None:
    world, nodes = two_nodes(140)
    costs = forecast(world.primary, "a", world.now)
    drain(world, nodes, evict=True)
    kept = sum(world.has(*[f"k{i}" for i in range(140)]))
    told = node_info(world.primary, world.primary.members["a"], by_node(world.state)["a"], world.now)
    assert told.evicted_objects == 140 - kept
    assert told.evicted_bytes == (140 - kept) * extent_of(OBJECT)
    assert abs(told.evicted_bytes - costs.evicted_bytes) <= 0.06 * SIZE, "within the margin of eviction"
    assert (told.objects_left, told.bytes_left) == (0, 0)
    world.check()


def test_objects_with_enough_replicas_elsewhere_need_no_room() -> None:
    world = World()
    world.node("a", SIZE)
    world.node("b", SIZE, boot=6, connection=101)
    for i in range(80):
        assert world.put(f"k{i}", size=OBJECT, replicas=2) == [True]
    costs = forecast(world.primary, "a", world.now)
    assert (costs.objects, costs.moved_bytes, costs.evicted_bytes) == (0, 0, 0)
    world.ask(q.Done, q.ChangeMode("a", "draining"))


def test_an_empty_node_can_be_drained_though_it_is_the_only_one() -> None:
    world = World()
    world.node("a", SIZE)
    world.ask(q.Done, q.ChangeMode("a", "draining"))
    assert world.state.modes == {"a": 2}


def test_a_disk_elsewhere_takes_what_leaves_memory() -> None:
    world, nodes = two_nodes(140)
    assert forecast(world.primary, "a", world.now).evicted_bytes
    nodes.mount_disk("b", 6, 99, size=8 << 20)
    assert forecast(world.primary, "a", world.now).evicted_bytes == 0


def test_counts_outlive_primaries_and_snapshots_and_end_with_the_drain() -> None:
    world, nodes = two_nodes(60)
    world.ask(q.Done, q.ChangeMode("a", "draining"))
    world.pass_time(300)
    nodes.obey()
    assert world.state.drains["a"].moved_objects > 0
    data = b"".join(dump(world.state, Position(index=world.state.index), world.now))
    for state in (world.primary.twin, load(data, 0).state):
        assert state.drains == world.state.drains
        assert promote(state, world.primary.rules, 5_000, proven=True, now=0).state.drains == world.state.drains
    history = EventHistory()
    world.note = history.note
    world.ask(q.Done, q.ChangeMode("a", "open"))
    [event] = history.after(0, 10)
    assert event.kind == "drain_cancelled"
    assert "moved" in event.text
    assert "left" in event.text
    assert not world.state.drains
    world.check()
