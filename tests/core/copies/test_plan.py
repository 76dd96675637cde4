"""Lost replicas are made again, nodes are drained, segments shrink: planned from the state, nothing lost on the way."""

from __future__ import annotations

import struct

import pytest

from holdfast.core.catalogue.digest import digest
from holdfast.core.copies.evacuation import left_on
from holdfast.core.promotion import promote
from holdfast.errors import BadValue, GrantRefused, NoRoom, UnknownNode
from holdfast.ids import GrantId
from holdfast.messages import commands as c
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from holdfast.messages.of_sessions import CloseSession
from holdfast.replication.batches import Position
from holdfast.replication.snapshots import dump, load
from tests.core.copying import Nodes, Told, kinds
from tests.core.world import World


def three_nodes(**rules: float) -> tuple[World, Nodes]:
    world = World(**rules)
    for i, name in enumerate("abc"):
        world.node(name, size=1 << 20, boot=5 + i, connection=100 + i)
    return world, Nodes(world)


def lose(world: World, node: str) -> None:
    world.send(CloseSession(world.primary.members[node].session))
    assert node not in world.primary.members


def one_replica_lost() -> tuple[World, Nodes, Told]:
    """An object of two replicas has lost one, and a node was told to make it again."""
    world, nodes = three_nodes()
    world.put("k", replicas=2)
    lose(world, kinds(world, "k")[0][1])
    world.pass_time(1_000)
    [told] = nodes.take("recover")
    return world, nodes, told


def drain(world: World, nodes: Nodes, node: str, rounds: int = 20) -> None:
    world.ask(q.Done, q.ChangeMode(node, "draining", evict=True))
    for _ in range(rounds):
        world.pass_time(1_000)
        nodes.obey()


def test_lost_replicas_are_made_again_on_another_node() -> None:
    world, nodes = three_nodes()
    keys = [f"k{i}" for i in range(100)]
    world.put(*keys, replicas=2, size=2_000)
    lose(world, "a")
    lost = [key for key in keys if len(kinds(world, key)) == 1]
    assert lost
    world.pass_time(1_000)
    assert nodes.obey("recover") == len(lost)
    assert all(len({node for _, node in kinds(world, key)}) == 2 for key in keys)
    assert not world.state.catalogue.lacking
    world.check()


def test_an_object_that_never_asked_for_more_than_one_replica_is_left_alone() -> None:
    world, nodes = three_nodes()
    world.put("k")
    world.pass_time(1_000)
    assert not nodes.take()


def test_a_copy_is_a_durable_grant_before_the_node_hears_of_it() -> None:
    world, _, told = one_replica_lost()
    assert isinstance(told.body, c.CopyObjects)
    assert told.body.grant in world.state.grants
    world.check()


def test_without_another_node_nothing_is_tried_until_one_comes() -> None:
    world = World()
    nodes = Nodes(world)
    world.node("a", boot=5)
    world.node("b", boot=6, connection=101)
    world.put("k", replicas=2)
    lose(world, "b")
    world.pass_time(10_000)
    assert not nodes.take()
    world.node("c", boot=7, connection=102)
    world.pass_time(1_000)
    assert nodes.obey() == 1
    assert {node for _, node in kinds(world, "k")} == {"a", "c"}


def test_wrong_bytes_add_no_replica_and_are_tried_again_later() -> None:
    world, nodes, told = one_replica_lost()
    oid = world.locate("k")[0][0]
    assert nodes.copy(told, wrong=(oid,)) == 0
    world.pass_time(100)
    assert not nodes.take()
    world.pass_time(5_000)
    assert nodes.obey() == 1
    world.check()


@pytest.mark.parametrize("what", ["id", "offset", "source", "checksum"])
def test_a_claim_that_does_not_hold_adds_nothing(what: str) -> None:
    """I2, I9: a master believes a node no more than it must."""
    world, _, told = one_replica_lost()
    assert isinstance(told.body, c.CopyObjects)
    oid, offset, _, checksum, index, at = struct.unpack("<6Q", told.body.rows)
    row = {"id": oid, "offset": offset, "segment": told.body.sources[index].handle, "source": at, "checksum": checksum}
    row[what] += 1 << 30
    request = n.AddReplicas(told.node, told.body.grant, struct.pack("<5Q", *row.values()))
    assert world.ask(q.Done, request).count == 0
    assert told.body.grant not in world.state.grants
    world.check()


def test_a_copy_of_an_object_that_was_replaced_meanwhile_adds_nothing() -> None:
    """I2, I7: what is copied is an object, not a key."""
    world, nodes, told = one_replica_lost()
    world.put("k", size=500, upsert=True)
    assert nodes.copy(told) == 0
    assert len(kinds(world, "k")) == 1
    world.check()


def test_only_the_node_that_was_told_may_fill_the_grant_and_no_clients_grant_at_all() -> None:
    world, nodes, told = one_replica_lost()
    told.node = "x"
    with pytest.raises(GrantRefused):
        nodes.copy(told)
    grant, _ = world.grant(1_000)
    with pytest.raises(GrantRefused):
        world.ask(q.Done, n.AddReplicas("a", grant, b""))
    assert world.ask(q.Done, n.AddReplicas("a", GrantId(0, 999), b"")).count == 0


def test_a_copy_that_never_ends_gives_its_memory_back_by_the_nodes_word_only() -> None:
    """I11: the clock ends the grant, and the node's word the quarantine."""
    world, nodes, told = one_replica_lost()
    assert isinstance(told.body, c.CopyObjects)
    world.pass_time(world.primary.rules.grant_timeout_ms + 1_000)
    assert told.body.grant not in world.state.grants
    assert any(held.grant == told.body.grant for held in world.state.quarantine.values())
    assert nodes.copy(told) == 0
    world.check()


def test_a_drained_node_ends_empty_and_every_object_is_elsewhere() -> None:
    world, nodes = three_nodes()
    keys = [f"k{i}" for i in range(60)]
    world.put(*keys, size=3_000)
    world.put("pinned", hard_pin=True)
    world.put("twice", replicas=2)
    drain(world, nodes, "a")
    assert left_on(world.state, "a") == (0, 0)
    assert all(world.has(*keys, "pinned", "twice"))
    assert all(node != "a" for key in [*keys, "pinned", "twice"] for _, node in kinds(world, key))
    assert len(kinds(world, "twice")) == 2
    world.put("new")
    assert kinds(world, "new")[0][1] != "a"
    world.check()


def moved_under_a_reader() -> tuple[World, int, q.RenewLeases]:
    """An object that left the segment in which a reader knows it, and that reader's request to renew its lease."""
    world, nodes = three_nodes()
    world.put("k")
    oid, segment, offset, *_ = world.locate("k")[0]
    drain(world, nodes, world.state.segments[segment].name.node, rounds=3)
    return world, segment, q.RenewLeases(struct.pack("<3Q", oid, segment, offset))


def test_the_range_of_a_moved_object_stays_until_its_readers_leases_end() -> None:
    """I2, I8: a reader in place may even renew, and only then is the range free."""
    world, segment, old = moved_under_a_reader()
    assert world.locate("k")[0][1] != segment
    for _ in range(5):
        assert world.ask(q.Presence, old).found == b"\1"
        world.pass_time(world.primary.rules.lease_ttl_ms - 1_000)
        world.check()
    world.pass_time(2_000)
    assert world.ask(q.Presence, old).found == b"\0"
    assert not world.state.moved
    world.check()


def test_a_reader_at_the_old_place_keeps_the_object_from_being_evicted_or_removed() -> None:
    """I8, found by simulation: the renewed lease is the object's, not only that of its old range."""
    world, _, old = moved_under_a_reader()
    for _ in range(3):
        assert world.ask(q.Presence, old).found == b"\1"
        world.pass_time(world.primary.rules.lease_ttl_ms - 1_000)
    assert world.ask(q.Removed, q.Remove(["k"], 77)).leased == 1
    world.check()


def test_a_lease_on_the_old_place_is_not_renewed_once_the_object_is_removed() -> None:
    world, _, old = moved_under_a_reader()
    world.remove("k", force=True)
    assert world.ask(q.Presence, old).found == b"\0"
    world.pass_time(world.primary.rules.lease_ttl_ms + 1_000)
    assert not world.state.quarantine
    world.check()


def test_a_drain_with_nowhere_to_go_says_so_and_loses_nothing() -> None:
    world = World()
    nodes = Nodes(world)
    world.node("a")
    world.put("k", "l")
    world.ask(q.Done, q.ChangeMode("a", "draining", evict=True))
    world.pass_time(2_000)
    assert "nowhere to go" in world.primary.copies.stuck["a"]
    assert world.has("k", "l") == [True, True]
    world.ask(q.Done, q.ChangeMode("a", "open"))
    assert world.put("m") == [True]
    assert not nodes.take("migrate")


def test_a_drain_without_room_elsewhere_says_so() -> None:
    world = World(high_watermark=1.0)
    nodes = Nodes(world)
    world.node("a", size=1 << 20)
    world.put("large", size=512 << 10, hard_pin=True)
    world.node("b", size=256 << 10, boot=6, connection=101)
    world.ask(q.Done, q.ChangeMode("a", "draining", evict=True))
    world.pass_time(2_000)
    nodes.obey()
    assert "no room" in world.primary.copies.stuck["a"]
    assert world.has("large") == [True]


def test_a_drain_goes_on_under_a_new_primary_from_log_and_snapshot() -> None:
    """I5, I15: the mode is in the state, and the plan is made from it."""
    world, nodes = three_nodes()
    world.put(*[f"k{i}" for i in range(30)], replicas=2)
    world.locate("k1")
    drain(world, nodes, "a", rounds=1)
    world.pass_time(300)
    data = b"".join(dump(world.state, Position(index=world.state.index), world.now))
    for state in (world.primary.twin, load(data, 0).state):
        assert state.modes == {"a": 2}
        assert state.moved == world.state.moved
        assert digest(state.catalogue) == digest(world.state.catalogue)
        primary = promote(state, world.primary.rules, 5_000, True, 0)
        assert primary.state.modes == {"a": 2}
        assert not [s for s in state.segments.values() if primary.available(s, 0) and s.name.node == "a"]


def test_a_copy_that_a_failover_interrupts_is_taken_by_the_new_primary() -> None:
    """The grant is in the log, so the node's word needs no memory of the plan."""
    world, nodes, told = one_replica_lost()
    after = World()
    after.primary = promote(world.primary.twin, world.primary.rules, 5_000, True, after.now)  # type: ignore[assignment]
    after.engine.primary = after.primary
    nodes.world = after
    assert nodes.copy(told) == 1
    assert len(kinds(after, "k")) == 2
    assert not after.state.catalogue.lacking


def test_a_cordoned_node_takes_nothing_new_and_keeps_what_it_has() -> None:
    world, nodes = three_nodes()
    world.put(*[f"k{i}" for i in range(30)])
    before = [kinds(world, f"k{i}") for i in range(30)]
    world.ask(q.Done, q.ChangeMode("a", "cordoned"))
    [told] = nodes.take("maintenance")
    assert told.confirm
    assert told.body == c.Maintain("cordoned")
    world.pass_time(2_000)
    world.put(*[f"n{i}" for i in range(30)])
    assert all(kinds(world, f"n{i}")[0][1] != "a" for i in range(30))
    assert [kinds(world, f"k{i}") for i in range(30)] == before
    assert world.ask(q.Done, q.ChangeMode("a", "cordoned")).count == 0
    with pytest.raises(UnknownNode):
        world.ask(q.Done, q.ChangeMode("x", "cordoned"))
    with pytest.raises(BadValue):
        world.ask(q.Done, q.ChangeMode("a", "asleep"))


def test_a_segment_shrinks_when_what_lies_in_its_tail_has_moved_and_nothing_comes_there_again() -> None:
    world, nodes = three_nodes(lease_ttl_ms=500)
    keys = [f"k{i}" for i in range(150)]
    world.put(*keys, size=3_000)
    world.ask(q.Done, q.ResizeNode("a", 512 << 10))
    for _ in range(6):
        world.pass_time(1_000)
        nodes.obey()
        world.check()
    assert left_on(world.state, "a") == (0, 0)
    assert all(world.has(*keys))
    assert world.primary.capacity_bytes == (2 << 20) + (512 << 10)
    world.put(*[f"n{i}" for i in range(100)], size=3_000)
    assert left_on(world.state, "a") == (0, 0)
    again = promote(world.primary.twin, world.primary.rules, 5_000, True, 0)
    assert again.capacity_bytes == world.primary.capacity_bytes
    assert again.free_bytes == world.primary.free_bytes


def test_shrinking_below_what_others_have_room_for_is_refused_with_a_reason() -> None:
    world = World(high_watermark=1.0)
    world.node("a", size=1 << 20)
    world.put("large", size=900 << 10)
    with pytest.raises(NoRoom, match="free memory"):
        world.ask(q.Done, q.ResizeNode("a", 256 << 10))
    assert not world.state.segments[1].limit_bytes


def test_growing_is_another_segment_that_the_node_mounts() -> None:
    world, nodes = three_nodes()
    world.ask(q.Done, q.ResizeNode("a", 3 << 20))
    [told] = nodes.take("volume_update")
    assert (told.confirm, told.body) == (True, c.UpdateVolume(3 << 20))
    mount = n.MountSegment("a", 5, 1, 2 << 20)
    assert world.ask(q.Done, mount).count == 1
    assert world.ask(q.Done, mount).count == 0
    assert world.primary.capacity_bytes == 5 << 20
    with pytest.raises(BadValue):
        world.ask(q.Done, n.MountSegment("a", 5, 7, 64))
    with pytest.raises(UnknownNode):
        world.ask(q.Done, n.MountSegment("a", 99, 2, 64))
    world.check()


def test_a_client_whose_writes_are_revoked_loses_its_grants_into_quarantine() -> None:
    """I11: what it maps it may still write, so nobody is given that memory."""
    world, nodes = three_nodes()
    grant, _ = world.grant(5_000)
    assert world.ask(q.Done, q.RevokeWrites(grant.client)).count == 1
    assert grant not in world.state.grants
    assert any(held.grant == grant for held in world.state.quarantine.values())
    assert {told.node for told in nodes.take("revoke_client")} == {"a", "b", "c"}
    world.check()


def test_the_speed_of_copies_reaches_nodes_and_later_primaries() -> None:
    world, nodes = three_nodes()
    world.ask(q.Done, q.ChangeCopying(1_000_000))
    assert [told.body for told in nodes.take("config_update")] == [c.UpdateConfig(1_000_000, 10_000)] * 3
    assert world.primary.twin.changed == {"copy_bytes_per_second": 1_000_000}
    world.put("k", replicas=2)
    lose(world, kinds(world, "k")[0][1])
    world.pass_time(1_000)
    [told] = nodes.take("recover")
    assert isinstance(told.body, c.CopyObjects)
    assert told.body.bytes_per_second == 1_000_000


def test_what_is_under_way_to_a_node_is_bounded() -> None:
    """I17"""
    world, nodes = three_nodes(copy_window_bytes=64 << 10)
    world.put(*[f"k{i}" for i in range(100)], replicas=3, size=4_000)
    lose(world, "a")
    world.node("d", boot=9, connection=109)
    for _ in range(40):
        world.pass_time(300)
        assert world.primary.copies.bytes_towards("d", to_disk=False) <= (64 << 10) + 4_096
        nodes.obey()
    assert all(len(kinds(world, f"k{i}")) == 3 for i in range(100))
    world.check()
