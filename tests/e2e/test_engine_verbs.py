"""The verbs for engines on real processes: held leases, reservations, views of many, and a node that is stopped.

One cluster for all: two masters, and two nodes of which the second serves the tests that stop it. Every test runs
through both shells, in mapped memory and over TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast import errors
from holdfast.instant import now_seconds
from tests.client.faces import AwaitedFace
from tests.client.inside import core_of
from tests.e2e.rig import Rig, said
from tests.waiting import run_together, wait_until

LEASE_MS = 1_000
MIB = 1 << 20
NODE_BYTES = 32 * MIB
Connect = Callable[..., Any]


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    settings = {"lease_ttl_ms": LEASE_MS, "grant_timeout_ms": 7_000, "leader_ttl_ms": 3_000}
    with Rig("32MiB", nodes=2, masters=2, coordination="sqlite", **settings) as rig:
        rig.wait_for_nodes(2)
        yield rig


@pytest.fixture(params=["blocking", "asyncio"])
def connect(rig: Rig, request: pytest.FixtureRequest) -> Iterator[Connect]:
    with contextlib.ExitStack() as opened:
        if request.param == "blocking":
            yield lambda **options: opened.enter_context(rig.connect(**options))
        else:
            loop = asyncio.new_event_loop()
            opened.callback(loop.close)

            async def connected(options: dict[str, Any]) -> holdfast.AsyncCache:
                return await holdfast.connect_async(rig.address, **{"timeout": 60, **options})

            def opener(**options: Any) -> AwaitedFace:
                face = AwaitedFace(loop, loop.run_until_complete(connected(options)))
                opened.callback(face.close)
                return face

            yield opener


@pytest.fixture(params=["mapped", "tcp"])
def cache(connect: Connect, request: pytest.FixtureRequest) -> Iterator[Any]:
    cache = connect(shared_memory=request.param == "mapped")
    yield cache
    cache.remove_all(force=True)


def fill_everything(cache: Any) -> None:
    """Several times the memory of both nodes: whatever may be evicted is."""
    for number in range(80):
        cache.put(f"filler/{number}", os.urandom(2 * MIB))


def until(cache: Any, condition: Callable[[], object], what: str) -> None:
    """Wait for it, while the loop runs where there is one."""
    loop = cache.loop if isinstance(cache, AwaitedFace) else None

    def turned() -> object:
        if loop is not None:
            loop.run_until_complete(asyncio.sleep(0.01))
        return condition()

    wait_until(turned, deadline_s=60, what=what)


def let_leases_be_renewed(cache: Any) -> None:
    """Until those that are held would have ended twice without it."""
    core = core_of(cache)
    enough = time.monotonic() + 2 * LEASE_MS / 1000
    until(cache, lambda: core.held_leases.renew_at > now_seconds() and time.monotonic() > enough, "they are renewed")


def let_leases_end(cache: Any, key: str) -> None:
    until(cache, lambda: cache.stat(key).lease_left_ms == 0, f"nobody has a lease on {key}")


def test_what_is_leased_outlives_eviction_and_what_is_released_goes(cache: Any) -> None:
    """I8. The lease is given up when it was released as often as it was taken."""
    keys = ["leased/0", "leased/1", "missing"]
    for key in keys[:2]:
        cache.put(key, os.urandom(MIB))
    assert cache.lease_many(keys) == [MIB, MIB, 0]
    assert cache.lease_many(["leased/0"]) == [MIB]
    cache.release_many([*keys, "never heard of"])
    let_leases_be_renewed(cache)
    let_leases_end(cache, "leased/1")
    fill_everything(cache)
    assert cache.exists_many(keys) == [True, False, False]
    assert len(cache.get("leased/0")) == MIB
    cache.release_many(["leased/0"])
    let_leases_end(cache, "leased/0")
    fill_everything(cache)
    assert not cache.exists("leased/0")


def test_a_held_lease_keeps_everybody_from_removing_until_it_is_dropped_by_force(cache: Any, rig: Rig) -> None:
    """I8: also the client itself, one of whose threads may be counting on it."""
    cache.put("locked", b"bytes")
    assert cache.lease_many(["locked"]) == [5]
    let_leases_be_renewed(cache)
    with rig.connect() as other:
        for client in (cache, other):
            with pytest.raises(errors.ObjectLeased):
                client.remove("locked")
        assert other.remove("locked", force=True) == 1
    cache.put("locked", b"another")
    until(cache, lambda: "locked" not in core_of(cache).held_leases, "the lease is dropped")
    cache.release_many(["locked"])
    assert cache.remove("locked") == 1


def test_used_objects_are_not_leased_and_are_evicted_after_unused_ones(rig: Rig, cache: Any) -> None:
    """I8. The used ones were put first, so that only their use can keep them. Where a put needs adjacent memory, a
    second more or less of disuse makes little difference (ADR 28): the others are unused for longer than that."""
    cache.remove_all(force=True)
    rig.wait_for_nodes(2)
    used = [f"used/{number}" for number in range(4)]
    unused = [f"unused/{number}" for number in range(12)]  # More than are evicted at once.
    for key in (*used, *unused):
        cache.put(key, os.urandom(2 * MIB))
    until(cache, lambda: cache.stat(unused[-1]).unused_ms >= 3_000, "they are unused for a while")
    began = now_seconds()
    assert cache.use_many([*used, "missing"]) == [True] * 4 + [False]
    stat = cache.stat(used[0])
    assert stat.unused_ms <= 1000 * (now_seconds() - began) + 5, "clocks count whole milliseconds"
    assert stat.lease_left_ms == 0, "to use is not to lease"
    for number in range(200):
        cache.put(f"filler/{number}", os.urandom(2 * MIB))
        if not all(cache.exists_many(unused)):
            break
    assert not all(cache.exists_many(unused)), "something was evicted"
    assert cache.exists_many(used) == [True] * 4, "and none of those that were used"


def test_views_of_many_show_what_is_stored(cache: Any) -> None:
    values = {f"seen/{number}": os.urandom(100_000 + number) for number in range(5)}
    cache.put_many(values)
    with cache.view_many([*values, "missing", "seen/0"]) as views:
        assert [None if view is None else bytes(view) for view in views] == [*values.values(), None, values["seen/0"]]
        enough = now_seconds() + 2 * LEASE_MS / 1000
        until(cache, lambda: all(view.until > enough for view in core_of(cache).views), "their leases are renewed")
        fill_everything(cache)
        assert [bytes(view) for view in views[:5]] == [*values.values()]


@pytest.mark.parametrize("replicas", [1, 2])
def test_reservations_are_filled_by_parts_and_committed_together(cache: Any, replicas: int) -> None:
    cache.put("there", b"already")
    data = [os.urandom(3 * MIB), os.urandom(1_000), os.urandom(70_000)]
    sizes = [(f"reserved/{number}", len(value)) for number, value in enumerate(data)]
    *made, there = cache.reserve_many([*sizes, ("there", 10)], replicas=replicas)
    assert there is None
    made[0].write(MIB, data[0][MIB:])
    made[0].write(0, data[0][:MIB])
    made[1].write(0, data[1])
    for start in range(0, len(data[2]), 10_000):
        made[2].write(start, data[2][start : start + 10_000])
    assert not cache.exists("reserved/0"), "nothing is visible before the commit"
    assert cache.commit_many(made) == [True, True, True]
    assert cache.get_many([key for key, _ in sizes]) == dict(zip([key for key, _ in sizes], data, strict=True))
    if replicas == 2:
        assert len(cache.stat("reserved/0").replicas) == 2


def test_two_threads_fill_one_reservation(rig: Rig) -> None:
    data = os.urandom(8 * MIB)
    for shared_memory in (True, False):
        with rig.connect(shared_memory=shared_memory) as cache:
            reservation = cache.reserve("halves", len(data))
            assert reservation is not None
            half = len(data) // 2
            starts = (half, 0)
            threads = [
                threading.Thread(target=reservation.write, args=(start, data[start : start + half])) for start in starts
            ]
            run_together(threads)
            assert reservation.commit()
            assert cache.get("halves") == data
            cache.remove("halves", force=True)


def test_the_first_commit_of_a_key_wins_and_an_unfilled_one_is_refused(cache: Any, rig: Rig) -> None:
    first = cache.reserve("raced", 4)
    with rig.connect() as other:
        other.put("raced", b"theirs")
    with pytest.raises(errors.BadValue, match="not filled"):
        first.commit()
    first.write(0, b"ours")
    with pytest.raises(errors.BadValue, match="written before"):
        first.write(2, b"!")
    assert first.commit() is False
    assert cache.get("raced") == b"theirs"
    second = cache.reserve("raced", 4, upsert=True)
    second.write(0, b"mine")
    assert second.commit() is True
    assert cache.get("raced") == b"mine"


def granted_bytes(rig: Rig) -> int:
    return rig.status().granted_bytes


def test_memory_of_a_killed_client_comes_back(rig: Rig) -> None:
    """I11: mapped memory when its node sees the writer's end, memory granted over TCP by the grant's timeout."""
    for way in ("mapped", "tcp"):
        with rig.script("hold_reservations", way) as child:
            assert said(child) == "reserved"
            assert granted_bytes(rig) >= 24 * MIB
            child.kill()
            wait_until(lambda: granted_bytes(rig) < 24 * MIB, deadline_s=60, what=f"{way} memory comes back")
            with rig.connect() as cache:
                assert cache.put("large", bytes(24 * MIB), prefer="bench-0")
                cache.remove("large", force=True)


def test_leases_and_reservations_go_on_after_the_primary_was_killed(connect: Connect, rig: Rig) -> None:
    """I1, I8, I11: a new primary is asked as the old one was."""
    caches = [connect(shared_memory=shared) for shared in (True, False)]
    made = []
    for number, cache in enumerate(caches):
        cache.put(f"kept/{number}", os.urandom(MIB))
        assert cache.lease_many([f"kept/{number}"]) == [MIB]
        reservation = cache.reserve(f"late/{number}", 2 * MIB)
        reservation.write(0, bytes([number]) * MIB)
        made.append(reservation)
    name = rig.status().name
    rig.kill(rig.masters[name][0])
    for number, reservation in enumerate(made):
        reservation.write(MIB, bytes([number]) * MIB)
        assert reservation.commit() is True
    for cache in caches:
        let_leases_be_renewed(cache)
    fill_everything(caches[0])
    for number, cache in enumerate(caches):
        assert cache.exists(f"kept/{number}")
        assert len(cache.get(f"kept/{number}")) == MIB
    rig.start_master(name)
    caches[0].remove_all(force=True)


def test_what_lies_on_a_stopped_node_is_a_miss_at_once(rig: Rig, connect: Connect) -> None:
    """I10: whoever finds out waits for it, nobody else does; and it is back soon after the node is."""
    cache = connect(shared_memory=False, timeout=60)
    cache.remove_all(force=True)
    # Both nodes are there and have room again, so that each object lies where it should.
    rig.wait_for_nodes(2)
    until(cache, lambda: cache.status().quarantined_bytes == 0 == cache.status().used_bytes, "nothing is left")
    keys = [f"away/{number}" for number in range(20)]
    for key in keys:
        cache.put(key, b"bytes", prefer="bench-1")
    cache.put("near", b"here", prefer="bench-0")
    assert {replica.node for key in keys for replica in cache.stat(key).replicas} == {"bench-1"}
    for key in keys:
        core_of(cache).leases.drop(key)
    rig.pause(rig.nodes[1])
    try:
        with pytest.raises(errors.NodeLost):
            cache.get(keys[0])
        began = time.monotonic()
        for key in keys:
            with pytest.raises(errors.NodeLost):
                cache.get(key)
            assert not cache.exists(key)
        assert cache.exists_many([*keys, "near"]) == [False] * 20 + [True]
        assert cache.lease_many([*keys, "near"]) == [0] * 20 + [4]
        with cache.view_many(["near", keys[0]]) as views:
            assert bytes(views[0]) == b"here"
            assert isinstance(views[1], errors.NodeLost)
        assert cache.put(keys[0], b"other") is False, "it is stored, though it cannot be read"
        assert time.monotonic() - began < 20, "43 lookups would wait 2 seconds each"
    finally:
        rig.nodes[1].send_signal(signal.SIGCONT)
    until(cache, lambda: all(cache.exists_many(keys)), "the node is asked again")
    assert cache.get(keys[1]) == b"bytes"
    cache.release_many(["near"])
    cache.remove_all(force=True)
