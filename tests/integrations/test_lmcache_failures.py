"""holdfast's faces to LMCache while the cluster fails: misses, within the timeout, and never wrong bytes.

One cluster for all stories, healed between them.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast import errors
from holdfast.integrations import lmcache as faces
from tests.failover.cluster import Cluster
from tests.integrations import lmcache_shapes as shapes
from tests.integrations.lmcache_shapes import MemoryObject, ObjectKey
from tests.ports import free_ports
from tests.waiting import wait_until

KIB = 1 << 10
SIZE = 16 * KIB
TIMEOUT_S = 2.0
SLACK_S = 20.0
"""A busy machine may add this much to any call; the timeouts of other layers are far longer."""
NODES = 2
pytestmark = pytest.mark.usefixtures("lmcache_by_its_shape")
_numbers = itertools.count(1)


@pytest.fixture
def cluster(lmcache_cluster: Cluster) -> Iterator[Cluster]:
    yield lmcache_cluster
    lmcache_cluster.heal()


@contextmanager
def l2_adapter(cluster: Cluster | str, **options: object) -> Iterator[Any]:
    address = cluster if isinstance(cluster, str) else cluster.address
    given = {
        "address": address,
        "key_prefix": f"failures-{next(_numbers)}",
        "timeout_s": TIMEOUT_S,
        "store_timeout_s": TIMEOUT_S,
        "retry_s": 0.05,
        **options,
    }
    made = faces.HoldfastL2Adapter(faces.HoldfastL2AdapterConfig.from_dict(given), l1_memory_desc=None)
    try:
        yield made
    finally:
        made.close()


def chunk(number: int) -> ObjectKey:
    return ObjectKey(number.to_bytes(8, "big"), "org/model", 0x01000100)


def content(number: int) -> bytes:
    return number.to_bytes(4, "big") * (SIZE // 4)


def store(adapter: Any, numbers: range) -> bool:
    task = adapter.submit_store_task([chunk(i) for i in numbers], [MemoryObject(SIZE, content(i)) for i in numbers])
    done: dict[int, Any] = {}
    wait_until(lambda: done.update(adapter.pop_completed_store_tasks()) or task in done, 60, "the store is done")
    return bool(done[task].is_successful())


def lookup(adapter: Any, numbers: range) -> list[bool]:
    task = adapter.submit_lookup_and_lock_task([chunk(i) for i in numbers], {})
    return list(wait_until(lambda: adapter.query_lookup_and_lock_result(task), 60, "the lookup is done").bits)


def load(adapter: Any, numbers: range) -> list[bool]:
    """Which were loaded. Each of these must have the bytes that were stored."""
    targets = [MemoryObject(SIZE, b"\xee" * SIZE) for _ in numbers]
    task = adapter.submit_load_task([chunk(i) for i in numbers], targets)
    loaded = list(wait_until(lambda: adapter.query_load_result(task), 60, "the load is done").bits)
    for number, target, good in zip(numbers, targets, loaded, strict=True):
        assert not good or bytes(target) == content(number), f"wrong bytes in chunk {number}"
    return loaded


def read(adapter: Any, numbers: range) -> int:
    """As a prefetch does: look up, load what is there, unlock. How many chunks came."""
    found = [i for i, there in zip(numbers, lookup(adapter, numbers), strict=True) if there]
    came = (
        sum(sum(load(adapter, range(i, i + 1))) for i in found)
        if len(found) < len(numbers)
        else sum(load(adapter, numbers))
    )
    adapter.submit_unlock([chunk(i) for i in found])
    return came


def check_a_miss_within_the_timeout(adapter: Any) -> None:
    began = time.monotonic()
    assert not any(lookup(adapter, range(100, 108)))
    assert time.monotonic() - began < TIMEOUT_S + SLACK_S


def test_everything_is_there_after_the_primary_was_killed(cluster: Cluster) -> None:
    numbers = range(32)
    with l2_adapter(cluster, timeout_s=20, store_timeout_s=20) as adapter:
        assert store(adapter, numbers)
        cluster.primary().kill()
        wait_until(lambda: read(adapter, numbers) == 32, 60, "the next primary serves")
        assert store(adapter, range(100, 108))
        assert read(adapter, range(100, 108)) == 8


def test_what_is_locked_is_loaded_though_no_master_is_left(cluster: Cluster) -> None:
    numbers = range(8)
    with l2_adapter(cluster) as adapter:
        assert store(adapter, numbers)
        assert all(lookup(adapter, numbers))
        for master in cluster.masters:
            master.kill()
        assert all(load(adapter, numbers))


def test_without_a_master_calls_are_misses_and_only_the_first_waits(cluster: Cluster) -> None:
    numbers = range(8)
    with l2_adapter(cluster) as adapter:
        assert store(adapter, numbers)
        for master in cluster.masters:
            master.kill()
        check_a_miss_within_the_timeout(adapter)
        assert not store(adapter, range(200, 208))
        status = adapter.report_status()
        assert not status["is_healthy"]
        assert status["why_not"]
        # A hundred lookups that each waited would take minutes.
        began = time.monotonic()
        assert not any(any(lookup(adapter, numbers)) for _ in range(100))
        assert time.monotonic() - began < 100 * TIMEOUT_S / 4
        assert not any(kind == "deleted" for kind, _ in adapter.told), "nobody said that they are gone"
        cluster.revive()
        wait_until(lambda: adapter.report_status()["is_healthy"], 60, "the link is mended by itself")
        wait_until(lambda: read(adapter, numbers) == 8, 60, "and nothing was lost")


def test_stopped_masters_are_misses_and_it_goes_on_when_they_do(cluster: Cluster) -> None:
    numbers = range(8)
    with l2_adapter(cluster) as adapter:
        assert store(adapter, numbers)
        for master in cluster.masters:
            master.pause()
        check_a_miss_within_the_timeout(adapter)
        for master in cluster.masters:
            master.resume()
        wait_until(lambda: read(adapter, numbers) == 8, 60, "they answer again")


def test_a_killed_nodes_chunks_are_misses_and_new_ones_go_elsewhere(cluster: Cluster) -> None:
    numbers = range(16)
    with l2_adapter(cluster, shared_memory=False, prefer="node-1", sweep_s=0.1) as adapter:
        assert store(adapter, numbers)
        assert all(lookup(adapter, numbers))
        cluster.nodes[0].kill()
        assert not any(load(adapter, numbers)), "the memory is gone with its process"
        began = time.monotonic()
        assert not any(any(lookup(adapter, numbers)) for _ in range(50)), "a dead node is no hit"
        assert time.monotonic() - began < 50 * TIMEOUT_S / 4, "and is paid for once"
        wait_until(lambda: store(adapter, range(200, 216)), 60, "the other node takes what comes")
        assert read(adapter, range(200, 216)) == 16
        assert not adapter.report_status()["failures"].get("object_not_found")


def test_a_stopped_node_costs_its_chunks_and_no_more_than_the_timeout(cluster: Cluster) -> None:
    numbers = range(32)
    with l2_adapter(cluster, shared_memory=False) as adapter:
        assert store(adapter, numbers)
        cluster.nodes[0].pause()
        began = time.monotonic()
        loaded = load(adapter, numbers)
        assert time.monotonic() - began < TIMEOUT_S + SLACK_S
        cluster.nodes[0].resume()
        wait_until(lambda: read(adapter, numbers) == 32, 60, "all are there when it goes on")
        assert len(loaded) == 32


def test_traffic_through_the_death_of_primaries_never_has_wrong_bytes(cluster: Cluster) -> None:
    """Stores, lookups and loads by several threads while the primary is killed, twice."""
    stop = threading.Event()
    problems: list[BaseException] = []
    came = [0, 0, 0]

    def traffic(adapter: Any, lane: int) -> None:
        try:
            for round_ in itertools.count():
                first = 10_000 * lane + 16 * (round_ % 50)
                store(adapter, range(first, first + 16))
                came[lane] += read(adapter, range(first, first + 16))
                if stop.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - It is raised by the test.
            problems.append(error)

    # Each thread has an adapter: a controller takes every result of its adapter.
    adapters = [l2_adapter(cluster, timeout_s=10, store_timeout_s=10) for _ in came]
    entered = [one.__enter__() for one in adapters]
    threads = [threading.Thread(target=traffic, args=(one, lane)) for lane, one in enumerate(entered)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(2):
            before = list(came)
            dead = cluster.primary()
            dead.kill()
            cluster.primary(but=dead)
            wait_until(lambda then=before: all(map(int.__gt__, came, then)) or problems, 60, "chunks come again")
            dead.start()
            dead.wait_until_ready()
            cluster.standby()
    finally:
        stop.set()
        for thread in threads:
            thread.join(90)
        for one in adapters:
            one.__exit__(None, None, None)
    assert not problems, problems[0]


def test_an_engine_starts_before_its_cluster(cluster: Cluster) -> None:
    """Every call is a miss until a master answers."""
    [port] = free_ports(1)
    with l2_adapter(f"127.0.0.1:{port}", timeout_s=0.5) as adapter:
        assert not adapter.report_status()["is_healthy"]
        assert not any(lookup(adapter, range(4)))
        assert not store(adapter, range(4))
        master = cluster.new_process("master", f"late-{port}", "--coordination", "memory://")
        master.address = f"127.0.0.1:{port}"
        master.start()
        try:
            wait_until(lambda: adapter.report_status()["is_healthy"], 60, "it has found its master")
            assert not any(lookup(adapter, range(4)))
        finally:
            master.kill()


def test_a_wrong_token_is_an_error_at_once_and_not_a_miss_for_ever(cluster: Cluster) -> None:
    master = cluster.new_process("master", "secretive", "--coordination", "memory://", "--token", "right")
    master.start()
    try:
        master.wait_until_ready()
        with pytest.raises(errors.NotAuthorized), l2_adapter(master.address, token="wrong"):
            pass
    finally:
        master.kill()


def test_the_native_connector_tells_what_failed(cluster: Cluster) -> None:
    connector = faces.HoldfastNativeConnector(
        address=cluster.address, key_prefix="native-failures", timeout_s=TIMEOUT_S, store_timeout_s=TIMEOUT_S
    )
    try:
        for master in cluster.masters:
            master.kill()
        numbers = [
            connector.submit_batch_exists(["a", "b"]),
            connector.submit_batch_set(["a"], [memoryview(b"v")]),
            connector.submit_batch_delete(["a"]),
        ]
        done: dict[int, tuple[Any, ...]] = {}

        def drained() -> bool:
            done.update((number, tuple(rest)) for number, *rest in connector.drain_completions())
            return len(done) == 3

        wait_until(drained, 60, "all three are answered")
        assert done[numbers[0]] == (True, "", [False, False])
        assert done[numbers[1]][0] is False
        assert done[numbers[1]][1]
        assert done[numbers[2]] == (True, "", [False])
    finally:
        connector.close()


def test_the_in_process_connector_raises_nothing_while_nobody_answers(cluster: Cluster) -> None:
    from types import SimpleNamespace

    from tests.integrations.lmcache_shapes import CHUNK_TOKENS, TOKEN_BYTES, CacheEngineKey, ConnectorContext

    start = "remote_storage_plugin.holdfast"
    extra = {f"{start}.{key}": value for key, value in {"timeout_s": TIMEOUT_S, "store_timeout_s": TIMEOUT_S}.items()}
    keys = [CacheEngineKey(i) for i in range(4)]
    size = CHUNK_TOKENS * TOKEN_BYTES

    async def story() -> None:
        context = ConnectorContext(
            f"holdfast://{cluster.address}", shapes.LocalMemory(), SimpleNamespace(extra_config=extra)
        )
        connector = faces.HoldfastConnectorAdapter().create_connector(context)
        chunks = [MemoryObject(size, bytes([i]) * size, CHUNK_TOKENS) for i in range(4)]
        await connector.batched_put(keys, chunks)
        for master in cluster.masters:
            master.kill()
        assert await connector.batched_get(keys) in ([None] * 4, chunks)
        assert connector.batched_contains([CacheEngineKey(9)]) == 0
        assert not connector.exists_sync(CacheEngineKey(9))
        assert not connector.remove_sync(keys[0])
        assert await connector.list() == []
        await connector.put(CacheEngineKey(9), chunks[0])
        assert [one.references for one in chunks] == [1] * 4
        assert await connector.ping() == 1
        await asyncio.to_thread(cluster.revive)
        for _ in range(600):
            found = await connector.batched_get(keys)
            if all(found):
                break
            await asyncio.sleep(0.1)
        assert [bytes(one) for one in found] == [bytes(one) for one in chunks]
        await connector.close()

    asyncio.run(story())
