"""A fast path and its slow twin do the same: the same calls both ways, the same results and the same state after each.

The pairs are listed in docs/fast-paths.md.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.client.arguments import (
    MAX_KEY_BYTES,
    _checked_values,
    checked_key,
    checked_keys,
    checked_target,
    checked_targets,
    checked_value,
)
from holdfast.client.bytes import nodes
from holdfast.client.cache import Cache
from holdfast.client.operations import batch_gets, puts
from holdfast.client.operations.places import (
    Asked,
    lease_in,
    locate,
    locate_one,
    take_over,
    take_over_columns,
)
from holdfast.client.state.client import SMALL_READ, Core
from holdfast.client.state.leases import LeaseColumns
from holdfast.errors import Busy, GrantTimedOut, HoldfastError
from holdfast.messages import requests as m
from holdfast.messages.rows import PutRow
from holdfast.messages.shapes import Message
from holdfast.operations.effects import Operation
from holdfast.wire.codec import failed
from tests.client.fake_master import Act, FakeMaster, first
from tests.client.inside import core_of
from tests.node.rig import Served

SIZES = {"small": 10, "page": 3000, "large": SMALL_READ + 5, "twice": 700}
"""Objects by key; `twice` has two replicas, and `absent` is none."""


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returned, or its error: the type and the words."""
    try:
        return call()
    except (HoldfastError, TypeError, ValueError) as error:
        return type(error), str(error)


class BothWays(NamedTuple):
    master: FakeMaster
    stored: dict[str, tuple[int, int, int, int, int]]
    quick: Cache
    slow: Cache


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BothWays]:
    with (
        Served(tmp_path_factory.mktemp("node")) as node,
        FakeMaster(node) as master,
        holdfast.connect(master.address) as quick,
        holdfast.connect(master.address) as slow,
    ):
        for key, size in SIZES.items():
            quick.put(key, os.urandom(size), replicas=2 if key == "twice" else 1)
        # The slow one has no first tries: every call runs its operation.
        slow._at_once = lambda message, deadline: None
        yield BothWays(master, dict(master.objects), quick, slow)


def state(cache: Cache) -> tuple[Any, ...]:
    """What a read leaves behind. When a lease ends depends on the moment of the call."""
    core = core_of(cache)
    leases = {key: row[1:] for key in list(core.leases.by_key) if (row := core.leases.row(key)) is not None}
    live = {key: core.leases.live(key, core.clock()) is not None for key in leases}
    return leases, live, core.segments.seen, core.bytes.decided, core.own_removals._reads, core.own_removals.under_way


KEYS = st.sampled_from([*SIZES, "absent"])
VERDICTS = st.sampled_from(
    [Act.USUAL, Act.DROP, failed(Busy("not now")), m.Located(b"short", 10_000, 1), m.Presence(b"")]
)
"""Of the master, about the requests of a call."""
STEPS = st.one_of(
    st.tuples(st.just("get"), KEYS, VERDICTS),
    st.tuples(st.sampled_from(["exists", "touch"]), KEYS, VERDICTS),
    st.tuples(st.sampled_from(["forget", "topology", "end leases"]), st.none(), st.none()),
    st.tuples(st.sampled_from(["remove", "restore", "spoil"]), st.sampled_from([*SIZES]), st.none()),
)


USUAL = Act.USUAL


@settings(max_examples=200, deadline=None)
@example(
    steps=[("end leases", None, None), ("get", "small", USUAL), ("remove", "small", None), ("get", "small", USUAL)]
)
@example(steps=[("get", "twice", USUAL), ("spoil", "twice", None), ("forget", None, None), ("get", "twice", USUAL)])
@given(steps=st.lists(STEPS, min_size=1, max_size=8))
def test_a_first_try_does_as_the_operation_does(both: BothWays, steps: list[tuple[str, Any, Any]]) -> None:
    master, stored, quick, slow = both
    master.objects, master.lease_ttl_ms = dict(stored), 10_000
    for cache in (quick, slow):
        core_of(cache).leases.clear()
        core_of(cache).segments.seen = master.topology
    for action, key, verdict in steps:
        if action in ("get", "exists", "touch"):
            results = []
            for cache in (quick, slow):
                master.judge = judged(verdict)
                results.append(outcome(lambda: verb(cache, action, key)))  # noqa: B023
            assert results[0] == results[1]
            assert state(quick) == state(slow)
        elif action == "forget":
            core_of(quick).leases.clear(), core_of(slow).leases.clear()
        elif action == "topology":
            master.topology += 1
        elif action == "end leases":
            master.lease_ttl_ms = 0
        elif action == "remove":
            master.objects.pop(key, None)
        elif action == "restore":
            master.objects[key] = stored[key]
        else:
            master.objects[key] = (*stored[key][:4], stored[key][4] ^ 1)


def judged(verdict: Act | Message) -> Callable[[Message], Act | Message]:
    """The first request is not answered, or put off; a reply that makes no sense comes every time."""
    left = [verdict]

    def judge(request: Message) -> Act | Message:
        if not isinstance(request, m.Locate | m.Exists) or not left:
            return Act.USUAL
        return left.pop() if isinstance(verdict, Act | m.Failed) else verdict

    return judge


def verb(cache: Cache, action: str, key: str) -> Any:
    return cache.get(key) if action == "get" else cache.exists(key, touch=action == "touch")


def run_out(operation: Operation[Any], reply: Message) -> Any:
    """The result of an operation that sends one request, and gets this reply."""
    try:
        sent = next(operation)
        assert isinstance(sent, m.Locate)
        operation.send(reply)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it wants more than one reply")


@given(
    row=st.tuples(*[st.integers(0, 2**40)] * 2, *[st.integers(0, 2**62)] * 2, st.integers(0, 2**64 - 1)),
    ttl_ms=st.integers(0, 100_000),
    sent_at=st.floats(0, 1e6),
)
def test_a_row_alone_is_decoded_as_in_a_batch(row: tuple[int, ...], ttl_ms: int, sent_at: float) -> None:
    located = m.Located(struct.pack("<5Q", *row), ttl_ms, topology=3)
    left: dict[str, Any] = {}
    for way, run in {
        "one": lambda core: run_out(locate_one(core, "key", sent_at + 5), located),
        "many": lambda core: run_out(locate(core, ["key"], sent_at + 5), located).get("key"),
    }.items():
        core = Core(lambda: sent_at, "", verify=True)
        core.welcomed(m.Welcome(7, 1, "", 10_000, 30_000, 1 << 22, 1 << 18, topology=1))
        core.bytes.decided.add(row[1])
        left[way] = (run(core), dict(core.leases.by_key), core.segments.seen)
    assert left["one"] == left["many"]
    assert left["one"][0] == lease_in(located, sent_at, 7)
    core.bytes.decided.add(row[1])
    asked = Asked(sent_at, 7, tickets=True)
    with pytest.raises(StopIteration) as stop:
        next(take_over(core, ["key"], located, asked, sent_at + 5))
    assert stop.value.value.get("key") == left["one"][0]


WORDS = st.tuples(*[st.integers(0, 2)] * 2, *[st.integers(0, 2**62)] * 2, st.integers(0, 2**64 - 1))


@given(
    rows=st.lists(WORDS, min_size=1, max_size=6),
    ttl_ms=st.sampled_from([0, 10_000]),
    others=st.lists(st.tuples(st.integers(0, 0), st.integers(1, 3), st.integers(0, 9)), max_size=1),
)
def test_leases_are_taken_over_as_columns_as_one_by_one(
    rows: list[tuple[int, ...]], ttl_ms: int, others: list[tuple[int, int, int]]
) -> None:
    """Segment 2 is not mapped. Ids of 0 are keys that are not stored."""
    rows = [(row[0] * (place + 1), *row[1:]) for place, row in enumerate(rows)]
    located = m.Located(struct.pack(f"<{5 * len(rows)}Q", *sum(rows, ())), ttl_ms, topology=3, others=others)
    keys = [f"key {place}" for place in range(len(rows))]
    left = []
    for run in (take_over, take_over_columns):
        core = Core(lambda: 50.0, "", verify=True)
        core.welcomed(m.Welcome(7, 1, "", 10_000, 30_000, 1 << 22, 1 << 18, topology=1))
        core.bytes.maps.update({0: mmap.mmap(-1, 1), 1: mmap.mmap(-1, 1)})
        core.bytes.decided.update(range(4))
        with pytest.raises(StopIteration) as stop:
            next(run(core, keys, located, Asked(50.0, 7, tickets=True), 55.0))
        found = stop.value.value
        rows_found = found.rows if type(found) is LeaseColumns else found
        left.append((rows_found, dict(zip(keys, core.leases.rows(keys), strict=True)), core.segments.seen))
    assert left[0] == left[1]


BATCH_STEPS = st.one_of(
    st.tuples(st.just("get"), st.lists(st.sampled_from([*SIZES, "absent"]), min_size=1, max_size=6)),
    st.tuples(st.just("into"), st.lists(st.sampled_from([*SIZES, "absent"]), min_size=1, max_size=6, unique=True)),
    st.tuples(st.just("one"), st.sampled_from([*SIZES, "absent"])),
    st.tuples(st.sampled_from(["forget", "end leases"]), st.none()),
    st.tuples(st.sampled_from(["remove", "restore", "spoil"]), st.sampled_from([*SIZES])),
)


@settings(max_examples=100, deadline=None)
@example(steps=[("get", ["small", "page"]), ("spoil", "page"), ("forget", None), ("get", ["page", "small"])])
@example(steps=[("get", ["small", "absent", "small"]), ("remove", "small"), ("get", ["small", "page"])])
@example(steps=[("get", ["small", "page"]), ("one", "page"), ("spoil", "page"), ("one", "page"), ("one", "absent")])
@given(steps=st.lists(BATCH_STEPS, min_size=1, max_size=6))
def test_a_batch_is_read_by_columns_as_by_rows(both: BothWays, steps: list[tuple[str, Any]]) -> None:
    master, stored, quick, slow = both
    master.judge, master.objects, master.lease_ttl_ms = lambda request: Act.USUAL, dict(stored), 10_000
    for cache in (quick, slow):
        core_of(cache).leases.clear()
    for action, given_keys in steps:
        if action in ("get", "into", "one"):
            results = []
            for cache, way in ((quick, take_over_columns), (slow, take_over)):
                with patch.object(batch_gets, "take_over_columns", way):
                    results.append(outcome(lambda: read_batch(cache, action, given_keys)))  # noqa: B023
            assert results[0] == results[1]
            assert state(quick) == state(slow)
        elif action == "forget":
            core_of(quick).leases.clear(), core_of(slow).leases.clear()
        elif action == "end leases":
            master.lease_ttl_ms = 0
        elif action == "remove":
            master.objects.pop(given_keys, None)
        else:
            spoilt = int(action == "spoil")
            master.objects[given_keys] = (*stored[given_keys][:4], stored[given_keys][4] ^ spoilt)


def read_batch(cache: Cache, action: str, keys: list[str]) -> Any:
    """One key is a str. Its lease, if there is one, came with a batch."""
    if action == "one":
        return cache.get(str(keys))
    if action == "get":
        errors: dict[str, HoldfastError] = {}
        found = cache.get_many(keys, errors=errors)
        return list(found.items()), {key: (type(error), str(error)) for key, error in errors.items()}
    buffers = [bytearray(SIZES.get(key, 1)) for key in keys]
    sizes = cache.get_many_into(keys, buffers)
    return [(type(size), str(size)) for size in sizes], buffers


def views() -> st.SearchStrategy[Any]:
    """Buffers that are plain, writable views of bytes, and all kinds that are nearly so."""
    size = st.integers(1, 40)
    return st.one_of(
        size.map(lambda count: memoryview(bytearray(os.urandom(count)))),
        size.map(lambda count: memoryview(os.urandom(count))),
        size.map(lambda count: memoryview(bytearray(4 * count)).cast("I")),
        size.map(lambda count: memoryview(bytearray(6 * count)).cast("B", (2, 3 * count))),
        size.map(lambda count: memoryview(bytearray(2 * count))[::2]),
        st.builds(lambda: memoryview(bytearray())),
        st.builds(lambda: bytearray(b"array")),
        st.sampled_from([b"bytes", "text", None, 5]),
    )


def shown(buffers: list[Any]) -> list[Any]:
    """Where each lies, how long it is and what may be done with it."""
    return [(bytes(each), each.nbytes, each.format, each.readonly) for each in map(memoryview, buffers)]


@given(buffers=st.lists(views(), min_size=1, max_size=4))
def test_values_are_checked_all_at_once_as_one_by_one(buffers: list[Any]) -> None:
    keys = [f"key {number}" for number in range(len(buffers))]
    together = outcome(lambda: shown(_checked_values(list(buffers), keys)))
    # Of many values, the error names the key of the first that is wrong.
    alone = [outcome(lambda each=each: shown([checked_value(each)])) for each in buffers]
    wrong = [(each[0], f"{key!r}: {each[1]}") for key, each in zip(keys, alone, strict=True) if isinstance(each, tuple)]
    assert together == (wrong[0] if wrong else [one for (one,) in alone])


@given(buffers=st.lists(views(), min_size=1, max_size=4))
def test_targets_are_checked_all_at_once_as_one_by_one(buffers: list[Any]) -> None:
    keys = [f"key {number}" for number in range(len(buffers))]

    def together() -> list[Any]:
        listed, rooms = checked_targets(keys, list(buffers))
        assert listed == keys
        return shown(rooms)

    assert outcome(together) == outcome(lambda: shown([checked_target(each) for each in buffers]))


@given(
    keys=st.lists(
        st.one_of(
            st.text(max_size=5),
            st.text(st.characters(codec="ascii"), min_size=1, max_size=5),
            st.sampled_from(["\ud800", "a" * MAX_KEY_BYTES, "a" * (MAX_KEY_BYTES + 1), "é" * MAX_KEY_BYTES, b"key", 7]),
        ),
        max_size=4,
    )
)
def test_keys_are_checked_all_at_once_as_one_by_one(keys: list[Any]) -> None:
    assert outcome(lambda: checked_keys(keys)) == outcome(lambda: [checked_key(key) for key in keys])


@pytest.mark.parametrize("size", [65_536, 65_537, 200_001, 4 * 65_536 - 1])
@pytest.mark.parametrize("spoiled", [False, True])
def test_a_large_object_is_read_over_several_connections_as_over_one(
    both: BothWays, monkeypatch: pytest.MonkeyPatch, size: int, spoiled: bool
) -> None:
    master = both.master
    master.judge = lambda request: Act.USUAL
    master.lease_ttl_ms = 10_000
    key, value = f"{size} {spoiled}", os.urandom(size)
    both.slow.put(key, value)
    if spoiled:
        row = master.objects[key]
        master.objects[key] = (*row[:4], row[4] ^ 1)
    results = []
    for threshold in (size, size + 1):
        monkeypatch.setattr(nodes, "PARALLEL_FROM", threshold)
        with holdfast.connect(master.address, shared_memory=False, timeout=5) as cache:
            ways = count_reads(monkeypatch, cache)
            target = bytearray(size)
            results.append((outcome(lambda: cache.get(key)), outcome(lambda: cache.get_into(key, target)), target))  # noqa: B023
        assert (ways[0] > 0) == (threshold == size), "it was read the other way"
    assert results[0] == results[1]
    assert (results[0][2] == value) or spoiled


def count_reads(monkeypatch: pytest.MonkeyPatch, cache: Cache) -> list[int]:
    """How often this client reads over several connections."""
    counted, real = [0], core_of(cache).bytes._read_parallel

    def read(*given: Any) -> None:
        counted[0] += 1
        real(*given)

    monkeypatch.setattr(core_of(cache).bytes, "_read_parallel", read)
    return counted


class Putter(NamedTuple):
    """A client with a master and a node of its own, so that two can be compared."""

    master: FakeMaster
    cache: Cache


@pytest.fixture(scope="module")
def putters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Putter, Putter]]:
    """The second one has no fast path for one small object."""
    with contextlib.ExitStack() as opened:
        made = []
        for name in ("quick", "slow"):
            node = opened.enter_context(Served(tmp_path_factory.mktemp(name)))
            master = opened.enter_context(FakeMaster(node))
            made.append(Putter(master, opened.enter_context(holdfast.connect(master.address, timeout=5))))
        real, slow = puts._put_at_once, core_of(made[1].cache)

        def at_once(core: Core, *given: Any) -> Operation[bool | None]:
            return (yield from real(core, *given)) if core is not slow else None

        opened.enter_context(patch.object(puts, "_put_at_once", at_once))
        yield made[0], made[1]


def told(master: FakeMaster) -> list[tuple[Any, ...]]:
    """The puts that the master was asked for, without the ids that each client makes up."""
    found: list[tuple[Any, ...]] = []
    for each in master.requests:
        if isinstance(each, m.CommitPuts):
            rows = [row[1:] for row in PutRow.iter_unpack(each.rows)]
            options = (each.upsert, each.soft_pin, each.hard_pin, each.durability)
            found.append((each.keys, rows, options, len(each.finished), each.ahead is None))
        elif isinstance(each, m.GrantRanges):
            found.append((each.keys, each.sizes, each.replicas, each.upsert, len(each.finished), each.least_bytes))
    return found


def left_by_puts(putter: Putter) -> tuple[Any, ...]:
    grants = core_of(putter.cache).grants
    stored = {key: (row[3:], putter.cache.get(key)) for key, row in putter.master.objects.items()}
    return (
        stored,
        [(grant.used, grant.users, grant.retired, grant.torn) for grant in grants.by_id.values()],
        len(grants.finished),
        len(grants.torn),
        sorted(core_of(putter.cache).leases.by_key),
    )


PUTS = st.tuples(
    st.sampled_from(["a", "b", "c"]),
    st.binary(min_size=1, max_size=200),
    st.fixed_dictionaries(
        {},
        optional={
            "upsert": st.booleans(),
            "soft_pin": st.booleans(),
            "hard_pin": st.booleans(),
            "durability": st.sampled_from(["durable", "memory"]),
            "replicas": st.sampled_from([1, 2]),
        },
    ),
    st.sampled_from([Act.USUAL, Act.DROP, Act.DO_AND_DROP, failed(Busy("not now")), failed(GrantTimedOut("too late"))]),
)


@settings(max_examples=60, deadline=None)
@given(given_puts=st.lists(PUTS, min_size=1, max_size=5))
def test_a_small_put_at_once_does_as_a_piece_of_one(
    putters: tuple[Putter, Putter], given_puts: list[tuple[Any, ...]]
) -> None:
    left = []
    for putter in putters:
        master, core = putter.master, core_of(putter.cache)
        core.grants.clear(), core.leases.clear()
        master.objects, master.others, master.ends = {}, {}, {1: 0, 2: 0}
        master.requests.clear()
        results = []
        for key, value, options, verdict in given_puts:
            master.judge = first(m.CommitPuts, verdict)
            results.append(outcome(lambda: putter.cache.put(key, value, **options)))  # noqa: B023
        left.append((results, told(master), left_by_puts(putter)))
    assert left[0] == left[1]
