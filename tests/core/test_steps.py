"""No request is one long step, however much it asks for: objects are counted, not time (ADR 51).

A step is one call of the engine: nobody else is answered before it ends. Objects that are looked up one by one, removed
or visited cost a few microseconds each, and those of array operations a tenth of that to one.
"""

from __future__ import annotations

import struct
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest

from holdfast.core.catalogue.catalogue import Catalogue, IdIndex, ReplicaAt
from holdfast.core.catalogue.key_index import KeyIndex
from holdfast.core.nodes import restored_memory
from holdfast.core.objects import reads
from holdfast.core.primary.decision import NextStep, Unfinished
from holdfast.core.rules import COPY_OBJECTS, LIST_SLOTS, REMOVAL_STEP_SLOTS, STEP_OBJECTS
from holdfast.errors import BadRequest
from holdfast.ids import COPIES, MAX_BATCH, MAX_KEYS, MAX_REPLICAS, GrantId
from holdfast.messages import of_masters, of_sessions
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from holdfast.messages.records import ObjectsRemoved
from holdfast.messages.requests import Failed
from holdfast.messages.shapes import Message
from holdfast.wire.codec import REQUESTS, decode_request, encode
from tests.core.copying import Nodes
from tests.core.world import CLIENT, World

OBJECTS = 2 * MAX_KEYS
DISK = 77
SLACK = 8
"""Lookups that are not of the request's own objects."""
seen: Counter[str] = Counter()


class CountedKeys(KeyIndex):
    __slots__ = ()

    def slot_of(self, key: str) -> int:
        seen["one by one"] += 1
        return super().slot_of(key)

    def slots_of(self, keys: list[str]) -> list[int]:
        seen["together"] += len(keys)
        return super().slots_of(keys)

    def presence(self, keys: list[str]) -> bytes:
        seen["together"] += len(keys)
        return super().presence(keys)


class CountedIds(IdIndex):
    __slots__ = ()

    def slot_of(self, oid: int) -> int:
        seen["one by one"] += 1
        return super().slot_of(oid)

    def slots_of(self, ids: Sequence[int]) -> list[int]:
        seen["together"] += len(ids)
        return super().slots_of(ids)


class Maximal(NamedTuple):
    """The largest request of a kind."""

    most: int
    """Items that one may have."""
    of_size: Callable[[World, int], Message]
    one_by_one: int = STEP_OBJECTS
    """Objects that one step may look at one by one."""


def keys(count: int) -> list[str]:
    return [f"k{number % OBJECTS}" if number < OBJECTS else f"none/{number}" for number in range(count)]


def rows(world: World, count: int, *more: int) -> bytes:
    """Rows that begin with the ids of objects."""
    ids = [world.state.catalogue.id_at[number % OBJECTS] for number in range(count)]
    return struct.pack(f"<{count * (1 + len(more))}Q", *(word for oid in ids for word in (oid, *more)))


def grants(count: int) -> list[GrantId]:
    return [GrantId(CLIENT, 1_000_000 + number) for number in range(count)]


def sizes(count: int) -> bytes:
    return struct.pack(f"<{count}Q", *[64] * count)


def commit(world: World, count: int) -> Message:
    grant, _ = world.grant(64 * count)
    packed = struct.pack(f"<{3 * count}Q", *(word for at in range(count) for word in (64 * at, 64, 1)))
    return q.CommitPuts(grant, [f"new/{number}" for number in range(count)], packed)


def verification(world: World, count: int) -> Message:
    world.state.unverified.add(world.handle_of("a"))
    return n.VerifyRanges(5, 5, 0, rows(world, count, 9, 9))


MAXIMAL: dict[type[Message], Maximal] = {
    q.Exists: Maximal(MAX_KEYS, lambda world, count: q.Exists(keys(count), touch=True)),
    q.Locate: Maximal(MAX_KEYS, lambda world, count: q.Locate(keys(count), tickets=True)),
    q.RenewLeases: Maximal(MAX_BATCH, lambda world, count: q.RenewLeases(rows(world, count, 1, 0))),
    q.GrantRanges: Maximal(
        MAX_KEYS, lambda world, count: q.GrantRanges(GrantId(CLIENT, 9_000_000), sizes(count), keys(count))
    ),
    q.ExtendGrants: Maximal(MAX_BATCH, lambda world, count: q.ExtendGrants(grants(count))),
    q.CommitPuts: Maximal(MAX_KEYS, commit),
    q.ReturnGrants: Maximal(MAX_BATCH, lambda world, count: q.ReturnGrants(grants(count))),
    q.Remove: Maximal(MAX_KEYS, lambda world, count: q.Remove(keys(count), 1)),
    q.ChangePins: Maximal(MAX_KEYS, lambda world, count: q.ChangePins(keys(count), hard_pin=True)),
    q.Stat: Maximal(MAX_KEYS, lambda world, count: q.Stat(keys(count))),
    q.Explain: Maximal(MAX_KEYS, lambda world, count: q.Explain(keys(count))),
    n.ReportWriters: Maximal(MAX_BATCH, lambda world, count: n.ReportWriters(5, 5, [], grants(count))),
    n.ReportUsage: Maximal(MAX_BATCH, lambda world, count: n.ReportUsage(5, 5, {}, list(range(count)))),
    n.ReportGone: Maximal(MAX_BATCH, lambda world, count: n.ReportGone(5, 5, "m", [(1, 1, "m")] * count)),  # type: ignore[list-item]
    n.RegisterNode: Maximal(
        MAX_BATCH, lambda world, count: n.RegisterNode(5, 5, 11, "h", "a:1", "/a", [4 << 20], list(range(count)))
    ),
    n.AddReplicas: Maximal(
        COPY_OBJECTS, lambda world, count: n.AddReplicas("a", GrantId(COPIES, 1), rows(world, count, 0, 1, 0, 1))
    ),
    n.ReportFiles: Maximal(MAX_BATCH, lambda world, count: n.ReportFiles("a", DISK, rows(world, count, 64))),
    n.ReportLostFiles: Maximal(
        MAX_BATCH, lambda world, count: n.ReportLostFiles("a", DISK, rows(world, count, 64, n.Damage.MISSING))
    ),
    n.VerifyRanges: Maximal(restored_memory.MOST_ROWS + MAX_REPLICAS, verification, 3 * restored_memory.MOST_ROWS),
}
IN_PAGES: dict[type[Message], str] = {
    q.RemoveMatching: "steps of REMOVAL_STEP_SLOTS",
    q.ListKeys: "LIST_SLOTS slots, by one comprehension",
    n.ListFiles: "VISIT_SLOTS slots, by array operations",
    of_masters.FetchSnapshot: "a piece of bounded length",
    of_masters.OfferCatalogue: "a piece of bounded length, which is appended to a file",
    of_masters.HoldTail: "records of one frame, which are kept as they are",
    of_sessions.KeepAlive: "what was refused, which is only passed on",
    q.Hello: "a key of 16 bytes",
}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World()
    nodes = Nodes(world)
    world.node("a", size=4 << 20)
    nodes.mount_disk("a", 5, DISK)
    for first in range(0, OBJECTS, MAX_KEYS):
        world.put(*keys(OBJECTS)[first : first + MAX_KEYS], size=64)
    catalogue = world.state.catalogue
    catalogue.by_key.__class__ = CountedKeys
    catalogue.by_id.__class__ = CountedIds
    replicas = Catalogue.replicas

    def counted(self: Catalogue, slot: int) -> tuple[ReplicaAt, ...]:
        seen["places"] += self is catalogue
        return replicas(self, slot)

    monkeypatch.setattr(Catalogue, "replicas", counted)
    yield world
    monkeypatch.undo()
    world.check()


class Step(NamedTuple):
    one_by_one: int
    together: int
    removed: int


def steps_of(world: World, request: Message) -> tuple[list[Step], Message]:
    """What each step of a request looked at, and the answer."""
    steps = []
    waiting: Message | NextStep = request
    while True:
        seen.clear()
        before = len(world.primary.records)
        reply, _ = world.engine.handle(waiting, CLIENT, 100, world.now)
        records = world.primary.records[before:]
        removed = sum((len(one.ids) + len(one.leased)) // 8 for one in records if isinstance(one, ObjectsRemoved))
        steps.append(Step(max(seen["one by one"], seen["places"]), seen["together"], removed))
        if not isinstance(reply, Unfinished):
            assert isinstance(reply, Message)
            return steps, reply
        waiting = reply.step


@pytest.mark.parametrize("kind", MAXIMAL)
def test_the_largest_request_of_each_verb_is_decided_in_bounded_steps(world: World, kind: type[Message]) -> None:
    """I17"""
    largest = MAXIMAL[kind]
    request = decode_request(encode(largest.of_size(world, largest.most)))
    steps, reply = steps_of(world, request)
    assert not isinstance(reply, Failed), reply
    for step in steps:
        assert step.one_by_one <= largest.one_by_one + SLACK
        assert step.together <= 4 * MAX_KEYS
        assert step.removed <= STEP_OBJECTS


@pytest.mark.parametrize("kind", MAXIMAL)
def test_a_larger_one_is_refused(world: World, kind: type[Message]) -> None:
    """I17: so those above are the largest. Nothing changes, and long lists are not even decoded."""
    largest = MAXIMAL[kind]
    request = largest.of_size(world, largest.most + 1)
    before = world.state.index
    try:
        reply, _ = world.engine.handle(decode_request(encode(request)), CLIENT, 100, world.now)
    except BadRequest as error:
        assert "length <= 32768" in str(error)  # noqa: PT017 - it is refused here or there.
        return
    assert isinstance(reply, Failed)
    assert reply.code == BadRequest.code
    assert world.state.index == before


def test_every_request_that_holds_many_of_something_is_counted_here() -> None:
    for kind in REQUESTS:
        hints = typing.get_type_hints(kind)
        many = [name for name in kind.__struct_fields__ if typing.get_origin(hints[name]) is list or name == "cursor"]
        packed = [name for name in kind.__struct_fields__ if hints[name] is bytes]
        if many or packed:
            assert kind in MAXIMAL or kind in IN_PAGES, f"{kind.__name__} needs a row in one of the tables"


def test_lists_in_requests_have_a_bound_that_is_checked_before_they_are_decoded() -> None:
    for kind in REQUESTS:
        hints = typing.get_type_hints(kind, include_extras=True)
        for name, hint in hints.items():
            if typing.get_origin(hint) is list:
                pytest.fail(f"{kind.__name__}.{name} is a list without a bound: make it Bounded")


def test_the_count_finds_a_long_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was before."""
    monkeypatch.setattr(reads, "STEP_OBJECTS", MAX_KEYS)
    steps, _ = steps_of(world, q.Stat(keys(MAX_KEYS)))
    assert [step.one_by_one for step in steps] == [MAX_KEYS]


def test_an_upsert_over_leased_objects_looks_at_none_of_them_by_itself(world: World) -> None:
    """It is one step, because a commit is stored as a whole or not at all."""
    taken = keys(MAX_KEYS)
    world.ask(q.Located, q.Locate(taken), client=CLIENT + 1)
    grant, _ = world.grant(64 * MAX_KEYS)
    packed = struct.pack(f"<{3 * MAX_KEYS}Q", *(word for at in range(MAX_KEYS) for word in (64 * at, 64, 1)))
    steps, reply = steps_of(world, q.CommitPuts(grant, taken, packed, upsert=True))
    assert reply == q.Committed(b"\1" * MAX_KEYS)
    assert [step.one_by_one for step in steps] == [0]
    assert len(world.state.quarantine) == 1, "readers may go on reading the old ones"


def test_a_forced_removal_of_leased_objects_takes_steps(world: World) -> None:
    taken = keys(MAX_KEYS)
    world.ask(q.Located, q.Locate(taken), client=CLIENT + 1)
    steps, reply = steps_of(world, q.Remove(taken, 1, force=True))
    assert reply == q.Removed(MAX_KEYS)
    assert [step.removed for step in steps] == [STEP_OBJECTS] * (MAX_KEYS // STEP_OBJECTS)
    assert all(step.one_by_one <= STEP_OBJECTS + SLACK for step in steps)


@pytest.mark.parametrize("cursor", [OBJECTS, OBJECTS + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_behind_the_last_slot_there_is_nothing(world: World, cursor: int) -> None:
    """The fuzzer found that a cursor beyond 64 bits with its page failed unexpectedly."""
    assert world.ask(q.KeyList, q.ListKeys("", cursor)) == q.KeyList([], 0)
    assert world.ask(q.Removed, q.RemoveMatching("^k", 1, cursor)) == q.Removed(0)
    assert world.ask(n.FileList, n.ListFiles("a", DISK, cursor)) == n.FileList(b"", 0)
    world.state.unverified.add(world.handle_of("a"))
    assert world.ask(n.RangesToVerify, n.VerifyRanges(5, 5, cursor, b"")).rows == b""


def test_pages_are_bounded(world: World) -> None:
    listed = world.ask(q.KeyList, q.ListKeys())
    assert len(listed.keys) == listed.cursor == LIST_SLOTS
    steps, _ = steps_of(world, q.RemoveMatching("^k", 1))
    assert {step.removed for step in steps} == {REMOVAL_STEP_SLOTS}


@pytest.mark.parametrize("count", [0, 1, 512, STEP_OBJECTS, STEP_OBJECTS + 1, 3 * STEP_OBJECTS, MAX_KEYS])
def test_an_answer_in_steps_is_that_of_one_step(world: World, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    names = [*keys(count)[: count // 2], *(f"none/{number}" for number in range(count - count // 2))]
    asked: list[Message] = [q.RenewLeases(rows(world, count, 1, 0)), q.Stat(names), q.Explain(names)]
    in_steps = [steps_of(world, request) for request in asked]
    assert {len(steps) for steps, _ in in_steps} == {max(1, -(-count // STEP_OBJECTS))}
    monkeypatch.setattr(reads, "STEP_OBJECTS", MAX_BATCH)
    assert [world.send(request) for request in asked] == [reply for _, reply in in_steps]


def test_a_removal_of_many_keys_counts_each_once(world: World) -> None:
    asked = [*keys(2_000), *keys(2_000), "none", "none"]
    steps, answer = steps_of(world, q.Remove(asked, 1))
    assert len(steps) == 2
    assert answer == q.Removed(2_000, missing=1)
    assert world.ask(q.Removed, q.Remove(asked, 1)) == answer, "a retry gets the same answer"


def test_a_removal_by_key_that_was_cut_short_goes_on_where_it_stopped(world: World) -> None:
    """I10: the client sends it again, with its serial, to the next primary."""
    request = q.Remove(keys(3 * STEP_OBJECTS), 1)
    reply, _ = world.engine.handle(request, CLIENT, 1, world.now)
    assert isinstance(reply, Unfinished)
    assert world.state.catalogue.count == OBJECTS - STEP_OBJECTS
    assert world.ask(q.Removed, request) == q.Removed(3 * STEP_OBJECTS)
    assert world.state.catalogue.count == OBJECTS - 3 * STEP_OBJECTS


def test_settled_grants_are_looked_for_in_the_quarantine_once_for_all(world: World) -> None:
    """Not once for each: a client may name as many as it likes."""
    grant, _ = world.grant(64)
    other, _ = world.grant(64)
    for one in (grant, other):
        world.ask(q.Done, q.ReturnGrants([one], settled=False))
    assert len(world.state.quarantine) == 2
    before = len(world.primary.records)
    world.ask(q.Done, q.ReturnGrants([*grants(1_000), grant, other]))
    assert not world.state.quarantine
    assert len(world.primary.records) == before + 1
