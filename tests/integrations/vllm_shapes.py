"""vLLM's interface to secondary tiers by shape, as far as we use it. `make ecosystem` has the real one."""

from __future__ import annotations

import time
import types
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import numpy as np

CHUNK_BYTES = 8192


class Medium(Enum):
    CPU = "CPU"
    STORAGE = "STORAGE"


class Locality(Enum):
    LOCAL = "LOCAL"
    REMOTE = "REMOTE"


class LookupResult(Enum):
    MISS = auto()
    HIT = auto()
    HIT_PENDING = auto()
    RETRY = auto()


@dataclass
class RequestOffloadingContext:
    policy: str = "chunk_level"


@dataclass
class OffloadingEvent:
    keys: list[bytes]
    medium: Medium
    removed: bool
    locality: Locality | None = None


@dataclass
class ReqContext:
    req_id: str


@dataclass
class TransferJob:
    job_id: int
    keys: list[bytes]
    chunk_ids: Any
    is_promotion: bool
    req_context: ReqContext
    submit_time: float = field(default_factory=time.monotonic)


@dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: Any = None
    transfer_time: float | None = None
    transfer_bytes: int | None = None


class SecondaryTierManager:
    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, detector: Any = None) -> None:
        assert primary_kv_view.strides is not None
        self.block_size_bytes: int = primary_kv_view.strides[0]
        self.tier_type = tier_type


def spec(model: str = "tiny/model", tp_size: int = 1, agnostic: bool = False, events: bool = False) -> Any:
    """An OffloadingSpec, which has its normalised configuration."""
    parallel = types.SimpleNamespace(
        rank=0, world_size=tp_size, tp_size=tp_size, pp_size=1, pcp_size=1, dcp_size=1, is_parallelism_agnostic=agnostic
    )
    return types.SimpleNamespace(
        config=types.SimpleNamespace(
            model=types.SimpleNamespace(name=model, dtype="float16"),
            cache=types.SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1),
            groups=(types.SimpleNamespace(tokens_per_block=16, layer_names=("layer.0", "layer.1")),),
            parallel=parallel,
            enable_kv_cache_events=events,
        )
    )


class HostMemory:
    """vLLM's own host memory: rows of one chunk each, as a view of bytes with two dimensions."""

    def __init__(self, chunks: int = 16, seed: int = 0) -> None:
        self.rows = np.random.default_rng(seed).integers(-128, 128, (chunks, CHUNK_BYTES), np.int8)
        self.view = memoryview(self.rows)

    def chunk(self, number: int) -> bytes:
        return self.rows[number].tobytes()


def modules() -> dict[str, types.ModuleType]:
    base = types.ModuleType("vllm.v1.kv_offload.base")
    base.__dict__.update(
        Locality=Locality,
        LookupResult=LookupResult,
        Medium=Medium,
        OffloadingEvent=OffloadingEvent,
        RequestOffloadingContext=RequestOffloadingContext,
    )
    tiering = types.ModuleType("vllm.v1.kv_offload.tiering.base")
    tiering.__dict__.update(JobResult=JobResult, SecondaryTierManager=SecondaryTierManager)
    folders = ("vllm", "vllm.v1", "vllm.v1.kv_offload", "vllm.v1.kv_offload.tiering")
    return {module.__name__: module for module in [*map(types.ModuleType, folders), base, tiering]}
