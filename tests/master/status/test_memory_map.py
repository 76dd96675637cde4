"""The map of the memory holds every byte once, in its part and under its kind."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from holdfast.core.state.state import State
from holdfast.ids import extent_of
from holdfast.instant import Instant
from holdfast.master.status import memory_map
from holdfast.master.status.memory_map import KINDS, MOST_PARTS, MOST_PARTS_IN_ALL, MemorySurvey
from holdfast.messages import requests as q
from holdfast.simulation.checks.log_checks import spans_of
from tests.core.world import World

MIB = 1 << 20


def surveyed(state: State, now: Instant) -> dict[str, Any]:
    survey = MemorySurvey(state, now)
    while survey.step():
        pass
    return survey.found()


def totals(found: dict[str, Any]) -> Counter[str]:
    """Kind -> bytes."""
    counted: Counter[str] = Counter()
    for segment in found["segments"]:
        counted.update({kind: sum(parts) for kind, parts in segment["parts"].items()})
    return counted


def check_against_spans(state: State, found: dict[str, Any]) -> None:
    """Part by part, by brute force."""
    taken = spans_of(state)
    handles = {(s.name.node, s.name.number): s.handle for s in state.memory_segments()}
    for segment in found["segments"]:
        covered = np.zeros(segment["size_bytes"], np.uint8)
        for start, end in taken[handles[segment["node"], segment["number"]]]:
            covered[start:end] += 1
        assert covered.max(initial=0) <= 1
        width = segment["part_bytes"]
        expected = [int(covered[at : at + width].sum()) for at in range(0, len(covered), width)]
        counted = np.sum([*segment["parts"].values(), np.zeros(MOST_PARTS, np.int64)], axis=0)
        assert counted[: len(expected)].tolist() == expected
        assert not counted[len(expected) :].any()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("at_once", [3, 4_096])
def test_every_byte_is_in_its_part(seed: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """I9, shown: objects, grants and quarantine, and the rest is free."""
    monkeypatch.setattr(memory_map, "SLOTS_AT_ONCE", at_once)
    monkeypatch.setattr(memory_map, "ENTRIES_AT_ONCE", at_once)
    chance, world = random.Random(seed), World()
    for number, name in enumerate(("a", "b")):
        world.node(name, MIB, boot=5 + number, connection=100 + number)
    for number in range(60):
        more = {"hard_pin": True} if number % 7 == 0 else {"soft_pin": True} if number % 5 == 0 else {}
        size = chance.choice([1, 64, 900, 5_000, 33_000])
        world.put(f"k{number}", size=size, replicas=chance.choice([1, 1, 2]), **more)
        if chance.random() < 0.3:
            world.touch(f"k{chance.randrange(number + 1)}")
        if chance.random() < 0.2:
            world.remove(f"k{chance.randrange(number + 1)}", force=True)
        if chance.random() < 0.1:
            grant, _ = world.grant(7_000, 200)
            world.commit(grant, [(f"g{number}", 0, 500)])
    world.put("read", size=5_000)
    world.touch("read")
    world.remove("read", force=True)
    world.check()
    found = surveyed(world.state, world.now)
    check_against_spans(world.state, found)
    assert set(totals(found)) == set(KINDS), "the story has every kind"
    # A standby's copy is shown in the same way; its leases are those that it knows of.
    check_against_spans(world.primary.twin, surveyed(world.primary.twin, world.now))


def test_an_object_counts_under_what_keeps_it_most() -> None:
    world = World()
    world.node("a", MIB)
    extent = extent_of(1_000)
    world.put("used")
    world.put("leased")
    world.put("soft", "soft and leased", soft_pin=True)
    world.put("hard", "hard and leased", hard_pin=True)
    world.touch("leased", "soft and leased", "hard and leased")
    counted = totals(surveyed(world.state, world.now))
    expected = {"used": extent, "leased": 2 * extent, "soft_pinned": extent, "hard_pinned": 2 * extent}
    assert {kind: counted[kind] for kind in expected} == expected
    after = totals(surveyed(world.state, world.now + world.primary.rules.lease_ttl_ms))
    assert (after["used"], after["leased"], after["soft_pinned"]) == (2 * extent, 0, 2 * extent)


def test_memory_that_waits_for_a_reader_is_in_quarantine() -> None:
    world = World()
    world.node("a", MIB)
    world.put("k")
    world.touch("k")
    assert world.remove("k", force=True).removed == 1
    assert totals(surveyed(world.state, world.now))["quarantined"] == extent_of(1_000)


def test_a_step_is_bounded_and_the_answer_too() -> None:
    world = World()
    world.node("a", 64 * MIB, segments=200)
    for batch in range(20):
        world.put(*[f"{batch}/{number}" for number in range(500)], size=64)
    survey = MemorySurvey(world.state, world.now)
    steps = 1
    while survey.step():
        steps += 1
    assert steps >= 10_000 // memory_map.SLOTS_AT_ONCE
    found = survey.found()
    assert len(found["segments"]) == 200
    assert sum(len(parts) for one in found["segments"] for parts in one["parts"].values()) <= MOST_PARTS_IN_ALL * len(
        KINDS
    )
    assert totals(found)["used"] == 10_000 * extent_of(64)


def test_objects_may_come_and_go_between_steps() -> None:
    world = World()
    world.node("a", 16 * MIB)
    world.put(*[f"k{number}" for number in range(6_000)], size=64)
    survey = MemorySurvey(world.state, world.now)
    assert survey.step()
    world.remove(*[f"k{number}" for number in range(5_000)], force=True)
    world.ask(q.Presence, q.Exists(["k1"]))
    world.put(*[f"n{number}" for number in range(6_000)], size=64)
    while survey.step():
        pass
    counted = totals(survey.found())["used"]
    assert 6_000 * extent_of(64) <= counted <= 12_000 * extent_of(64), "none of it is made up"


def test_without_memory_there_is_no_map() -> None:
    assert surveyed(State(), 0) == {"kinds": list(KINDS), "segments": []}
