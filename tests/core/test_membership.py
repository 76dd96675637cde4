"""Nodes that come, fall silent, restart and leave."""

from __future__ import annotations

import pytest

from holdfast import errors
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from tests.core.world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.node("a", connection=100, boot=5)
    return world


def test_a_live_name_is_refused_and_a_silent_one_gives_way(world: World) -> None:
    world.put("k")
    with pytest.raises(errors.NameTaken):
        world.node("a", connection=101, boot=6)
    assert world.has("k") == [True]
    world.engine.connection_lost(100)
    world.node("a", connection=101, boot=6)
    assert world.has("k") == [False], "I14: a restart voids the old memory at once"
    world.check()


def test_memory_that_this_log_does_not_know_is_not_mounted(world: World) -> None:
    """I2: readers may hold leases in it that this master never heard of."""
    request = n.RegisterNode("b", 9, 4711, "host", "b:1", "/b", [1 << 20])
    with pytest.raises(errors.MemoryVoid):
        world.ask(n.Registered, request, connection=102)
    assert len(world.state.segments) == 1


def test_a_node_back_in_time_keeps_its_objects_and_one_too_late_does_not(world: World) -> None:
    world.put("k")
    world.engine.connection_lost(100)
    world.pass_time(world.primary.rules.node_timeout_ms - 1)
    again = n.RegisterNode("a", 5, world.state.log_id, "host", "a:1", "/a", [1 << 20])
    world.ask(n.Registered, again, connection=103)
    assert world.has("k") == [True]
    world.engine.connection_lost(103)
    world.pass_time(world.primary.rules.node_timeout_ms + 1)
    assert world.has("k") == [False]
    with pytest.raises(errors.MemoryVoid):
        world.ask(n.Registered, again, connection=104)
    with pytest.raises(errors.UnknownNode):
        world.beat()
    world.check()


def test_an_object_with_a_replica_elsewhere_outlives_its_node(world: World) -> None:
    world.node("b", connection=101, boot=6)
    keys = [f"k{i}" for i in range(20)]
    world.put("k", replicas=2)
    world.put(*keys, replicas=2)
    grant, _ = world.grant(4096, replicas=2)
    world.ask(q.Done, n.Leave("a", 5), connection=100)
    assert all(world.has("k", *keys))
    assert {row[1] for row in world.locate("k", *keys)} == {world.handle_of("b")}
    assert world.ask(q.Located, q.Locate(["k", *keys])).others == []
    with pytest.raises(errors.GrantTimedOut):
        world.commit(grant, [("new", 0, 64)])
    assert world.state.quarantine, "the range on the other node waits for its writer"
    world.check()
    world.ask(q.Done, q.ReturnGrants([grant]))
    assert not world.state.quarantine
    world.check()


def test_several_segments_of_one_node_hold_one_replica_of_an_object(world: World) -> None:
    world.node("b", connection=101, boot=6, segments=3)
    world.put("k", replicas=2)
    stat = world.ask(q.Stats, q.Stat(["k"])).stats[0]
    assert stat is not None
    assert sorted(replica.node for replica in stat.replicas) == ["a", "b"]
    segments = world.ask(q.SegmentList, q.ListSegments())
    assert len(segments.segments) == 4
    assert segments.topology == world.state.topology


@pytest.mark.parametrize(
    ("name", "sizes"), [("", [64]), ("a/b", [64]), ("x", []), ("x", [0]), ("x", [65]), ("x", [1 << 50])]
)
def test_a_senseless_offer_is_refused(world: World, name: str, sizes: list[int]) -> None:
    with pytest.raises(errors.BadRequest):
        world.ask(n.Registered, n.RegisterNode(name, 9, 0, "h", "b:1", "/b", sizes), connection=102)


def test_a_reply_is_no_request(world: World) -> None:
    with pytest.raises(errors.BadRequest):
        world.ask(q.Done, q.Done())
