"""A decision says everything that is to happen, and until it is carried out nothing of it has."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from holdfast.core import upkeep
from holdfast.core.decide import decide
from holdfast.core.objects import room
from holdfast.core.primary.decision import PARKED, Decision, Planned, joined
from holdfast.ids import GrantId
from holdfast.messages import commands as c
from holdfast.messages import requests as q
from holdfast.messages.records import NodeModeChanged, ObjectsEvicted, RangesGranted
from tests.core.copying import Nodes, kinds
from tests.core.objects.test_windows import KIB, filled
from tests.core.world import CLIENT, World


def decided(world: World, request: Any) -> Decision:
    return decide(world.primary, request, CLIENT, world.now)


def test_commands_are_in_the_decision_and_in_no_session_yet() -> None:
    world = World()
    world.node("a", boot=5)
    decision = decided(world, q.ChangeMode("a", "cordoned"))
    [command] = decision.commands
    assert (command.node, command.name, command.confirm) == ("a", "maintenance", "maintenance" in c.CONFIRMED)
    assert [type(record) for record in decision.records] == [NodeModeChanged]
    session = world.primary.sessions.named("a")
    assert session is not None
    assert not session.commands
    assert not world.state.modes


def test_a_renewal_is_urgent_if_the_lease_had_nearly_ended() -> None:
    """The standbys must learn of it before they would evict the object."""
    world = World()
    world.node()
    world.put("k", "l")
    for request in (q.Locate(["k"]), q.Locate(["k", "l"]), q.Exists(["l"], touch=True)):
        world.pass_time(60_000)
        assert decided(world, request).urgent
        assert not decided(world, request).urgent, "it was given just now"
    assert not decided(world, q.Exists(["k"])).urgent


@pytest.mark.parametrize(("eviction", "freed"), [("follow", False), ("none", True)])
def test_memory_that_is_free_without_a_record_is_in_the_decision(eviction: str, freed: bool) -> None:
    world, _ = filled(64, standby_eviction=eviction)
    world.pass_time(60_000)
    decision = decided(world, q.GrantRanges(GrantId(CLIENT, 999), struct.pack("<Q", 4 * KIB)))
    assert isinstance(decision.reply, q.Granted)
    assert decision.freed == freed
    expected = [RangesGranted] if freed else [ObjectsEvicted, RangesGranted]
    assert [type(record) for record in decision.records] == expected


def test_the_memory_of_a_window_that_is_given_up_is_in_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """I9: whoever carries it out lends it again, once all records so far are durable."""
    monkeypatch.setattr(room, "EVICT_STEP", 16)
    world, _ = filled(640)
    world.pass_time(60_000)
    request = q.GrantRanges(GrantId(CLIENT, 999), struct.pack("<Q", 128 * KIB))
    world.engine.handle(request, CLIENT, 1, world.now)
    (claim,) = world.primary.claims.values()
    inside = [world.state.catalogue.keys[slot] for slot in claim.slots if world.state.catalogue.flags_at[slot]]
    world.touch(*[key for key in inside if key is not None][-1:])
    decision = decided(world, request)
    assert decision.reply is PARKED
    assert sum(int(lengths.sum()) for _, _, lengths in decision.given_up) >= 16 * KIB
    assert not world.primary.claims


def test_a_plan_that_a_defect_ends_commands_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """I6: a command whose record is not in the log would have a node write to memory that may be anybody's."""
    world = World()
    nodes = Nodes(world)
    for number, name in enumerate(("a", "b", "c")):
        world.node(name, boot=5 + number, connection=100 + number)
    world.put("k", replicas=2)
    lost = kinds(world, "k")[0][1]
    boot = {"a": 5, "b": 6, "c": 7}[lost]

    def broken(*_: object) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(upkeep, "named_once", broken)
    world.engine.connection_lost(95 + boot)
    world.pass_time(120_000)
    assert "copies" in {failure.kind for failure in world.upkeep_failures}
    assert not nodes.take()


def test_plans_are_joined_in_order() -> None:
    first, second = Planned([NodeModeChanged("a", 1)]), Planned([NodeModeChanged("b", 1)], freed=True)
    assert joined(first, second) == Planned([NodeModeChanged("a", 1), NodeModeChanged("b", 1)], [], freed=True)
    assert joined() == Planned([], [])
