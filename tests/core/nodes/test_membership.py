"""Nodes that come, fall silent, restart and leave."""

from __future__ import annotations

import pytest

from holdfast import errors
from holdfast.instant import lengthened
from holdfast.messages import of_sessions as ss
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
    world.open("b", 9, connection=102)
    with pytest.raises(errors.MemoryVoid):
        world.offer(9, 9, [1 << 20], log_id=4711)
    assert len(world.state.segments) == 1


def test_a_node_back_in_time_keeps_its_objects_and_one_too_late_does_not(world: World) -> None:
    """I4: its own clock has ended the session before the master's, and it comes back with a new one."""
    given_up_ms = lengthened(42_000)
    world.put("k")
    world.engine.connection_lost(100)
    world.pass_time(given_up_ms - 1)
    world.open("a", 50, connection=103)
    world.offer(50, 5, [1 << 20], world.state.log_id)
    assert world.has("k") == [True]
    world.engine.connection_lost(103)
    world.pass_time(given_up_ms)
    assert world.has("k") == [False]
    world.open("a", 51, connection=104)
    with pytest.raises(errors.MemoryVoid):
        world.offer(51, 5, [1 << 20], world.state.log_id)
    with pytest.raises(errors.UnknownNode):
        world.report(session=51)
    with pytest.raises(errors.SessionExpired):
        world.report(session=50)
    world.check()


def test_a_new_session_that_never_registers_keeps_no_memory_mounted(world: World) -> None:
    world.put("k")
    world.engine.connection_lost(100)
    world.open("a", 50, connection=103)
    world.pass_time(41_000)
    assert world.has("k") == [True]
    world.pass_time(2_000)
    assert world.has("k") == [False], "though the new session lives"
    assert 50 in world.state.sessions
    world.check()


def test_a_node_that_heard_of_more_of_the_log_than_there_is_has_void_memory(world: World) -> None:
    """Coordination lost the log's tail, and with it the word on what is where."""
    again = {"log_id": world.state.log_id, "heard_epoch": 1}
    world.offer(5, 5, [1 << 20], **again, heard_index=world.state.index)
    world.engine.start_epoch(2, world.now)
    end = world.state.end_of_epoch(1)
    world.put("much", "is", "logged", "since")
    world.offer(5, 5, [1 << 20], **again, heard_index=end)
    with pytest.raises(errors.MemoryVoid, match="lost its tail"):
        world.offer(5, 5, [1 << 20], **again, heard_index=end + 1)


def test_an_object_with_a_replica_elsewhere_outlives_its_node(world: World) -> None:
    world.node("b", connection=101, boot=6)
    keys = [f"k{i}" for i in range(20)]
    world.put("k", replicas=2)
    world.put(*keys, replicas=2)
    grant, _ = world.grant(4096, replicas=2)
    world.ask(q.Done, ss.CloseSession(5), connection=100)
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
    ("name", "sizes"),
    [("", [64]), ("n" * 129, [64]), ("a/b", [64]), ("x", []), ("x", [0]), ("x", [65]), ("x", [1 << 50])],
)
def test_a_senseless_offer_is_refused(world: World, name: str, sizes: list[int]) -> None:
    if name in ("x", "a/b"):  # A session may be called so, memory not.
        world.open(name, 9, connection=102)
        with pytest.raises(errors.BadRequest):
            world.offer(9, 9, sizes)
    else:
        with pytest.raises(errors.BadRequest):
            world.open(name, 9, connection=102)


def test_a_reply_is_no_request(world: World) -> None:
    with pytest.raises(errors.BadRequest):
        world.ask(q.Done, q.Done())
