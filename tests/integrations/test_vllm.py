"""vLLM's secondary tier on a real cluster: engines share chunks, lookups never wait, failures are misses."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from holdfast.errors import BadValue, Unreachable
from holdfast.instant import now_seconds
from holdfast.integrations.vllm.chunk_names import name_of
from tests.client.inside import core_of
from tests.failover.cluster import Cluster
from tests.integrations.vllm_shapes import (
    CHUNK_BYTES,
    HostMemory,
    JobResult,
    LookupResult,
    ReqContext,
    TransferJob,
    spec,
)
from tests.waiting import wait_until

Start = Callable[..., "Engine"]
REQUEST = ReqContext("request-1")
TIMEOUT_S = 5.0
_jobs = itertools.count(1)


def key(number: int, group: int = 0) -> bytes:
    return number.to_bytes(32, "big") + group.to_bytes(4, "big")


class Engine:
    """Calls a tier as vLLM's TieringOffloadingManager does."""

    def __init__(self, tier: Any, memory: HostMemory) -> None:
        self.tier = tier
        self.memory = memory

    def lookup(self, number: int, request: ReqContext = REQUEST) -> LookupResult:
        """Steps of the scheduler, until the answer is not to retry."""

        def answered() -> LookupResult | None:
            found: LookupResult = self.tier.lookup(key(number), request)
            self.tier.on_schedule_end(None)
            return None if found is LookupResult.RETRY else found

        found = wait_until(answered, 40, "the lookup is answered")
        assert found is not None
        return found

    def store(self, numbers: list[int], rows: list[int]) -> JobResult:
        job = TransferJob(next(_jobs), [key(number) for number in numbers], rows, False, REQUEST)
        self.tier.submit_store(job)
        return self.result(job)

    def load(self, numbers: list[int], rows: list[int], request: ReqContext = REQUEST) -> JobResult:
        job = TransferJob(next(_jobs), [key(number) for number in numbers], rows, True, request)
        self.tier.submit_load(job)
        return self.result(job)

    def result(self, job: TransferJob) -> JobResult:
        found = wait_until(lambda: list(self.tier.get_finished_jobs()), 40, "the job is finished")
        assert [result.job_id for result in found] == [job.job_id]
        result: JobResult = found[0]
        return result


@pytest.fixture
def start(cluster: Cluster, closed_at_the_end: list[Callable[[], object]]) -> Start:
    from holdfast.integrations.vllm import HoldfastTier

    def make(offloading_spec: Any = None, seed: int = 0, **options: Any) -> Engine:
        memory = HostMemory(seed=seed)
        chosen = {"address": cluster.address, "timeout": TIMEOUT_S, **options}
        tier = HoldfastTier(offloading_spec or spec(), memory.view, "HoldfastTier", **chosen)
        closed_at_the_end.append(tier.shutdown)
        return Engine(tier, memory)

    return make


def test_what_one_engine_stores_another_loads(start: Start) -> None:
    first, second = start(seed=1), start(seed=2)
    stored = first.store([1, 2, 3], [5, 0, 9])
    assert (stored.success, stored.transfer_bytes) == (True, 3 * CHUNK_BYTES)
    assert [second.lookup(number) for number in (1, 2, 3, 4)] == [LookupResult.HIT] * 3 + [LookupResult.MISS]
    assert second.load([3, 1], [0, 1]).success
    assert [second.memory.chunk(row) for row in (0, 1)] == [first.memory.chunk(row) for row in (9, 5)]


def test_lookups_on_the_primarys_machine_are_answered_at_once(start: Start) -> None:
    engine = start()
    engine.store([1], [0])

    def at_once() -> bool:
        found = [engine.tier.lookup(key(number), REQUEST) for number in (1, 2)]
        return found == [LookupResult.HIT, LookupResult.MISS]

    wait_until(at_once, what="the key index answers both in the same step")


def test_while_a_node_does_not_answer_a_master_is_asked(start: Start) -> None:
    """ADR 41: the key index knows the key, and not that nobody can read it."""
    engine = start()
    engine.store([1], [0])
    name, tier_cache = name_of(engine.tier._prefix, key(1)), engine.tier._cache
    wait_until(lambda: tier_cache.present_at_once(name), what="the key index knows it")
    core = core_of(tier_cache._link._cache)
    elsewhere = structs.replace(next(iter(core.segments.places.values())), data_address="127.0.0.1:9")
    core.bytes.failing.failed(elsewhere, now_seconds())
    assert tier_cache.present_at_once(name) is None
    core.bytes.failing.answered(elsewhere.data_address)
    wait_until(lambda: tier_cache.present_at_once(name), what="the key index is believed again")


def test_lookups_that_need_a_master_are_asked_in_one_batch(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = start()
    engine.store([1, 3], [0, 1])
    monkeypatch.setattr(engine.tier._lookups, "_at_once", lambda name: None)
    asked: list[list[str]] = []
    present = engine.tier._lookups._present
    monkeypatch.setattr(engine.tier._lookups, "_present", lambda names: asked.append(names) or present(names))
    wanted = [1, 2, 3]
    assert [engine.tier.lookup(key(number), REQUEST) for number in wanted] == [LookupResult.RETRY] * 3
    assert not asked, "the scheduler's step goes first"
    engine.tier.on_schedule_end(None)
    assert [engine.lookup(number) for number in wanted] == [LookupResult.HIT, LookupResult.MISS, LookupResult.HIT]
    assert [len(names) for names in asked] == [3]
    engine.tier.on_request_finished(REQUEST)
    assert engine.tier.lookup(key(2), REQUEST) is LookupResult.RETRY, "forgotten with its request"
    engine.tier.on_request_finished(REQUEST)


def test_a_chunk_that_cannot_be_loaded_is_missing_for_its_request(start: Start, cluster: Cluster) -> None:
    """Told HIT again, the scheduler would load it for ever."""
    engine = start()
    engine.store([1, 2], [0, 1])
    assert [engine.lookup(1), engine.lookup(2)] == [LookupResult.HIT, LookupResult.HIT]
    with cluster.connect() as cache:
        (gone,) = [name for name in cache.keys("vllm/") if name.endswith(key(1).hex())]
        cache.remove(gone, force=True)
    loaded = engine.load([1, 2], [4, 5])
    assert not loaded.success
    assert loaded.successful_keys == (key(2),)
    assert engine.memory.chunk(5) == engine.memory.chunk(1)
    engine.store([1], [0])
    assert engine.lookup(1) is LookupResult.MISS
    engine.tier.on_request_finished(REQUEST)
    wait_until(lambda: engine.lookup(1, ReqContext("request-2")) is LookupResult.HIT, what="others see it again")


@pytest.mark.parametrize(
    "other",
    [{"offloading_spec": spec(model="tiny-model")}, {"offloading_spec": spec(tp_size=2)}, {"namespace": "blue"}],
)
def test_other_models_ranks_and_namespaces_do_not_share(start: Start, other: dict[str, Any]) -> None:
    first, second = start(), start(**other)
    first.store([1], [0])
    assert second.lookup(1) is LookupResult.MISS


def test_chunks_that_do_not_depend_on_ranks_are_shared_by_all_of_them(start: Start) -> None:
    first, second = start(spec(agnostic=True)), start(spec(tp_size=2, agnostic=True))
    first.store([1], [0])
    assert second.lookup(1) is LookupResult.HIT


def test_touched_chunks_are_marked_as_used(start: Start, cluster: Cluster) -> None:
    engine = start()
    engine.store([1], [0])
    with cluster.connect() as cache:
        (name,) = cache.keys()
        idle = wait_until(lambda: cache.stat(name).unused_ms > 300 and cache.stat(name).unused_ms, what="it lies idle")
        engine.tier.touch([key(1), key(2)], REQUEST)
        engine.tier.on_schedule_end(None)
        wait_until(lambda: cache.stat(name).unused_ms < idle, what="its use is known")


def test_events_tell_what_was_stored(start: Start) -> None:
    engine = start(spec(events=True), enable_kv_events=True, locality="REMOTE")
    engine.store([1, 2], [0, 1])
    (event,) = engine.tier.take_events()
    assert (event.keys, event.removed, event.locality.value) == ([key(1), key(2)], False, "REMOTE")
    assert list(engine.tier.take_events()) == []
    assert list(start().tier.take_events()) == []


def test_drain_waits_for_all_jobs_and_shutdown_ends_them(start: Start) -> None:
    engine = start()
    jobs = [TransferJob(next(_jobs), [key(number)], [number], False, REQUEST) for number in range(8)]
    for job in jobs:
        engine.tier.submit_store(job)
    engine.tier.drain_jobs()
    assert {result.job_id for result in engine.tier.get_finished_jobs()} == {job.job_id for job in jobs}
    engine.tier.shutdown()
    engine.tier.submit_load(jobs[0])
    (late,) = engine.tier.get_finished_jobs()
    assert not late.success


def test_device_memory_and_wrong_options_are_refused(start: Start, cluster: Cluster) -> None:
    from holdfast.integrations.vllm.tier import _host_bytes

    class OfDevice:
        class device:  # noqa: N801 - as tensors have it.
            type = "cuda"

    with pytest.raises(BadValue, match="memory of the device 'cuda'; this tier moves host memory only"):
        _host_bytes(OfDevice())
    with pytest.raises(BadValue, match="writable"):
        _host_bytes(memoryview(b"read-only"))
    with pytest.raises(BadValue, match="secondary tier 'HoldfastTier': unknown key 'adress'"):
        start(adress=cluster.address)
    with pytest.raises(Unreachable, match="vLLM is not connected"):
        start(address="127.0.0.1:1", connect_timeout=0.5)


def test_a_failover_between_jobs_costs_nothing_but_time(start: Start, cluster: Cluster) -> None:
    first, second = start(seed=1), start(seed=2)
    first.store([1, 2], [0, 1])
    dead = cluster.primary()
    dead.kill()
    loaded = second.load([1, 2], [3, 4])
    assert loaded.success or loaded.successful_keys is None
    cluster.primary(but=dead)
    wait_until(lambda: second.load([1, 2], [3, 4]).success, 40, "the chunks are read again")
    assert [second.memory.chunk(row) for row in (3, 4)] == [first.memory.chunk(row) for row in (0, 1)]


def test_without_masters_the_scheduler_never_waits(start: Start, cluster: Cluster) -> None:
    engine = start(timeout=1.0)
    engine.store([1], [0])
    for master in cluster.masters:
        master.kill()
    assert not engine.load([1], [3]).success
    began = now_seconds()
    for number in range(1_000):
        assert engine.tier.lookup(key(number), REQUEST) is not LookupResult.HIT or number == 1
        engine.tier.on_schedule_end(None)
    assert now_seconds() - began < 30, "1,000 lookups do not wait for 1,000 timeouts"
    assert not engine.store([2], [0]).success
    engine.tier.on_request_finished(REQUEST)
    cluster.heal()
    again = (ReqContext(f"request-{number}") for number in itertools.count(10))
    wait_until(lambda: engine.lookup(1, next(again)) is LookupResult.HIT, 40, "the chunk is there again")
    wait_until(lambda: engine.load([1], [3], next(again)).success, 40, "and can be loaded")
    assert engine.memory.chunk(3) == engine.memory.chunk(0)
