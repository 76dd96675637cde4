"""Batches between callers' buffers and a real cluster: mapped and over TCP, threads and asyncio, under deaths."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import holdfast
from holdfast import errors
from tests.client.faces import AwaitedFace
from tests.client.inside import core_of
from tests.e2e.rig import Rig
from tests.waiting import wait_until

SIZES = (100, 4096, 65_536, 200_001, 3 << 20)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig("96MiB", nodes=2, masters=2, coordination="sqlite") as rig:
        rig.wait_for_nodes(2)
        yield rig


@contextmanager
def client(rig: Rig, shell: str, **options: Any) -> Iterator[Any]:
    if shell == "blocking":
        with rig.connect(**options) as cache:
            yield cache
        return
    loop = asyncio.new_event_loop()

    async def connected() -> holdfast.AsyncCache:
        return await holdfast.connect_async(rig.address, **{"timeout": 60, **options})

    face = AwaitedFace(loop, loop.run_until_complete(connected()))
    try:
        yield face
    finally:
        face.close()
        loop.close()


@pytest.fixture(params=[("blocking", True), ("blocking", False), ("asyncio", True), ("asyncio", False)], ids=str)
def cache(request: pytest.FixtureRequest, rig: Rig) -> Iterator[Any]:
    shell, shared_memory = request.param
    with client(rig, shell, shared_memory=shared_memory) as cache:
        yield cache
        cache.remove_all(force=True)


def values_of(name: str) -> dict[str, bytes]:
    return {f"{name}/{size}": os.urandom(size) for size in SIZES}


def test_a_batch_goes_in_and_comes_out(cache: Any) -> None:
    values = values_of("whole")
    assert cache.put_many(values.items(), outcomes=True) == [True] * len(values)
    keys = [*values, "absent", *values]
    rooms: list[Any] = [np.zeros(size // 4 + 1, np.float32) for size in SIZES]
    rooms += [bytearray(5)] + [bytearray(size) for size in SIZES]
    assert cache.get_many_into(keys, rooms) == [*SIZES, 0, *SIZES]
    for room, value in zip(rooms, [*values.values(), bytes(5), *values.values()], strict=True):
        assert bytes(memoryview(room).cast("B"))[: len(value)] == value
    assert cache.get_many_into(keys, rooms, verify=False) == [*SIZES, 0, *SIZES]


def test_what_is_too_small_costs_its_key(cache: Any) -> None:
    values = values_of("small")
    cache.put_many(values)
    rooms = [bytearray(size - 1 if size == 65_536 else size) for size in SIZES]
    answers = cache.get_many_into(list(values), rooms)
    assert isinstance(answers[2], errors.BufferTooSmall)
    assert [*answers[:2], *answers[3:]] == [*SIZES[:2], *SIZES[3:]]
    assert not any(rooms[2])


def test_gathered_scattered_and_in_parts(cache: Any) -> None:
    data = os.urandom(3 << 20)
    cuts = [0, 1, 70_000, 70_000, 1 << 20, len(data)]
    pieces = [np.frombuffer(data[a:b], np.uint8) for a, b in itertools.pairwise(cuts)]
    assert cache.put_many({"a": pieces, "b": [b"x", b"y"]}, outcomes=True) == [True, True]
    assert cache.put("c", pieces[2:])
    rooms = [bytearray(size) for size in (5, 1_500_000, 2_000_000)]
    ranges = [(len(data) - 7, 7), (0, 100_000), (65_536, 1)]
    parts = [holdfast.Part(start, bytearray(size)) for start, size in ranges]
    whole = memoryview(bytearray(len(data))).cast("B", (3, 1 << 20))
    answers = cache.get_many_into(["a", "a", "a", "b"], [rooms, parts, whole, bytearray(2)])
    assert answers == [len(data), 100_008, len(data), 2]
    assert b"".join(rooms)[: len(data)] == data
    assert bytes(whole) == data
    assert [bytes(part.buffer) for part in parts] == [data[start : start + size] for start, size in ranges]
    assert cache.get("c") == data[70_000:]
    again = bytearray(9)
    assert cache.get_into("a", [holdfast.Part(70_001, again)]) == 9
    assert again == data[70_001:70_010]


def test_memory_by_its_address(cache: Any) -> None:
    source, target = np.arange(100_000, dtype=np.uint32), np.zeros(100_000, np.uint32)
    assert cache.put("by address", holdfast.memory_at(source.ctypes.data, source.nbytes, writable=False))
    assert cache.get_many_into(["by address"], [holdfast.memory_at(target.ctypes.data, target.nbytes)]) == [400_000]
    assert (source == target).all()


def test_tensors(rig: Rig) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install a CPU build of torch")
    with rig.connect() as cache:
        for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float32):
            source = torch.arange(24).reshape(4, 6).to(dtype)
            target = torch.zeros_like(source)
            assert cache.put(str(dtype), source)
            assert cache.get_many_into([str(dtype)], [target]) == [source.nbytes]
            assert torch.equal(source.view(torch.uint8), target.view(torch.uint8))
        with pytest.raises(errors.BadValue, match="contiguous"):
            cache.put("strided", torch.zeros(4, 4).t()[1:])


@pytest.mark.parametrize("shell", ["blocking", "asyncio"])
def test_a_primary_that_dies_in_the_middle_costs_nothing(rig: Rig, shell: str) -> None:
    """Batches are read and put without a pause while the primary is killed with -9; none fails, none is wrong."""
    values = {f"fall {shell}/{number}": os.urandom(50_000) for number in range(40)}
    with client(rig, shell) as cache, rig.connect() as other:
        assert cache.put_many(values) == 40
        killed = threading.Event()
        rounds = 0

        def kill() -> None:
            name = other.status().name
            rig.kill(rig.masters[name][0])
            rig.start_master(name)
            killed.set()

        killer = threading.Thread(target=kill)
        killer.start()
        while not killed.is_set() or rounds < 3:
            rooms = [bytearray(50_000) for _ in values]
            # Without its leases, so that the master is asked.
            core_of(cache).leases.clear()
            assert cache.get_many_into(list(values), rooms) == [50_000] * 40
            assert [*map(bytes, rooms)] == list(values.values())
            new = {f"fall {shell}/{rounds}/{number}": b"x" * 1000 for number in range(10)}
            assert cache.put_many(new, upsert=True, outcomes=True) == [True] * 10
            rounds += 1
        killer.join()
        other.remove_all(force=True)


@pytest.mark.parametrize("shell", ["blocking", "asyncio"])
def test_a_dead_node_costs_its_keys(rig: Rig, shell: str) -> None:
    """Over TCP: what lies on two nodes is read from the other one, what lay on the dead one alone fails."""
    name = f"doomed-{shell}"
    rig.add_node(name)
    doomed = rig.nodes.pop()
    with client(rig, shell, shared_memory=False, timeout=3) as cache, rig.connect() as other:
        wait_until(lambda: len(other.nodes().nodes) >= 3, what="the third node is there")
        alone = {f"{name}/{number}": os.urandom(70_000) for number in range(3)}
        both = {f"both/{number}": os.urandom(70_000) for number in range(3)}
        safe = {f"safe/{number}": os.urandom(70_000) for number in range(3)}
        assert other.put_many(alone, prefer=name, hard_pin=True) == 3
        assert other.put_many(both, prefer=[name], replicas=2) == 3
        assert other.put_many(safe, prefer="bench-0") == 3
        keys = [*alone, *both, *safe]
        values = {**alone, **both, **safe}
        assert cache.get_many_into(keys, [bytearray(70_000) for _ in keys]) == [70_000] * 9
        rig.kill(doomed)
        rooms = [bytearray(70_000) for _ in keys]
        answers = cache.get_many_into(keys, rooms)
        assert answers[3:] == [70_000] * 6
        assert [bytes(room) for room in rooms[3:]] == [values[key] for key in keys[3:]]
        # The master may have forgotten the dead node's objects by now.
        assert all(answer == 0 or isinstance(answer, errors.NodeLost) for answer in answers[:3])
        other.remove_all(force=True)
