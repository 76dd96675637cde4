"""Keys of vLLM's chunks. A chunk's hash tells which tokens it is of; the rest of the key tells what its bytes mean.

Engines share a chunk where all that shapes its bytes is equal: model, type, groups of layers, block sizes and, unless
vLLM certifies that the bytes do not depend on it, how the model is cut into ranks.
"""

from __future__ import annotations

from typing import Any

from holdfast.integrations.names import digest, part


def prefix_of(config: Any, chunk_bytes: int, namespace: str) -> str:
    """The prefix of all keys of this engine, from vLLM's OffloadingConfig."""
    parallel = config.parallel
    facts: dict[str, object] = {
        "dtype": config.model.dtype,
        "tokens_per_hash": config.cache.tokens_per_hash,
        "blocks_per_chunk": config.cache.blocks_per_chunk,
        "groups": [[group.tokens_per_block, *group.layer_names] for group in config.groups],
        "layout": getattr(config, "kv_cache_layout", None),
        "canonical": getattr(config, "canonical_layout", False),
        "replicated": getattr(config, "replicated_layout", False),
        "chunk_bytes": chunk_bytes,
    }
    if not (parallel.is_parallelism_agnostic or facts["replicated"]):
        facts["ranks"] = [parallel.world_size, parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size]
    return f"vllm/{part(namespace)}/{part(config.model.name)}/{digest(facts)}/"


def name_of(prefix: str, key: bytes) -> str:
    """`key` is vLLM's: the block hash and four bytes of the group's number."""
    return f"{prefix}{key.hex()}"
