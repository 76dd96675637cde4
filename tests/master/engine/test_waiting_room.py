"""Puts that wait for room share the places and the memory that becomes free."""

from __future__ import annotations

import struct

import msgspec
import pytest

from holdfast.errors import GrantRefused
from holdfast.ids import GrantId
from holdfast.master.engine import waiting_room
from holdfast.messages import requests as q
from holdfast.messages.records import RangesGranted
from tests.core.world import World


def wish(client: int, serial: int) -> q.GrantRanges:
    return q.GrantRanges(GrantId(client, serial), struct.pack("<Q", 256 << 10))


@pytest.fixture
def world() -> World:
    """Memory for four puts of 256 KiB, all of it leased."""
    world = World(write_window_bytes=1 << 40, lease_share=1.0)
    world.node("a", size=1 << 20)
    for number in range(4):
        world.put(f"k{number}", size=256 << 10)
    world.locate(*[f"k{number}" for number in range(4)])
    return world


def test_one_client_cannot_keep_others_from_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_room, "MAX_PARKED", 6)
    for serial in range(1, 7):
        assert world.send(wish(20, serial), client=20, timeout_ms=60_000) is None
    refused = world.send(wish(21, 1), client=21, timeout_ms=60_000)
    assert isinstance(refused, q.Failed), "the newest of the client that has the most, not the one that came"
    assert refused.code == "try_again"
    assert sorted(one.client for one in world.engine._room.waiting) == [20] * 5 + [21]
    assert isinstance(world.send(wish(20, 9), client=20, timeout_ms=60_000), q.Failed)
    assert sorted(one.client for one in world.engine._room.waiting) == [20] * 5 + [21]


def test_memory_that_becomes_free_goes_to_all_clients_in_turn(world: World) -> None:
    for serial in range(1, 5):
        world.send(wish(20, serial), client=20, timeout_ms=60_000)
    world.send(wish(21, 1), client=21, timeout_ms=60_000)
    world.send(wish(22, 1), client=22, timeout_ms=60_000)
    world.remove("k0", "k1", "k2", force=True)
    world.pass_time(world.primary.rules.lease_ttl_ms + 100)
    holders = {grant.client for grant in world.state.grants}
    assert {20, 21, 22} <= holders


@pytest.mark.parametrize("how", ["returned", "named in the next put"])
def test_a_put_whose_client_is_done_with_it_waits_no_more(world: World, how: str) -> None:
    """I17: otherwise it was granted, ended by the put that named it, granted again, and so on without end (found by the
    simulator). Nobody ends the puts of others."""
    assert world.send(wish(20, 1), client=20, timeout_ms=60_000) is None
    assert world.send(wish(21, 1), client=21, timeout_ms=60_000) is None
    stranger = world.send(q.ReturnGrants([GrantId(20, 1)]), client=21)
    assert isinstance(stranger, q.Failed)
    assert len(world.engine._room.waiting) == 2
    done = q.ReturnGrants([GrantId(20, 1)])
    world.send(done if how == "returned" else next_put(20, 2, done.grants), client=20, timeout_ms=60_000)
    assert [(one.client, one.request.grant.serial) for one in waiting(world) if one.client == 20] == (
        [] if how == "returned" else [(20, 2)]
    )
    assert any(isinstance(one, q.Failed) and one.code == GrantRefused.code for one in world.late)
    world.remove("k0", "k1", force=True)
    before = len(world.primary.records)
    world.pass_time(world.primary.rules.lease_ttl_ms + 100)
    granted = [one.grant for one in world.primary.records[before:] if isinstance(one, RangesGranted)]
    assert granted == [GrantId(21, 1)] if how == "returned" else sorted(granted) == [GrantId(20, 2), GrantId(21, 1)]
    world.check()


def next_put(client: int, serial: int, finished: list[GrantId]) -> q.GrantRanges:
    return msgspec.structs.replace(wish(client, serial), finished=finished)


def waiting(world: World) -> list[waiting_room.Waiting]:
    return world.engine._room.waiting
