"""vLLM's real TieringOffloadingManager with HoldfastTier: run by pytest inside vLLM's environment.

What a GPU worker would do, copying blocks into vLLM's host memory and out of it, is done here by writing the rows.
HOLDFAST_ADDRESS names the cluster.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager

CHUNKS, CHUNK_BYTES = 32, 64 << 10
STEP = ScheduleEndContext(new_req_ids=(), preempted_req_ids=())
WITHIN_S = 60.0
_requests = itertools.count()


class Spec:
    """Of an OffloadingSpec, what tiers look at."""

    def __init__(self, model: str) -> None:
        parallel = OffloadingParallelConfig(
            rank=0,
            world_size=1,
            tp_size=1,
            pp_size=1,
            pcp_size=1,
            dcp_size=1,
            data_parallel_index=0,
            data_parallel_size=1,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=False,
        )
        self.config = OffloadingConfig(
            groups=(OffloadingGroupConfig(tokens_per_block=16, layer_names=("layers.0", "layers.1"), group_id=0),),
            worker_kv_bytes_per_block=CHUNK_BYTES,
            enable_kv_cache_events=False,
            extra_config={},
            engine_id=uuid.uuid4().hex,
            model=OffloadingModelConfig(name=model, dtype="bfloat16"),
            cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
            parallel=parallel,
        )


class Engine:
    """The scheduler's side of an OffloadingConnector: real manager, real host memory, real tier."""

    def __init__(self, model: str) -> None:
        self._region = SharedOffloadRegion(uuid.uuid4().hex, CHUNKS, 0, CHUNK_BYTES, CHUNK_BYTES)
        primary = CPUPrimaryTierOffloadingManager(CHUNKS, self._region)
        tier = SecondaryTierFactory.create_secondary_tier(
            {
                "type": "HoldfastTier",
                "module_path": "holdfast.integrations.vllm",
                "address": os.environ["HOLDFAST_ADDRESS"],
            },
            primary.get_kv_memoryview(),
            Spec(model),
        )
        self.tier = tier
        self.rows = np.asarray(primary.get_kv_memoryview())
        self.manager = TieringOffloadingManager(primary, [tier])

    def close(self) -> None:
        self.rows = None
        self.manager.shutdown()

    def step_until(self, condition: Any, what: str) -> None:
        give_up_at = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < give_up_at, f"not within {WITHIN_S} s: {what}"
            self.manager.on_schedule_end(STEP)
            time.sleep(0.005)

    def store(self, chunks: dict[bytes, bytes]) -> None:
        """A request computed these; they are offloaded, and cascade into the tier."""
        request = self._request()
        prepared = self.manager.prepare_store(list(chunks), request)
        assert prepared is not None
        for key, row in zip(prepared.keys_to_store, prepared.store_spec.chunk_ids, strict=True):
            self.rows[int(row)] = np.frombuffer(chunks[key], self.rows.dtype)
        self.manager.complete_store(list(chunks), request)
        self.manager.on_request_finished(request)
        self.step_until(lambda: not self.manager.has_pending_work(), "the chunks are stored")

    def find(self, keys: list[bytes]) -> tuple[list[LookupResult], dict[bytes, bytes]]:
        """Ask as the scheduler does, step by step, until each is a hit or a miss; the bytes of the hits."""
        request = self._request()
        answers: list[LookupResult] = []

        def settled() -> bool:
            answers[:] = [self.manager.lookup(key, request) for key in keys]
            return all(answer in (LookupResult.HIT, LookupResult.MISS) for answer in answers)

        self.step_until(settled, "the lookups are answered")
        hits = [key for key, answer in zip(keys, answers, strict=True) if answer is LookupResult.HIT]
        loaded: dict[bytes, bytes] = {}
        if hits:
            spec = self.manager.prepare_load(hits, request)
            loaded = {key: self.rows[int(row)].tobytes() for key, row in zip(hits, spec.chunk_ids, strict=True)}
            self.manager.complete_load(hits, request)
        self.manager.on_request_finished(request)
        return answers, loaded

    def _request(self) -> ReqContext:
        request = ReqContext(req_id=f"request-{next(_requests)}")
        self.manager.on_new_request(request)
        return request


@pytest.fixture(name="start")
def start_fixture() -> Iterator[Any]:
    engines: list[Engine] = []
    model = f"tiny-{uuid.uuid4().hex}"

    def start() -> Engine:
        engines.append(Engine(model))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def chunks(count: int) -> dict[bytes, bytes]:
    return {make_offload_key(os.urandom(32), 0): os.urandom(CHUNK_BYTES) for _ in range(count)}


def test_two_engines_share_chunks(start: Any) -> None:
    first, second = start(), start()
    stored = chunks(12)
    first.store(stored)
    unknown = list(chunks(1))
    answers, loaded = second.find([*stored, *unknown])
    assert answers == [LookupResult.HIT] * 12 + [LookupResult.MISS]
    assert loaded == stored


def test_what_left_host_memory_comes_back(start: Any) -> None:
    """More chunks than host memory has room for: the first ones are only in the cluster."""
    engine = start()
    stored = [chunks(16) for _ in range(4)]
    for some in stored:
        engine.store(some)
    for some in stored:
        answers, loaded = engine.find(list(some))
        assert answers == [LookupResult.HIT] * 16
        assert loaded == some


def test_a_chunk_that_is_gone_when_it_is_loaded_is_computed(start: Any) -> None:
    first, second = start(), start()
    stored = chunks(4)
    first.store(stored)
    keys = list(stored)
    load = second.tier._cache.load

    def lossy(names: Any, targets: Any, sizes: Any) -> list[bool]:
        return [
            good and not name.endswith(keys[1].hex())
            for name, good in zip(names, load(names, targets, sizes), strict=True)
        ]

    second.tier._cache.load = lossy
    answers, loaded = second.find(keys)
    assert [answer is LookupResult.HIT for answer in answers] == [True, False, True, True]
    assert loaded == {key: stored[key] for key in (keys[0], keys[2], keys[3])}


def test_reset_drains_and_the_cluster_keeps_what_it_has(start: Any) -> None:
    engine = start()
    stored = chunks(8)
    engine.store(stored)
    engine.manager.reset_cache()
    answers, loaded = engine.find(list(stored))
    assert answers == [LookupResult.HIT] * 8
    assert loaded == stored
