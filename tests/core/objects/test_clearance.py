"""Memory that was another tenant's is cleared by its node before a put gets it; the same tenant's is not (ADR 55)."""

from __future__ import annotations

import struct

import pytest

from holdfast.core.primary import former_tenants
from holdfast.core.primary.decision import Clearing
from holdfast.core.promotion import promote
from holdfast.core.rules import Rules
from holdfast.errors import GrantRefused, Settling, TryAgain
from holdfast.ids import GrantId, namespace_of
from holdfast.master.engine.engine import Engine
from holdfast.messages import commands as c
from holdfast.messages import requests as q
from holdfast.messages.log_versions import CLEARANCES
from holdfast.replication.batches import Position
from holdfast.replication.snapshots import dump, load
from holdfast.wire.mac import issued_at
from tests.core.tenants_world import KIB, TenantsWorld
from tests.core.test_tenants import PRESETS

SIZE = 64 * KIB


def world_of(**rules: float | str) -> TenantsWorld:
    """Two tenants and one node whose memory the default tenant had before them."""
    world = TenantsWorld(high_watermark=1.0, eviction_margin=0.1, **rules)
    world.node(size=SIZE)
    world.put("of the default tenant", size=SIZE)
    world.remove("of the default tenant")
    world.define(1)
    world.define(2)
    return world


def clears(world: TenantsWorld) -> list[c.Clear]:
    return [c.decode_body(c.Clear, body) for _, name, body in world.commands if name == c.CLEAR]


def ask(world: TenantsWorld, number: int, size: int = SIZE) -> tuple[q.GrantRanges, q.Granted | None]:
    """The request, and its reply unless it waits."""
    world.serial += 1
    client = 100 + number
    request = q.GrantRanges(GrantId(client, world.serial), struct.pack("<Q", size))
    reply = world.send(request, client)
    assert reply is None or isinstance(reply, q.Granted)
    return request, reply


@pytest.mark.parametrize("preset", PRESETS)
def test_memory_of_another_tenant_is_cleared_once_and_only_then_granted(preset: str) -> None:
    """I20."""
    world = world_of(standby_eviction=preset)
    assert world.store(1, "a", size=SIZE) is None
    [ticket] = world.ask(q.Located, q.Locate(["\x01\x02\x03a"], tickets=True), 101).tickets
    [first] = clears(world)
    world.pass_time(20_000)
    world.nodes_clear = False
    request, granted = ask(world, 2)
    assert granted is None, "its node has not confirmed"
    assert world.send(request, 102) is None, "asked again, it waits, too"
    world.nodes_clear = True
    world.obey()
    [_, told] = clears(world)
    assert (told.offset, told.length) == (first.offset, first.length)
    replies = [one for one in world.late if isinstance(one, q.Granted)]
    assert replies
    assert all(issued_at(one.ranges[0].mac) >= told.issued for one in replies)
    assert issued_at(ticket.mac) < told.issued, "the ticket of the tenant before is refused from now on"
    world.check()


def test_memory_of_the_same_tenant_is_granted_at_once() -> None:
    world = world_of()
    assert world.store(1, "a", size=SIZE) is None
    world.nodes_clear = False
    for round_ in range(3):
        world.pass_time(20_000)
        assert world.store(1, f"b{round_}", size=SIZE) is None
    assert len(clears(world)) == 1
    world.check()


def test_without_tenants_nothing_is_cleared() -> None:
    world = TenantsWorld()
    world.node(size=SIZE)
    for round_ in range(3):
        assert world.store(0, f"a{round_}", size=SIZE) is None
        world.pass_time(20_000)
        world.remove(f"a{round_}")
    assert not clears(world)


def test_memory_that_nobody_had_is_granted_at_once() -> None:
    world = world_of()
    world.node("b", SIZE, boot=6, connection=101)
    assert world.store(1, "a", size=SIZE) is None
    assert world.store(2, "a", size=SIZE) is None
    assert len(clears(world)) == 1, "that of the node that came before the tenants"


def test_a_put_whose_memory_cannot_be_cleared_is_told_to_take_another_grant() -> None:
    world = world_of()
    world.nodes_clear = False
    request, granted = ask(world, 1)
    assert granted is None
    world.primary.former_tenants.confirmed("a", Clearing(request.grant, SIZE), is_done=False)
    with pytest.raises(GrantRefused):
        world.ask(q.Granted, request, 101)
    with pytest.raises(GrantRefused):
        world.commit(request.grant, [("\x01\x02\x03stolen", 0, SIZE)])


def test_nothing_is_committed_in_memory_that_is_not_cleared() -> None:
    """I20: who named its grant itself needs no reply to commit, and would read what the tenant before left."""
    world = world_of()
    world.define(1)
    world.nodes_clear = False
    request, _ = ask(world, 1)
    for keys in (["stolen"], ["one", "two"]):
        with pytest.raises(GrantRefused):
            world.commit(request.grant, [(namespace_of(1) + key, 64 * at, 64) for at, key in enumerate(keys)])
    assert not world.names_of(1)


def test_memory_that_is_not_cleared_is_not_given_with_a_commit_either() -> None:
    """I20: what is asked for ahead may be the grant that waits."""
    world = world_of()
    mine, granted = ask(world, 1, 4096)
    assert granted is not None
    world.nodes_clear = False
    waits, _ = ask(world, 1, 4096)
    assert world.state.grants[waits.grant].uncleared
    ahead = q.GrantRanges(waits.grant, struct.pack("<Q", 64))
    rows = struct.pack("<3Q", 0, 64, 1)
    committed = world.ask(q.Committed, q.CommitPuts(mine.grant, [namespace_of(1) + "a"], rows, ahead=ahead), 101)
    assert committed.stored == b"\1"
    assert committed.ahead is None


def test_a_new_primary_knows_what_is_cleared_and_what_is_not() -> None:
    """I20, and I11: what was given before may be committed. It knows it from a snapshot, too."""
    world = world_of()
    world.node("b", SIZE, boot=6, connection=101)
    first, granted = ask(world, 1)
    second, _ = ask(world, 1) if granted is not None else (first, None)
    cleared = [grant for grant in world.state.grants if not world.state.grants[grant].uncleared]
    assert len(cleared) == 2
    world.ask(q.Done, q.ReturnGrants([second.grant]), 101)
    world.nodes_clear = False
    third, _ = ask(world, 2)
    restored = load(b"".join(dump(world.state, Position(0, 0, b""), world.now)), world.now).state
    for state in (world.state, restored):
        primary = promote(state, Rules(), 5_000, proven=True, now=world.now)
        primary.namespaces.update(world.primary.namespaces)
        engine = Engine(primary)
        assert isinstance(engine.handle(first, 101, 1, world.now)[0], q.Granted)
        reply, _ = engine.handle(third, 102, 1, world.now)
        assert isinstance(reply, q.Failed)
        assert reply.code == GrantRefused.code
        key = namespace_of(2) + "stolen"
        reply, _ = engine.handle(q.CommitPuts(third.grant, [key], struct.pack("<3Q", 0, 64, 1)), 102, 1, world.now)
        assert isinstance(reply, q.Failed)


def test_memory_is_its_tenants_also_if_the_client_was_away_when_it_was_cleared() -> None:
    """I20: it comes back, asks again, and writes."""
    world = world_of()
    world.nodes_clear = False
    request, _ = ask(world, 1)
    prefix = world.primary.namespaces.pop(101)
    world.obey()
    world.primary.namespaces[101] = prefix
    again = world.ask(q.Granted, request, 101)
    former = world.primary.former_tenants
    [place] = again.ranges
    assert former.differ(place.segment, place.offset, again.length, tenant=0)
    assert not former.differ(place.segment, place.offset, again.length, tenant=1)


def test_a_node_is_told_to_wipe_no_more_at_a_time_than_its_session_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """I4: it is silent meanwhile, and one client's huge put must not cost everybody the node's memory."""
    monkeypatch.setattr(former_tenants, "CLEARED_AT_ONCE", SIZE // 8)
    world = world_of()
    world.nodes_clear = False
    request, granted = ask(world, 1)
    assert granted is None
    most = 0
    while world.primary.former_tenants.awaited[request.grant].left_bytes:
        told = len(clears(world))
        world.obey()
        most = max(most, len(clears(world)) - told)
        assert len(clears(world)) <= 8
        if not world.state.grants[request.grant].uncleared:
            break
    assert [(one.offset, one.length) for one in clears(world)] == [(at * SIZE // 8, SIZE // 8) for at in range(8)]
    assert most <= 2, "one for each keepalive"
    assert isinstance(world.late[-1], q.Granted)


def test_nothing_is_granted_before_it_is_known_whether_memory_can_be_cleared() -> None:
    """I20: a primary that has not looked yet which log version the others read. Clients ask again."""
    world = world_of()
    free = world.primary.free_bytes
    world.primary.read_by_all = lambda: 0
    request = q.GrantRanges(GrantId(101, 1_000), struct.pack("<Q", 4 * KIB))
    refused = world.send(request, 101)
    assert isinstance(refused, q.Failed)
    assert (refused.code, world.primary.free_bytes, world.state.grants) == (Settling.code, free, {})
    assert issubclass(Settling, TryAgain)
    world.primary.read_by_all = lambda: CLEARANCES
    assert isinstance(world.send(request, 101), q.Granted) or clears(world)
    world.check()


def test_without_tenants_it_does_not_matter_what_is_known() -> None:
    world = TenantsWorld(high_watermark=1.0)
    world.node(size=SIZE)
    world.primary.read_by_all = lambda: 0
    assert isinstance(world.send(q.GrantRanges(GrantId(7, 1_000), struct.pack("<Q", 4 * KIB)), 7), q.Granted)


def test_memory_that_nobody_was_granted_since_it_was_mounted_is_given_as_it_is() -> None:
    """Also if there was no tenant at that time; but not what the default tenant had."""
    world = TenantsWorld(high_watermark=1.0)
    world.node(size=SIZE)
    world.put("of the default tenant", size=SIZE // 2)
    world.define(1)
    assert ask(world, 1, SIZE // 2)[1] is not None
    assert clears(world) == []
    world.remove("of the default tenant")
    ask(world, 1, SIZE // 2)
    [told] = clears(world)
    assert told.length == SIZE // 2
    world.check()


def test_a_grant_whose_order_must_wait_for_others_is_not_given_before_it_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I20, I2: a node is told only so much at a time. Given at once, its bytes would be wiped when the order was told
    at last (found by the simulator)."""
    monkeypatch.setattr(former_tenants, "ORDERS_AT_ONCE", 1)
    world = world_of()
    world.nodes_clear = False
    first, _ = ask(world, 1, SIZE // 2)
    second, granted = ask(world, 2, SIZE // 2)
    assert granted is None
    assert {grant.uncleared for grant in world.state.grants.values()} == {True}
    assert len(clears(world)) <= 1
    world.nodes_clear = True
    for _ in range(3):
        world.obey()
        world.pass_time(100)
    assert len(clears(world)) == 2
    assert len([one for one in world.late if isinstance(one, q.Granted)]) == 2
    assert {first.grant, second.grant} == world.state.grants.keys()
    world.check()
