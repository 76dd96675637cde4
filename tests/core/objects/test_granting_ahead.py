"""Memory that comes with a commit: a grant as any other, for which nothing has to give way."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from holdfast import errors
from holdfast.ids import GrantId
from holdfast.messages import requests as q
from holdfast.messages.shapes import Attachment
from tests.core.world import CLIENT, World


@pytest.fixture
def world() -> World:
    world = World()
    world.node("a")
    return world


def ahead_of(world: World, size: int, **more: object) -> q.GrantRanges:
    """Another grant of this size, to be asked for with a commit."""
    world.serial += 1
    attached = [Attachment(handle, 1) for handle in world.state.segments]
    return q.GrantRanges(GrantId(CLIENT, world.serial), struct.pack("<Q", size), attached=attached, **more)  # type: ignore[arg-type]


def committed_with(world: World, ahead: q.GrantRanges, key: str = "k", size: int = 4096) -> q.Committed:
    grant, _ = world.grant(size)
    return world.ask(q.Committed, q.CommitPuts(grant, [key], struct.pack("<3Q", 0, size, 1), ahead=ahead))


def test_a_commit_brings_memory_for_the_next_put(world: World) -> None:
    """I9, I11: it is a grant as any other."""
    ahead = ahead_of(world, 8192)
    committed = committed_with(world, ahead)
    assert committed.stored == b"\1"
    assert committed.ahead is not None
    assert committed.ahead.length == 8192
    [place] = committed.ahead.ranges
    assert place.writer == 1
    world.check()
    assert world.ask(q.Granted, ahead) == committed.ahead, "asked again by itself, it is the same"
    assert world.commit(ahead.grant, [("next", 0, 8192)]) == [True]
    assert world.locate("next")[0][1:3] == (place.segment, place.offset)
    world.check()


def test_a_commit_asked_again_brings_the_same_memory(world: World) -> None:
    ahead = ahead_of(world, 8192)
    grant, _ = world.grant(4096)
    request = q.CommitPuts(grant, ["k"], struct.pack("<3Q", 0, 4096, 1), ahead=ahead)
    first = world.ask(q.Committed, request)
    assert first.ahead is not None
    assert world.ask(q.Committed, request) == first
    assert len(world.state.grants) == 2
    world.check()


@pytest.mark.parametrize(("size", "fits"), [(224 << 10, True), (232 << 10, False)])
def test_nothing_is_granted_ahead_over_the_watermark(world: World, size: int, fits: bool) -> None:
    """Nor most of the room under it; nothing is evicted for it either. The put that needs it will ask."""
    world.put("old")
    ahead = ahead_of(world, size)
    committed = committed_with(world, ahead)
    assert (committed.ahead is not None) == (ahead.grant in world.state.grants) == fits
    assert world.has("old", "k") == [True, True]
    world.check()


def test_what_comes_ahead_counts_for_the_window(world: World) -> None:
    """I17"""
    world.node("b", size=4 << 30, boot=6, connection=101)
    window = world.primary.rules.write_window_bytes
    large = ahead_of(world, window - 8192)
    assert committed_with(world, large, key="fits").ahead is not None
    assert committed_with(world, ahead_of(world, 8192), key="window").ahead is None


def test_where_the_key_was_taken_nothing_is_granted_ahead(world: World) -> None:
    world.put("k")
    ahead = ahead_of(world, 4096)
    assert committed_with(world, ahead) == q.Committed(b"\0")
    assert ahead.grant not in world.state.grants


def test_what_cannot_be_asked_for_ahead_stores_nothing(world: World) -> None:
    wrong = {
        errors.BadRequest: [ahead_of(world, 64, keys=["l"]), ahead_of(world, 64, finished=[GrantId(CLIENT, 1)])],
        errors.BadValue: [ahead_of(world, 0), ahead_of(world, 64, replicas=0)],
        errors.GrantRefused: [q.GrantRanges(GrantId(CLIENT + 1, 1), struct.pack("<Q", 64))],
    }
    for kind, requests in wrong.items():
        for request in requests:
            with pytest.raises(kind, match="nothing was"):
                committed_with(world, request)
    grant, _ = world.grant(4096)
    for finished in ([], [GrantId(CLIENT, 99)]):
        own = q.GrantRanges(finished[0] if finished else grant, struct.pack("<Q", 64))
        with pytest.raises(errors.BadRequest, match="nothing was stored"):
            rows = struct.pack("<3Q", 0, 4096, 1)
            world.ask(q.Committed, q.CommitPuts(grant, ["k"], rows, finished=finished, ahead=own))
    assert world.has("k") == [False]
    world.check()


def test_while_objects_are_evicted_without_records_nothing_is_granted_ahead(world: World) -> None:
    """I5: a commit does away with what was evicted from under its key, and a grant with what lies in its way. Both
    might name the same object, and the second record could not be applied."""
    world.put("hidden")
    catalogue = world.state.catalogue
    world.state.mask.add(catalogue, np.array([catalogue.by_key.slot_of("hidden")]))
    ahead = ahead_of(world, 4096)
    assert committed_with(world, ahead, key="hidden") == q.Committed(b"\1")
    assert ahead.grant not in world.state.grants
