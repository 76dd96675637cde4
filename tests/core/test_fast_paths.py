"""A fast path of the core and its slow twin do the same: the same calls both ways, the same state after each.

The pairs are listed in docs/fast-paths.md.
"""

from __future__ import annotations

import struct
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.catalogue.catalogue import HARD_PIN, PAGE_BITS, IdIndex
from holdfast.core.catalogue.digest import digest
from holdfast.core.catalogue.holdings import Holdings
from holdfast.core.objects import reads, windows
from holdfast.core.primary import primary as primary_module
from holdfast.core.state.tenants import Tenant
from holdfast.errors import BadValue
from holdfast.ids import GrantId, KeysOf, extent_of, namespace_of
from holdfast.messages import requests as q
from tests.core.tenants_world import TenantsWorld
from tests.core.world import World, check_holdings

PAGE = 1 << PAGE_BITS


@given(
    runs=st.lists(st.tuples(st.integers(0, 3 * PAGE), st.integers(1, PAGE + 5)), min_size=1, max_size=4),
    unbound=st.integers(0, 50),
)
def test_ids_are_bound_one_by_one_in_runs_and_in_any_order_alike(runs: list[tuple[int, int]], unbound: int) -> None:
    ways = {"one": IdIndex(), "run": IdIndex(), "any": IdIndex()}
    first, slot, ids = 0, 0, []
    for gap, count in runs:
        first += gap
        slots = [*range(slot, slot + count)]
        for oid, its_slot in enumerate(slots, first):
            ways["one"].bind_one(oid, its_slot)
        ways["run"].bind(first, slots)
        backwards = np.array([*range(first, first + count)][::-1], np.uint64)
        ways["any"].bind_any(backwards, slots[::-1])
        ids += [*range(first, first + count)]
        first, slot = first + count, slot + count
    for index in ways.values():
        index.unbind(ids[:unbound])
    assert ways["one"]._pages == ways["run"]._pages == ways["any"]._pages
    assert ways["one"]._live == ways["run"]._live == ways["any"]._live


LEASES = st.tuples(
    st.sampled_from([7, 8, 9]),
    st.lists(st.integers(0, 4), min_size=1, max_size=5, unique=True),
    st.sampled_from([0, 1, 2_000, 9_000, 9_999, 10_000, 30_000]),
)


@settings(max_examples=60, deadline=None)
@given(given_leases=st.lists(LEASES, min_size=1, max_size=6))
def test_objects_are_leased_one_by_one_as_by_an_array(given_leases: list[tuple[int, list[int], int]]) -> None:
    """When leases end, who holds them, and whether standbys must hear of it at once."""
    one, many = World(), World()
    left: dict[int, Any] = {}
    for world in (one, many):
        world.node("a")
        world.put(*[f"key {number}" for number in range(5)])
        told = []
        for client, numbers, ms in given_leases:
            world.now += ms
            slots = world.state.catalogue.by_key.slots_of([f"key {number}" for number in numbers])
            if world is many:
                urgent, leased = reads._lease(world.primary, np.array(slots, np.intp), client, world.now)
                told.append((urgent, leased or bytes([True] * len(slots))))
            else:
                each = [reads._lease_one(world.primary, slot, client, world.now) for slot in slots]
                told.append((any(one & reads._URGENT for one in each), bytes(map(bool, each))))
        catalogue = world.state.catalogue
        columns = (catalogue.lease_until, catalogue.lessees, catalogue.last_used, catalogue.renewed)
        left[id(world)] = (told, [column[: catalogue.top].tolist() for column in columns])
    assert left[id(one)] == left[id(many)]


def step(world: World, action: str, number: int, size: int) -> Any:
    """A put, a read, a removal, or time that passes; with the reply."""
    key = f"key {number}"
    if action in ("put", "replace"):
        return world.put(key, size=size, upsert=action == "replace")
    if action == "read":
        return world.locate(key)
    if action == "remove":
        return world.remove(key, force=number % 2 == 0)
    world.pass_time(size)
    return None


def play(world: World, steps: list[tuple[str, int, int]]) -> list[Any]:
    world.node("a", size=1 << 16)
    return [step(world, *each) for each in steps]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "replace", "read", "remove", "wait"]),
        st.integers(0, 5),
        st.integers(1, 9_000),
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_a_commit_that_only_adds_is_absorbed_as_any_record(steps: list[tuple[str, int, int]]) -> None:
    quick, slow = World(), World()
    replies = play(quick, steps)
    with pytest.MonkeyPatch.context() as patch:
        # `absorb` tells the records that only add objects by their type.
        patch.setattr(primary_module, "type", lambda record: None, raising=False)
        assert play(slow, steps) == replies
    for world in (quick, slow):
        world.check()
    assert digest(quick.state.catalogue) == digest(slow.state.catalogue)
    assert quick.primary.records == slow.primary.records
    for name in ("release_at", "grant_deadline", "grants_of"):
        assert getattr(quick.primary, name) == getattr(slow.primary, name)
    assert quick.primary.counts.evicted == slow.primary.counts.evicted
    free = [{at: [*each.free_ranges()] for at, each in world.primary.allocators.items()} for world in (quick, slow)]
    assert free[0] == free[1]


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_a_layout_is_the_same_from_the_order_of_the_last_time_as_from_nothing(
    steps: list[tuple[str, int, int]],
) -> None:
    world = World()
    world.node("a", size=1 << 16)
    none = np.array([], np.intp)
    for each in steps:
        step(world, *each)
        (segment,) = world.state.segments.values()
        remembered = windows.layout_of(world.primary, segment, world.now, False, none)
        world.primary.remembered_order.clear()
        fresh = windows.layout_of(world.primary, segment, world.now, False, none)
        for name in ("starts", "ends", "slots", "limits"):
            assert getattr(remembered, name).tolist() == getattr(fresh, name).tolist(), name
        real = fresh.slots >= 0
        assert remembered.ids[real].tolist() == fresh.ids[real].tolist()


def of_tenants() -> TenantsWorld:
    world = TenantsWorld()
    world.node(size=16 << 20)
    world.define(1)
    world.define(2)
    return world


def granted(world: TenantsWorld, number: int, count: int) -> tuple[GrantId, bytes]:
    """A grant of this tenant, and the rows of as many objects in it."""
    world.serial += 1
    grant = GrantId(100 + number, world.serial)
    world.ask(q.Granted, q.GrantRanges(grant, struct.pack("<Q", extent_of(1_000) * count)), grant.client)
    return grant, b"".join(struct.pack("<3Q", i * extent_of(1_000), 1_000, 7) for i in range(count))


@pytest.mark.parametrize("count", [1, 3, 40])
def test_keys_that_are_known_to_be_of_one_tenant_are_stored_as_those_that_are_looked_at(count: int) -> None:
    known, looked_at = of_tenants(), of_tenants()
    for number in (1, 2):
        names = [f"{namespace_of(number)}k{i}" for i in range(count)]
        for world, keys in ((known, KeysOf(namespace_of(number), names)), (looked_at, names)):
            grant, rows = granted(world, number, count)
            assert world.ask(q.Committed, q.CommitPuts(grant, keys, rows), grant.client).stored == b"\1" * count
            assert [row[0] > 0 for row in world.locate(*names)] == [True] * count
    assert digest(known.state.catalogue) == digest(looked_at.state.catalogue)
    assert known.primary.records == looked_at.primary.records
    for world in (known, looked_at):
        world.check()


@pytest.mark.parametrize("count", [1, 3, 40])
def test_keys_that_are_known_to_be_anothers_are_refused_as_those_that_are_looked_at(count: int) -> None:
    """I20"""
    names = [f"{namespace_of(2)}k{i}" for i in range(count)]
    for keys in (KeysOf(namespace_of(2), names), names):
        world = of_tenants()
        grant, rows = granted(world, 1, count)
        with pytest.raises(BadValue, match="reserved"):
            world.ask(q.Committed, q.CommitPuts(grant, keys, rows), grant.client)
        assert world.used(2) == 0
        world.check()


def test_of_a_part_of_them_nothing_is_known() -> None:
    keys = KeysOf(namespace_of(1), [namespace_of(1) + "a", namespace_of(1) + "b"])
    assert [type(part) for part in (keys[:1], keys + keys, keys.copy())] == [list, list, list]


def test_a_put_of_a_tenant_without_limits_is_as_one_far_below_them() -> None:
    """Where no tenant has a limit nothing is added up."""
    free, limited = of_tenants(), of_tenants()
    limited.define(1, limit_bytes=1 << 30, max_objects=1 << 30, hard_pin_share=0.9)
    before = [len(world.primary.records) for world in (free, limited)]
    for world in (free, limited):
        for count, pins in ((1, {}), (3, {"hard_pin": True}), (40, {}), (1, {"hard_pin": True})):
            names = [f"{count}/{pins}/{i}" for i in range(count)]
            assert world.store(1, *names, **pins) is None
            world.serial += 1
            keys = [namespace_of(1) + name for name in [*names, *(f"{name}+" for name in names)]]
            grant = GrantId(101, world.serial)
            asked = q.GrantRanges(grant, struct.pack(f"<{len(keys)}Q", *[1_000] * len(keys)), keys)
            assert world.ask(q.Granted, asked, 101).taken == b"\1" * count + b"\0" * count
        world.check()
    ours, theirs = (world.primary.records[start:] for world, start in zip((free, limited), before, strict=True))
    assert ours == theirs


KEYS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 200_000), st.booleans()), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(rows=KEYS)
def test_objects_of_tenants_are_counted_one_by_one_as_many_at_once(rows: list[tuple[int, int, bool]]) -> None:
    """One by one a key of the tenant of the last one is not looked up. Of many, those of one tenant without pins are
    added up in fewer steps."""
    one, of_each, mixed = World(), World(), World()
    for world in (one, of_each, mixed):
        world.state.catalogue.holdings = Holdings(world.state.catalogue)
        world.state.tenants.put(Tenant(3, "t3"))
    named = [(pinned, number, f"{namespace_of(number)}{i}", size) for i, (number, size, pinned) in enumerate(rows)]
    for i, (pinned, _, key, size) in enumerate(named):
        one.state.catalogue.insert(key, 1 + i, size, 0, 1, 0, HARD_PIN if pinned else 0, 0)
    for world, alike in ((of_each, itemgetter(0, 1)), (mixed, itemgetter(0))):
        first = 1
        for _, group in groupby(sorted(named), alike):
            pins, _, keys, sizes = zip(*group, strict=True)
            words, zeros = np.array(sizes, np.uint64), np.zeros(len(keys), np.int64)
            flags = HARD_PIN if pins[0] else 0
            world.state.catalogue.insert_many([*keys], first, words, zeros.astype(np.uint64), 1, zeros, flags, 0)
            first += len(keys)
    for world in (one, of_each, mixed):
        check_holdings(world.state)
