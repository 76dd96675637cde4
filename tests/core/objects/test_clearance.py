"""Memory that was another tenant's is cleared by its node before a put gets it; the same tenant's is not (ADR 55)."""

from __future__ import annotations

import struct

import pytest

from holdfast.core.promotion import promote
from holdfast.core.rules import Rules
from holdfast.errors import GrantRefused
from holdfast.ids import GrantId
from holdfast.master.engine.engine import Engine
from holdfast.messages import commands as c
from holdfast.messages import requests as q
from holdfast.wire.mac import issued_at
from tests.core.tenants_world import KIB, TenantsWorld
from tests.core.test_tenants import PRESETS

SIZE = 64 * KIB


def world_of(**rules: float | str) -> TenantsWorld:
    """Two tenants and one node that was there before them: its memory counts as the default tenant's."""
    world = TenantsWorld(high_watermark=1.0, eviction_margin=0.1, **rules)
    world.node(size=SIZE)
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
    world.engine.connection_lost(100)
    world.primary.cleared(request.grant, "a", is_done=False)
    with pytest.raises(GrantRefused):
        world.ask(q.Granted, request, 101)


def test_a_new_primary_gives_no_grant_again_that_it_does_not_know_as_cleared() -> None:
    """The client may have got it before, and be writing: it must not be wiped now."""
    world = world_of()
    world.nodes_clear = False
    request, _ = ask(world, 1)
    primary = promote(world.state, Rules(), 5_000, proven=True, now=world.now)
    primary.namespaces.update(world.primary.namespaces)
    reply, _ = Engine(primary).handle(request, 101, 1, world.now)
    assert isinstance(reply, q.Failed)
    assert reply.code == GrantRefused.code
