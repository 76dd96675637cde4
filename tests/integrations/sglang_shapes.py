"""SGLang's storage interface by shape, as far as the integration uses it, with host pools of NumPy memory.

The real classes are used by `make ecosystem`. Here neither SGLang nor torch is installed.
"""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
PAGE, LAYERS, HEADS, DIMENSION, PAGES = 4, 3, 4, 8, 16


@dataclass
class HiCacheStorageConfig:
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = False
    is_page_first_layout: bool = True
    model_name: str | None = "tiny/model"
    tp_lcm_size: int | None = None
    should_split_heads: bool = False
    dp_rank: int = 0
    extra_config: dict[str, Any] | None = None
    dcp_size: int = 1
    dcp_rank: int = 0
    logical_page_size: int | None = None

    @property
    def is_storage_writer(self) -> bool:
        return not self.is_mla_model or self.tp_rank == self.dcp_rank


class HiCacheStorage:
    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        if not hasattr(self, "registered_pools"):
            self.registered_pools: dict[Any, Any] = {}
        self.registered_pools[host_pool_name] = host_pool


class PoolName(str, Enum):  # noqa: UP042 - as in SGLang.
    KV = "kv"
    MAMBA = "mamba"
    INDEXER = "indexer"
    DRAFT = "draft"


class PoolHitPolicy(str, Enum):  # noqa: UP042 - as in SGLang.
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"
    BLOCK_GROUPS = "block_groups"


@dataclass
class PoolTransfer:
    name: PoolName
    host_indices: Any = None
    keys: list[str] | None = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES
    block_pages: int = 0
    group_pages: int = 0


@dataclass
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict[str, int]
    restorable_prefix_pages: list[int] | None = None


@dataclass
class StorageMetrics:
    prefetch_pgs: list[int] = field(default_factory=list)
    backup_pgs: list[int] = field(default_factory=list)
    prefetch_bandwidth: list[float] = field(default_factory=list)
    backup_bandwidth: list[float] = field(default_factory=list)


class HostPool:
    """Keys and values of PAGES pages, in one of SGLang's layouts; filled with bytes that differ everywhere."""

    def __init__(self, layout: str = "page_first", heads: int = HEADS, seed: int = 0, dtype: str = "float32") -> None:
        self.layout = layout
        self.page_size = PAGE
        self.layer_num = LAYERS
        self.start_layer, self.end_layer = 0, LAYERS
        self.head_num = heads
        self.head_dim = DIMENSION
        self.dtype = np.dtype(dtype)
        self.size = PAGES * PAGE
        token = heads * DIMENSION * self.dtype.itemsize
        self.size_per_token = 2 * LAYERS * token
        self._row = PAGE * token
        """One page of one layer."""
        self.kv_buffer: Any = np.random.default_rng(seed).integers(0, 256, self.size * self.size_per_token, np.uint8)

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        first = self.kv_buffer.ctypes.data
        half = self.kv_buffer.nbytes // 2
        pages = [index // PAGE for index in indices.tolist()[::PAGE]]
        if self.layout == "layer_first":
            places = [
                layer * self.size // PAGE * self._row + page * self._row for page in pages for layer in range(LAYERS)
            ]
            size = self._row
        else:
            places = [page * LAYERS * self._row for page in pages]
            size = LAYERS * self._row
        pointers = [first + place + part for place in places for part in (0, half)]
        return pointers, [size] * len(pointers)

    def get_split_heads_page_buffer_meta(self, indices: Any, parts: int) -> tuple[list[int], list[int]]:
        assert self.layout == "page_head"
        pointers, sizes = self.get_page_buffer_meta(indices)
        size = sizes[0] // parts
        pairs = [(pointers[at], pointers[at + 1]) for at in range(0, len(pointers), 2)]
        cut = [side + which * size for pair in pairs for which in range(parts) for side in pair]
        return cut, [size] * len(cut)

    def get_data_page(self, index: int) -> NDArray[np.uint8]:
        pointers, sizes = self.get_page_buffer_meta(np.arange(index, index + PAGE))
        base = self.kv_buffer.ctypes.data
        return np.concatenate(
            [self.kv_buffer[at - base : at - base + size] for at, size in zip(pointers, sizes, strict=True)]
        )

    def get_dummy_flat_data_page(self) -> NDArray[np.uint8]:
        return np.zeros(PAGE * self.size_per_token, np.uint8)

    def page(self, number: int) -> bytes:
        return self.get_data_page(number * PAGE).tobytes()


class MLATokenToKVPoolHost(HostPool):
    """The name tells that all tensor ranks hold the same."""


class LogicalPool:
    """An anchor of hybrid models: it has page numbers and no bytes."""

    kv_buffer = None
    page_size = PAGE


def tokens(*pages: int) -> NDArray[np.int64]:
    """Host indices of these pages, as SGLang gives them: one for each token."""
    return np.array([page * PAGE + token for page in pages for token in range(PAGE)], np.int64)


def modules() -> dict[str, types.ModuleType]:
    storage = types.ModuleType("sglang.srt.mem_cache.hicache_storage")
    storage.__dict__.update(HiCacheStorage=HiCacheStorage, PoolTransferResult=PoolTransferResult)
    metrics = types.ModuleType("sglang.srt.observability.metrics_collector")
    metrics.__dict__["StorageMetrics"] = StorageMetrics
    folders = ("sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.observability")
    return {module.__name__: module for module in [*map(types.ModuleType, folders), storage, metrics]}
