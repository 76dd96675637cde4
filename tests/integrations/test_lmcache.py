"""holdfast's three faces to LMCache on a real cluster: what they keep, and what becomes of them when it fails.

LMCache's own classes are replaced by some of their shape; `make ecosystem` runs the faces inside the real one.
"""

from __future__ import annotations

import asyncio
import itertools
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.client.cache import Cache
from holdfast.integrations import lmcache as faces
from holdfast.integrations.lmcache.lookup_holds import LookupHolds
from tests.client.inside import core_of
from tests.failover.cluster import Cluster
from tests.integrations import lmcache_shapes as shapes
from tests.integrations.lmcache_shapes import CHUNK_TOKENS, TOKEN_BYTES, MemoryObject, ObjectKey
from tests.waiting import run_together, wait_until

KIB = 1 << 10
PATIENCE = {"timeout_s": 20, "store_timeout_s": 30}
NODES = 1
pytestmark = pytest.mark.usefixtures("lmcache_by_its_shape")
_numbers = itertools.count(1)


@pytest.fixture
def cluster(lmcache_cluster: Cluster) -> Iterator[Cluster]:
    """Two masters and a node, all well."""
    yield lmcache_cluster
    lmcache_cluster.heal()


@pytest.fixture
def prefix() -> str:
    """Keys of this test's own."""
    return f"test-{next(_numbers)}"


@pytest.fixture
def looker(cluster: Cluster) -> Iterator[Cache]:
    """Another client of the cluster, to see what the faces did."""
    with cluster.connect() as cache:
        yield cache


@pytest.fixture
def adapter(cluster: Cluster, prefix: str) -> Iterator[Any]:
    with l2_adapter(cluster.address, key_prefix=prefix, **PATIENCE) as made:
        yield made


@contextmanager
def l2_adapter(address: str, **options: object) -> Iterator[Any]:
    config = faces.HoldfastL2AdapterConfig.from_dict({"address": address, **options})
    made = faces.HoldfastL2Adapter(config, l1_memory_desc=None)
    try:
        yield made
    finally:
        made.close()


def chunk(number: int, salt: str = "", model: str = "org/model") -> ObjectKey:
    return ObjectKey(number.to_bytes(8, "big"), model, 0x01000100, 0, salt)


def memory(number: int, size: int = 16 * KIB) -> MemoryObject:
    return MemoryObject(size, number.to_bytes(4, "big") * (size // 4))


def signalled(descriptor: int, deadline_s: float = 60.0) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(1000 * deadline_s), "the file descriptor was never signalled"


def store(adapter: Any, keys: list[ObjectKey], objects: list[MemoryObject]) -> Any:
    task = adapter.submit_store_task(keys, objects)
    signalled(adapter.get_store_event_fd())
    return wait_until(lambda: adapter.pop_completed_store_tasks().get(task), 60, "the store is done")


def lookup(adapter: Any, keys: list[ObjectKey]) -> list[bool]:
    task = adapter.submit_lookup_and_lock_task(keys, {})
    return list(wait_until(lambda: adapter.query_lookup_and_lock_result(task), 60, "the lookup is done").bits)


def load(adapter: Any, keys: list[ObjectKey], objects: list[MemoryObject]) -> list[bool]:
    task = adapter.submit_load_task(keys, objects)
    return list(wait_until(lambda: adapter.query_load_result(task), 60, "the load is done").bits)


def told(adapter: Any, what: str) -> set[ObjectKey]:
    return {key for kind, keys in list(adapter.told) if kind == what for key in keys}


class TestL2Adapter:
    def test_what_was_stored_is_found_and_loaded_into_the_engines_memory(self, adapter: Any, looker: Cache) -> None:
        keys = [chunk(i) for i in range(8)]
        result = store(adapter, keys, [memory(i) for i in range(8)])
        assert result.is_successful()
        assert result.bytes_transferred() == 8 * 16 * KIB
        assert lookup(adapter, [*keys, chunk(99)]) == [True] * 8 + [False]
        targets = [memory(99) for _ in keys]
        assert load(adapter, keys, targets) == [True] * 8
        assert [bytes(one) for one in targets] == [bytes(memory(i)) for i in range(8)]
        adapter.submit_unlock(keys)
        assert told(adapter, "stored") == told(adapter, "accessed") == set(keys)
        assert len(list(looker.keys(adapter._pool.namespace.start))) == 8

    def test_results_are_given_once_and_the_descriptors_differ(self, adapter: Any) -> None:
        assert store(adapter, [chunk(1)], [memory(1)]).is_successful()
        task = adapter.submit_lookup_and_lock_task([chunk(1)], {})
        signalled(adapter.get_lookup_and_lock_event_fd())
        assert wait_until(lambda: adapter.query_lookup_and_lock_result(task)).test(0)
        assert adapter.query_lookup_and_lock_result(task) is None
        assert adapter.pop_completed_store_tasks() == {}
        task = adapter.submit_load_task([chunk(1)], [memory(0)])
        signalled(adapter.get_load_event_fd())
        assert wait_until(lambda: adapter.query_load_result(task)).test(0)
        assert adapter.query_load_result(task) is None
        descriptors = {
            adapter.get_store_event_fd(),
            adapter.get_lookup_and_lock_event_fd(),
            adapter.get_load_event_fd(),
        }
        assert len(descriptors) == 3
        adapter.submit_unlock([chunk(1)])

    def test_a_lock_is_a_lease_that_other_clients_respect_until_it_is_unlocked(
        self, adapter: Any, looker: Cache
    ) -> None:
        """Twice locked, it takes two unlocks; and the lease is renewed for longer than it lasts by itself (2 s)."""
        store(adapter, [chunk(1)], [memory(1)])
        [key] = looker.keys(adapter._pool.namespace.start)
        assert lookup(adapter, [chunk(1)]) == lookup(adapter, [chunk(1)]) == [True]

        def left() -> int:
            return looker.stat(key).lease_left_ms

        first = left()
        assert first > 0
        wait_until(lambda: left() > first or left() < first / 2, what="time passes")
        wait_until(lambda: left() >= first / 2, what="the lease is renewed")
        assert looker.remove_many([key]) == [False]
        adapter.submit_unlock([chunk(1)])
        assert looker.remove_many([key]) == [False], "one of two locks is left"
        adapter.submit_unlock([chunk(1)])
        wait_until(lambda: looker.remove_many([key]) == [True], what="nobody holds it")

    def test_a_chunk_of_another_size_is_a_miss(self, adapter: Any) -> None:
        keys = [chunk(i) for i in range(3)]
        store(adapter, keys, [memory(0, 4 * KIB), memory(1, 16 * KIB), memory(2, 8 * KIB)])
        targets = [memory(9, 8 * KIB) for _ in keys]
        assert load(adapter, keys, targets) == [False, False, True]
        assert bytes(targets[2]) == bytes(memory(2, 8 * KIB))

    def test_storing_again_succeeds_and_counts_no_bytes(self, adapter: Any) -> None:
        assert store(adapter, [chunk(1, "alice")], [memory(1)]).bytes_transferred() == 16 * KIB
        again = store(adapter, [chunk(1, "alice"), chunk(2, "bob")], [memory(1), memory(2)])
        assert again.is_successful()
        assert again.bytes_transferred() == 16 * KIB
        assert dict(adapter.get_usage().bytes_by_cache_salt) == {"alice": 16 * KIB, "bob": 16 * KIB}

    def test_a_chunk_without_bytes_fails_its_task_and_no_other_chunk(self, adapter: Any) -> None:
        result = store(adapter, [chunk(1), chunk(2)], [MemoryObject(0), memory(2)])
        assert not result.is_successful()
        assert lookup(adapter, [chunk(1), chunk(2)]) == [False, True]
        adapter.submit_unlock([chunk(2)])

    def test_deleted_chunks_are_gone_and_told_with_their_sizes(self, adapter: Any) -> None:
        keys = [chunk(i, "alice") for i in range(3)]
        store(adapter, keys, [memory(i) for i in range(3)])
        adapter.delete([*keys[:2], chunk(77)])
        assert told(adapter, "deleted") == set(keys[:2])
        assert dict(adapter.get_usage().bytes_by_cache_salt) == {"alice": 16 * KIB}
        assert lookup(adapter, keys) == [False, False, True]
        adapter.submit_unlock(keys[2:])

    def test_a_locked_chunk_is_not_deleted(self, adapter: Any) -> None:
        store(adapter, [chunk(1)], [memory(1)])
        assert lookup(adapter, [chunk(1)]) == [True]
        adapter.delete([chunk(1)])
        target = memory(0)
        assert load(adapter, [chunk(1)], [target]) == [True]
        assert bytes(target) == bytes(memory(1))
        adapter.submit_unlock([chunk(1)])

    def test_what_the_cluster_lost_is_told_as_deleted(self, cluster: Cluster, prefix: str, looker: Cache) -> None:
        with l2_adapter(cluster.address, key_prefix=prefix, sweep_s=0.05, **PATIENCE) as adapter:
            store(adapter, [chunk(i) for i in range(3)], [memory(i) for i in range(3)])
            wait_until(lambda: adapter.get_usage().total_capacity_bytes == 64 << 20, what="the cluster's size is known")
            [key] = [key for key in looker.keys(f"{prefix}/") if key.endswith(f"@{1:016x}")]
            assert looker.remove_many([key], force=True) == [True]
            wait_until(lambda: told(adapter, "deleted") == {chunk(1)}, what="the sweep tells")
            assert adapter.report_status()["figures"]["evicted"] == 1

    def test_a_lookup_tells_what_is_gone(self, adapter: Any, looker: Cache) -> None:
        store(adapter, [chunk(1), chunk(2)], [memory(1), memory(2)])
        looker.remove_many(list(looker.keys(adapter._pool.namespace.start)), force=True)
        assert lookup(adapter, [chunk(1)]) == [False]
        assert told(adapter, "deleted") == {chunk(1)}

    def test_the_oldest_leave_a_full_ledger(self, cluster: Cluster, prefix: str) -> None:
        with l2_adapter(cluster.address, key_prefix=prefix, tracked_keys=2, **PATIENCE) as adapter:
            for i in range(4):
                store(adapter, [chunk(i, "alice")], [memory(i)])
            assert told(adapter, "deleted") == {chunk(0, "alice"), chunk(1, "alice")}
            assert dict(adapter.get_usage().bytes_by_cache_salt) == {"alice": 2 * 16 * KIB}

    def test_keys_are_listed_in_pages_by_model(self, adapter: Any) -> None:
        wanted = [chunk(i, "alice") for i in range(7)]
        store(adapter, [*wanted, chunk(1, "", "org/other")], [memory(i) for i in range(8)])
        found: list[Any] = []
        token: str | None = None
        while True:
            page = adapter.list_l2_keys("org/model", page_size=3, cursor=token)
            assert len(page.entries) <= 3
            found += page.entries
            token = page.next_page_token
            if token is None:
                break
        assert sorted(one.key.chunk_hash_hex for one in found) == [one.chunk_hash.hex() for one in wanted]
        assert {(one.key.kv_rank, one.key.cache_salt, one.size_bytes) for one in found} == {
            (0x01000100, "alice", 16 * KIB)
        }
        everything = adapter.list_l2_keys()
        assert len(everything.entries) == 8
        for wrong in ({"page_size": 0}, {"cursor": "x"}):
            with pytest.raises(ValueError):
                adapter.list_l2_keys(**wrong)

    def test_it_says_that_it_is_shared_and_how_it_fares(self, adapter: Any) -> None:
        adapter.set_backend_identity("plugin", shared=False)
        assert adapter.identity == ("plugin", True)
        store(adapter, [chunk(1)], [memory(1)])
        status = adapter.report_status()
        assert status["is_healthy"]
        assert status["figures"]["stored_bytes"] == 16 * KIB
        assert status["tasks_in_flight"] == 0

    def test_two_adapters_share_what_either_stored(self, adapter: Any, cluster: Cluster, prefix: str) -> None:
        store(adapter, [chunk(1)], [memory(1)])
        with l2_adapter(cluster.address, key_prefix=prefix, shared_memory=False, **PATIENCE) as other:
            assert lookup(other, [chunk(1)]) == [True]
            target = memory(0)
            assert load(other, [chunk(1)], [target]) == [True]
            assert bytes(target) == bytes(memory(1))

    def test_threads_may_submit_at_once(self, adapter: Any) -> None:
        def work(first: int) -> None:
            keys = [chunk(first + i) for i in range(20)]
            task = adapter.submit_store_task(keys, [memory(first + i, 4 * KIB) for i in range(20)])
            mine[first] = task

        mine: dict[int, int] = {}
        threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(6)]
        run_together(threads)
        done: dict[int, Any] = {}
        wait_until(lambda: done.update(adapter.pop_completed_store_tasks()) or len(done) == 6, 60, "all are stored")
        assert sorted(done) == sorted(mine.values())
        assert all(result.is_successful() for result in done.values())
        keys = [chunk(first + i) for first in mine for i in range(20)]
        assert all(lookup(adapter, keys))
        adapter.submit_unlock(keys)

    def test_after_its_end_it_answers_misses(self, cluster: Cluster, prefix: str) -> None:
        with l2_adapter(cluster.address, key_prefix=prefix, **PATIENCE) as adapter:
            store(adapter, [chunk(1)], [memory(1)])
        assert lookup(adapter, [chunk(1)]) == [False]
        assert load(adapter, [chunk(1)], [memory(0)]) == [False]
        adapter.submit_unlock([chunk(1)])
        adapter.close()


class TestNativeConnector:
    @pytest.fixture
    def connector(self, cluster: Cluster, prefix: str) -> Iterator[Any]:
        made = faces.HoldfastNativeConnector(address=cluster.address, key_prefix=prefix, **PATIENCE)
        try:
            yield made
        finally:
            made.close()

    @staticmethod
    def completed(connector: Any, number: int) -> tuple[bool, str, list[bool] | None]:
        signalled(connector.event_fd())
        [(found, *answer)] = wait_until(connector.drain_completions)
        assert found == number
        return tuple(answer)  # type: ignore[return-value]

    def test_its_six_methods(self, connector: Any) -> None:
        names = [f"model@01000100@0@{i:08x}" for i in range(4)]
        values = [memory(i) for i in range(4)]
        number = connector.submit_batch_set(names, [one.byte_array for one in values])
        assert self.completed(connector, number) == (True, "", [True] * 4)
        number = connector.submit_batch_exists([*names, "none"])
        assert self.completed(connector, number) == (True, "", [True] * 4 + [False])
        targets = [memory(9), memory(9), memory(9, 4 * KIB)]
        number = connector.submit_batch_get(names[:3], [one.byte_array for one in targets])
        assert self.completed(connector, number) == (False, "", [True, True, False])
        assert [bytes(one) for one in targets[:2]] == [bytes(one) for one in values[:2]]
        number = connector.submit_batch_delete([*names[:2], "none"])
        assert self.completed(connector, number) == (True, "", [True, True, False])
        assert connector.drain_completions() == []

    def test_what_a_lookup_found_is_kept_until_it_is_loaded(self, connector: Any, cluster: Cluster) -> None:
        """LMCache has locked it, for however long, and says nothing when the lock ends."""
        names = [f"model@01000100@0@{i:08x}" for i in range(3)]
        values = [memory(i) for i in range(3)]
        self.completed(connector, connector.submit_batch_set(names, [one.byte_array for one in values]))
        held = core_of(connector._pool._link._cache).held_leases
        assert not held
        for _ in range(2):
            self.completed(connector, connector.submit_batch_exists([*names, "none"]))
        assert len(held) == 3
        targets = [memory(9) for _ in range(3)]
        for left in (3, 0):
            self.completed(connector, connector.submit_batch_get(names, [one.byte_array for one in targets]))
            assert len(held) == left, "a load ends the hold of one lookup"
        self.completed(connector, connector.submit_batch_exists(names))
        number = connector.submit_batch_delete(names[:1])
        assert self.completed(connector, number) == (True, "", [True]), "what LMCache deletes it has not locked"
        assert len(held) == 2

    def test_a_lookup_that_no_load_follows_is_let_go_of(self, cluster: Cluster, prefix: str) -> None:
        connector = faces.HoldfastNativeConnector(
            address=cluster.address, key_prefix=prefix, **PATIENCE, lookup_hold_s=0.05, sweep_s=0.05
        )
        try:
            self.completed(connector, connector.submit_batch_set(["a"], [memory(1).byte_array]))
            assert self.completed(connector, connector.submit_batch_exists(["a"])) == (True, "", [True])
            wait_until(lambda: not core_of(connector._pool._link._cache).held_leases, what="its lease is given up")
        finally:
            connector.close()

    def test_holds_are_counted_and_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.integrations.lmcache.lookup_holds.MOST_NAMES", 3)
        holds = LookupHolds(10.0)
        assert holds.found(["a", "b", "a"], 0.0) == []
        assert holds.found(["b", "c"], 5.0) == []
        assert holds.found(["d"], 6.0) == ["a", "a"], "the oldest make way"
        assert holds.loaded(["b", "a"], 6.0) == ["b"]
        assert holds.over(15.0) == ["b", "c"]
        assert holds.removed(["d", "x"]) == ["d"]

    def test_it_shares_chunks_with_the_plugin(self, connector: Any, adapter: Any) -> None:
        store(adapter, [chunk(1, "alice")], [memory(1)])
        name = f"org/model@01000100@0@{1:016x}@alice"
        target = memory(0)
        assert self.completed(connector, connector.submit_batch_get([name], [target.byte_array]))[0]
        assert bytes(target) == bytes(memory(1))

    def test_an_empty_value_fails_its_batch_with_a_reason(self, connector: Any) -> None:
        number = connector.submit_batch_set(["a", "b"], [memoryview(b""), memory(1).byte_array])
        ok, why, each = self.completed(connector, number)
        assert not ok
        assert "no bytes" in why
        assert each == [False, True]


def in_process(cluster: Cluster, prefix: str, with_metadata: bool = True, **more: object) -> Any:
    start = "remote_storage_plugin.holdfast"
    extra = {
        "save_chunk_meta": with_metadata,
        f"{start}.module_path": "holdfast.integrations.lmcache",
        f"{start}.class_name": "HoldfastConnectorAdapter",
        f"{start}.key_prefix": prefix,
        **{f"{start}.{name}": value for name, value in {**PATIENCE, **more}.items()},
    }
    context = shapes.ConnectorContext(
        f"holdfast://{cluster.address}", shapes.LocalMemory(), SimpleNamespace(extra_config=extra)
    )
    adapter = faces.HoldfastConnectorAdapter()
    assert adapter.can_parse(context.url)
    return adapter.create_connector(context)


def part_of_a_chunk(number: int, tokens: int = CHUNK_TOKENS) -> MemoryObject:
    size = tokens * TOKEN_BYTES
    return MemoryObject(size, number.to_bytes(4, "big") * (size // 4), tokens)


KEYS = [shapes.CacheEngineKey(i) for i in range(6)]


@pytest.mark.parametrize("with_metadata", [True, False])
class TestRemoteConnector:
    def test_chunks_come_back_with_their_bytes_and_shapes(
        self, cluster: Cluster, prefix: str, with_metadata: bool
    ) -> None:
        chunks = [part_of_a_chunk(i, tokens) for i, tokens in enumerate([CHUNK_TOKENS, CHUNK_TOKENS, 5])]

        async def story() -> None:
            connector = in_process(cluster, prefix, with_metadata)
            await connector.batched_put(KEYS[:3], chunks)
            assert [one.references for one in chunks] == [1, 1, 1]
            assert await connector.exists(KEYS[0])
            assert connector.exists_sync(KEYS[1])
            assert not connector.exists_sync(KEYS[5])
            assert connector.batched_contains(KEYS[:4]) == 3
            assert await connector.batched_async_contains("lookup", KEYS[1:6]) == 2
            found = await connector.batched_get([*KEYS[:3], KEYS[5]])
            assert [one and bytes(one) for one in found] == [*map(bytes, chunks), None]
            assert [one.tokens for one in found[:3]] == [CHUNK_TOKENS, CHUNK_TOKENS, 5]
            assert connector._memory.in_use == 3
            assert bytes(await connector.get(KEYS[2])) == bytes(chunks[2])
            assert await connector.get(KEYS[5]) is None
            hits = await connector.batched_get_non_blocking("lookup", [KEYS[0], KEYS[5], KEYS[1]])
            assert [bytes(one) for one in hits] == [bytes(chunks[0])]
            assert connector._memory.in_use == 5, "what comes after the first miss was given back"
            assert sorted(await connector.list()) == [key.to_string() for key in KEYS[:3]]
            with cluster.connect() as reader:
                [key] = [key for key in reader.keys(f"{prefix}/") if key.endswith(KEYS[0].to_string())]
                assert reader.get(key)
                assert connector.remove_sync(KEYS[0]), "also what others read"
            assert not connector.remove_sync(KEYS[0])
            await connector.close()
            assert await connector.get(KEYS[1]) is None, "after its end it answers misses"
            await connector.put(KEYS[4], chunks[0])
            assert chunks[0].references == 1

        asyncio.run(story())

    def test_chunks_with_and_without_metadata_are_never_taken_for_each_other(
        self, cluster: Cluster, prefix: str, with_metadata: bool
    ) -> None:
        async def story() -> None:
            one = in_process(cluster, prefix, with_metadata)
            other = in_process(cluster, prefix, not with_metadata)
            await one.put(KEYS[0], part_of_a_chunk(1))
            assert not await other.exists(KEYS[0])
            assert await other.get(KEYS[0]) is None
            await one.close()
            await other.close()

        asyncio.run(story())

    def test_without_memory_it_is_a_miss_and_nothing_leaks(
        self, cluster: Cluster, prefix: str, with_metadata: bool
    ) -> None:
        async def story() -> None:
            connector = in_process(cluster, prefix, with_metadata)
            await connector.batched_put(KEYS[:3], [part_of_a_chunk(i) for i in range(3)])
            connector._memory.most = 2
            found = await connector.batched_get(KEYS[:3])
            assert [one is not None for one in found] == [True, True, False]
            for one in found[:2]:
                one.ref_count_down()
            assert connector._memory.in_use == 0
            await connector.close()

        asyncio.run(story())

    def test_a_get_that_nobody_waits_for_gives_its_memory_back(
        self, cluster: Cluster, prefix: str, with_metadata: bool
    ) -> None:
        async def story() -> None:
            connector = in_process(cluster, prefix, with_metadata, workers=1)
            await connector.batched_put(KEYS[:3], [part_of_a_chunk(i) for i in range(3)])
            began, go_on = threading.Event(), threading.Event()
            allocate = connector._memory.allocate

            def slow(*given: Any, **more: Any) -> Any:
                began.set()
                assert go_on.wait(20)
                return allocate(*given, **more)

            connector._memory.allocate = slow
            asked = asyncio.ensure_future(connector.batched_get(KEYS[:3]))
            await asyncio.to_thread(began.wait, 20)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            go_on.set()
            await connector.close()
            assert len(connector._memory.given) == 3
            assert connector._memory.in_use == 0

        asyncio.run(story())
