"""SGLang's real storage factory and host pools with holdfast behind them: run by pytest inside SGLang's environment.

HOLDFAST_ADDRESS names the cluster.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
import torch

# The operators of the packaged torchvision do not load beside a torch for CPUs; SGLang only wants them to be declared.
_operators = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _operators.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from sglang.srt.mem_cache.device_pool_info import (  # noqa: E402
    KVBufferLayout,
    KVBuffers,
    MambaStateBufferInfo,
    MHABufferInfo,
    MLABufferInfo,
)
from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    HiCacheStorageConfig,
    HiCacheStorageFailureInjector,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope  # noqa: E402
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost  # noqa: E402
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost  # noqa: E402
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost  # noqa: E402
from sglang.srt.mem_cache.storage import StorageBackendFactory  # noqa: E402

from holdfast.integrations.sglang import HiCacheHoldfast  # noqa: E402

PAGE, LAYERS, HEADS, DIMENSION, TOKENS = 16, 4, 2, 64, 512
LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn)
CPU = torch.device("cpu")
HOST_POOL = {"pin_memory": False, "device_capacity_tokens": TOKENS, "start_layer": 0, "end_layer": LAYERS}


def mha_pool(layout: str, dtype: torch.dtype = torch.bfloat16) -> MHATokenToKVPoolHost:
    """A host pool as SGLang makes it beside a device pool, which is on the CPU here; filled at random."""
    layers = tuple(torch.zeros(TOKENS, HEADS, DIMENSION, dtype=dtype) for _ in range(LAYERS))
    addresses = torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64)
    buffers = KVBuffers(k=layers, v=layers, k_data_ptrs=addresses, v_data_ptrs=addresses, layout=KVBufferLayout.NHD)
    info = MHABufferInfo(
        buffers=buffers,
        page_size=PAGE,
        head_num=HEADS,
        head_dim=DIMENSION,
        v_head_dim=DIMENSION,
        dtype=dtype,
        device=CPU,
    )
    with host_memory_budget_scope(1 << 30):
        pool = MHATokenToKVPoolHost(info, 1.0, 0, PAGE, layout, **HOST_POOL)
    return filled(pool)


def mla_pool(layout: str) -> MLATokenToKVPoolHost:
    layers = tuple(torch.zeros(TOKENS, 1, 96, dtype=torch.bfloat16) for _ in range(LAYERS))
    info = MLABufferInfo(
        buffers=layers,
        data_ptrs=torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64),
        layer_indices=tuple(range(LAYERS)),
        device_layer_num=LAYERS,
        page_size=PAGE,
        kv_lora_rank=64,
        qk_rope_head_dim=32,
        kv_cache_dim=96,
        dtype=torch.bfloat16,
        device=CPU,
    )
    with host_memory_budget_scope(1 << 30):
        pool = MLATokenToKVPoolHost(info, 1.0, 0, PAGE, layout, target_layer_num=LAYERS, **HOST_POOL)
    return filled(pool)


def mamba_pool() -> MambaPoolHost:
    info = MambaStateBufferInfo(temporal=torch.zeros(LAYERS, 32, 8, 16), conv=(torch.zeros(LAYERS, 32, 24, 3),))
    with host_memory_budget_scope(1 << 30):
        pool = MambaPoolHost(info, 1.0, 0, device_capacity=32, pin_memory=False, layout="page_first")
    for tensor in pool.get_hybrid_pool_buffer():
        tensor.copy_(torch.randn(tensor.shape))
    return pool


def filled(pool: Any) -> Any:
    pool.kv_buffer.view(torch.uint8).copy_(torch.randint(0, 256, pool.kv_buffer.view(torch.uint8).shape))
    return pool


def page(pool: Any, number: int) -> bytes:
    return bytes(pool.get_data_page(number * pool.page_size).contiguous().view(torch.uint8).numpy())


def indices(*pages: int, size: int = PAGE) -> torch.Tensor:
    return torch.cat([torch.arange(number * size, (number + 1) * size) for number in pages])


def hashes(count: int) -> list[str]:
    """Of pages that no run before this one has stored: pages outlive the primary between two runs."""
    return [secrets.token_hex(32) for _ in range(count)]


@pytest.fixture(name="attach")
def attach_fixture() -> Iterator[Any]:
    """What SGLang's cache controller does to attach a storage."""
    made: list[Any] = []

    def attach(pool: Any, extra: dict[str, Any] | None = None, **config: Any) -> Any:
        given: dict[str, Any] = {
            "tp_rank": 0,
            "tp_size": 1,
            "pp_rank": 0,
            "pp_size": 1,
            "attn_cp_rank": 0,
            "attn_cp_size": 1,
            "is_mla_model": False,
            "enable_storage_metrics": True,
            "is_page_first_layout": True,
            "model_name": "ecosystem/tiny",
        }
        extra_config = {
            "backend_name": "holdfast",
            "module_path": "holdfast.integrations.sglang",
            "class_name": "HiCacheHoldfast",
            "interface_v1": 1,
            "address": os.environ["HOLDFAST_ADDRESS"],
            **(extra or {}),
        }
        backend = StorageBackendFactory.create_backend(
            "dynamic", HiCacheStorageConfig(**{**given, "extra_config": extra_config, **config}), pool
        )
        backend.register_mem_pool_host(pool)
        backend.on_host_pools_registered()
        made.append(backend)
        return backend

    yield attach
    for backend in made:
        getattr(backend, "_backend", backend).close()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_v1_in_every_layout_and_type(attach: Any, layout: str, dtype: torch.dtype) -> None:
    source, target = mha_pool(layout, dtype), mha_pool(layout, dtype)
    writer, reader = attach(source), attach(target)
    keys = hashes(8)
    assert writer.batch_set_v1(keys, indices(*range(8))) == [True] * 8
    assert reader.batch_exists([*keys, *hashes(1)]) == 8
    assert reader.batch_get_v1(keys, indices(*range(15, 7, -1))) == [True] * 8
    assert [page(target, 15 - number) for number in range(8)] == [page(source, number) for number in range(8)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_generic_calls(attach: Any, layout: str) -> None:
    """As SGLang's controller makes them without interface_v1."""
    source, target = mha_pool(layout), mha_pool(layout)
    writer, reader = attach(source), attach(target)
    keys = hashes(4)
    assert writer.batch_set(keys, [source.get_data_page(number * PAGE) for number in range(4)])
    found = reader.batch_get([*keys, *hashes(1)], [target.get_dummy_flat_data_page() for _ in range(5)])
    assert found[4] is None
    for number, data in enumerate(found[:4]):
        target.set_from_flat_data_page((number + 4) * PAGE, data)
    assert [page(target, number + 4) for number in range(4)] == [page(source, number) for number in range(4)]
    assert writer.exists(keys[0])


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct"])
def test_mla_pages_of_one_rank_serve_all(attach: Any, layout: str) -> None:
    pools = [mla_pool(layout), mla_pool(layout)]
    ranks = [attach(pool, is_mla_model=True, tp_rank=rank, tp_size=2) for rank, pool in enumerate(pools)]
    keys = hashes(3)
    assert ranks[1].batch_set_v1(keys, indices(0, 1, 2)) == [True] * 3
    assert ranks[1].batch_exists(keys) == 0
    assert ranks[0].batch_set_v1(keys, indices(0, 1, 2)) == [True] * 3
    assert ranks[1].batch_get_v1(keys, indices(7, 8, 9)) == [True] * 3
    assert [page(pools[1], 7 + number) for number in range(3)] == [page(pools[0], number) for number in range(3)]


def test_hybrid_pools_by_v2(attach: Any) -> None:
    source, target = mha_pool("page_first"), mha_pool("page_first")
    states = [mamba_pool(), mamba_pool()]
    backends = [attach(source), attach(target)]
    for backend, state, pool in zip(backends, states, (source, target), strict=True):
        backend.register_mem_host_pool_v2(pool, PoolName.KV)
        backend.register_mem_host_pool_v2(state, PoolName.MAMBA)
    keys = hashes(4)
    assert backends[0].batch_set_v1(keys, indices(0, 1, 2, 3)) == [True] * 4
    stored = backends[0].batch_set_v2([PoolTransfer(PoolName.MAMBA, indices(5, 6, size=1), keys=[keys[1], keys[3]])])
    assert stored == {PoolName.MAMBA: [True, True]}
    wanted = PoolTransfer(PoolName.MAMBA, keys=[keys[3]], hit_policy=PoolHitPolicy.TRAILING_PAGES)
    found = backends[1].batch_exists_v2([*keys, *hashes(2)], [wanted])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (4, [2, 4])
    moved = backends[1].batch_get_v2(
        [
            PoolTransfer(PoolName.KV, indices(8, 9, 10, 11), keys=keys),
            PoolTransfer(PoolName.MAMBA, indices(3, size=1), keys=[keys[3]]),
        ]
    )
    assert moved == {PoolName.KV: [True] * 4, PoolName.MAMBA: [True]}
    assert [page(target, 8 + number) for number in range(4)] == [page(source, number) for number in range(4)]
    assert page(states[1], 3) == page(states[0], 6)


def test_the_injected_failures_of_sglang_are_misses(attach: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY", "0.002")
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE", "0.3")
    pool = mha_pool("page_first")
    backend = attach(pool)
    assert isinstance(backend, HiCacheStorageFailureInjector)
    outcomes = []
    for _ in range(60):
        keys = hashes(2)
        stored = backend.batch_set_v1(keys, indices(0, 1))
        there = backend.batch_exists(keys)
        loaded = backend.batch_get_v1(keys, indices(20, 21))
        assert there in ((0, 2) if all(stored) else (0,))
        if all(loaded):
            assert all(stored)
            assert (page(pool, 20), page(pool, 21)) == (page(pool, 0), page(pool, 1))
        outcomes.append(all(loaded))
    assert 5 < sum(outcomes) < 60


def test_figures_reach_sglang(attach: Any) -> None:
    backend = attach(mha_pool("page_first"))
    keys = hashes(3)
    backend.batch_set_v1(keys, indices(0, 1, 2))
    backend.batch_get_v1(keys, indices(4, 5, 6))
    told = backend.get_stats()
    assert (told.backup_pgs, told.prefetch_pgs) == ([3], [3])
    assert told.prefetch_bandwidth[0] > 0


def test_clear_empties_the_model(attach: Any) -> None:
    backend = attach(mha_pool("page_first"), model_name="ecosystem/cleared")
    keys = hashes(2)
    backend.batch_set_v1(keys, indices(0, 1))
    backend.clear()
    assert backend.batch_exists(keys) == 0


def test_the_class_is_what_the_factory_wants() -> None:
    assert not getattr(HiCacheHoldfast, "__abstractmethods__", None)
