"""Placement while nodes are away: what is waited for, what is a mistake, and what is done with less."""

from __future__ import annotations

import struct

import pytest

from holdfast import errors
from holdfast.core.promotion import promote
from holdfast.ids import GrantId
from holdfast.instant import lengthened
from holdfast.master.engine.engine import Engine
from holdfast.messages import requests as q
from holdfast.replication.batches import NO_HASH, Position
from holdfast.replication.snapshots import dump, load
from tests.core.copying import Nodes
from tests.core.world import CLIENT, World

WHOLE = lengthened(42_000)


def two_nodes(**rules: float) -> World:
    world = World(**rules)
    world.node("a")
    world.node("b", boot=6, connection=101)
    return world


def wish(serial: int, replicas: int) -> q.GrantRanges:
    return q.GrantRanges(GrantId(CLIENT, serial), struct.pack("<Q", 1_000), replicas=replicas)


def refusal(world: World) -> q.Failed:
    [late] = world.late
    assert isinstance(late, q.Failed)
    world.late.clear()
    return late


@pytest.mark.parametrize("unmounted", [False, True], ids=["away", "unmounted"])
def test_a_put_of_two_replicas_waits_for_the_second_node_and_is_told_to_try_again(unmounted: bool) -> None:
    """It was BadValue as soon as the node was unmounted, which says that asking again is of no use."""
    world = two_nodes()
    world.engine.connection_lost(101)
    if unmounted:
        world.pass_time(WHOLE)
        assert world.state.lending_nodes() == 1
    assert world.send(wish(900, 2), timeout_ms=5_000) is None
    world.pass_time(4_000)
    assert not world.late
    world.pass_time(1_500)
    error = refusal(world)
    assert (error.code, errors.BY_CODE[error.code].__mro__.count(errors.TryAgain)) == ("no_room", 1)
    assert "1 node(s) answer" in error.text


def test_it_goes_on_when_the_node_is_back_in_time() -> None:
    world = two_nodes()
    world.engine.connection_lost(101)
    world.pass_time(WHOLE)
    assert world.send(wish(900, 2), timeout_ms=5_000) is None
    world.node("b", boot=9, connection=103)
    [late] = world.late
    assert isinstance(late, q.Granted)
    assert len(late.ranges) == 2


def test_more_replicas_than_there_ever_were_nodes_are_a_mistake() -> None:
    world = two_nodes()
    with pytest.raises(errors.BadValue, match="never more than 2"):
        world.ask(q.Granted, wish(900, 3))
    world.engine.connection_lost(101)
    world.pass_time(WHOLE)
    with pytest.raises(errors.BadValue, match="never more than 2"):
        world.ask(q.Granted, wish(901, 3))


def test_how_many_nodes_there_were_outlives_primaries_and_snapshots() -> None:
    world = two_nodes()
    world.engine.connection_lost(101)
    world.pass_time(WHOLE)
    restored = load(b"".join(dump(world.primary.twin, Position(1, world.state.index, NO_HASH), world.now)), world.now)
    assert restored.state.most_nodes == world.state.most_nodes == 2
    promoted = Engine(promote(restored.state, world.primary.rules, 5_000, proven=True, now=world.now))
    reply, _ = promoted.handle(wish(900, 2), CLIENT, 1, world.now)
    assert not isinstance(reply, q.Failed), "it waits"


def test_degraded_puts_are_stored_with_fewer_copies_and_made_whole_when_the_node_is_back() -> None:
    world = two_nodes(degraded_puts=True)
    nodes = Nodes(world)
    world.engine.connection_lost(101)
    assert world.put("k", "l", replicas=2) == [True, True]
    assert len(world.ask(q.Stats, q.Stat(["k"])).stats[0].replicas) == 1
    assert len(world.state.catalogue.lacking) == 2
    world.check()
    world.pass_time(WHOLE)
    assert not nodes.take("recover"), "there is nowhere to copy to"
    world.node("b", boot=9, connection=103)
    world.pass_time(1_000)
    assert nodes.obey("recover") == 2
    found = world.ask(q.Stats, q.Stat(["k", "l"])).stats
    assert [sorted(replica.node for replica in one.replicas) for one in found if one] == [["a", "b"]] * 2
    assert not world.state.catalogue.lacking
    world.check()


def test_what_a_degraded_grant_lacks_outlives_primaries_and_snapshots() -> None:
    """The grant is given by one primary and committed at the next, which a snapshot told of it."""
    world = two_nodes(degraded_puts=True)
    world.engine.connection_lost(101)
    grant, granted = world.grant(1_000, replicas=2)
    assert len(granted.ranges) == 1
    restored = load(b"".join(dump(world.primary.twin, Position(1, world.state.index, NO_HASH), world.now)), world.now)
    promoted = Engine(promote(restored.state, world.primary.rules, 5_000, proven=True, now=world.now))
    promoted.start_epoch(2, world.now)
    reply, _ = promoted.handle(q.CommitPuts(grant, ["k"], struct.pack("<3Q", 0, 100, 1)), CLIENT, 1, world.now)
    assert reply == q.Committed(b"\1")
    assert len(promoted.state.catalogue.lacking) == 1


def test_with_all_nodes_there_a_degraded_cluster_keeps_every_copy() -> None:
    world = two_nodes(degraded_puts=True)
    _, granted = world.grant(1_000, replicas=2)
    assert len(granted.ranges) == 2
    with pytest.raises(errors.BadValue):
        world.ask(q.Granted, wish(900, 3))


def test_it_can_be_switched_on_while_puts_wait() -> None:
    world = two_nodes()
    world.engine.connection_lost(101)
    assert world.send(wish(900, 2), timeout_ms=60_000) is None
    world.ask(q.SettingsInForce, q.ChangeSettings({"degraded_puts": True}))
    world.pass_time(100)
    [late] = world.late
    assert isinstance(late, q.Granted)
    assert len(late.ranges) == 1
