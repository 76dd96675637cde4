"""SGLang's storage backend without SGLang's server: store two pages of a host pool, and read them into another place.

Run it in SGLang's environment while `holdfast up` runs: `python examples/sglang_pages.py`. HOLDFAST_ADDRESS names
another cluster.
"""

from __future__ import annotations

import secrets
import sys
from types import SimpleNamespace

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

from holdfast.integrations.sglang import HiCacheHoldfast

PAGE_TOKENS, PAGE_BYTES = 16, 1 << 20


def pool_of(pages: int) -> SimpleNamespace:
    """As much of a host pool as the backend asks for: where its pages lie."""
    memory = torch.randint(0, 256, (pages, PAGE_BYTES), dtype=torch.uint8)

    def addresses(indices: torch.Tensor) -> tuple[list[int], list[int]]:
        rows = [int(index) // PAGE_TOKENS for index in indices[::PAGE_TOKENS]]
        return [memory[row].data_ptr() for row in rows], [PAGE_BYTES] * len(rows)

    return SimpleNamespace(
        kv_buffer=memory, page_size=PAGE_TOKENS, layout="page_first", dtype=torch.uint8, get_page_buffer_meta=addresses
    )


def main() -> int:
    ranks = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1}
    config = HiCacheStorageConfig(
        **ranks, is_mla_model=False, enable_storage_metrics=True, is_page_first_layout=True, model_name="example"
    )
    backend = HiCacheHoldfast(config)
    pool = pool_of(8)
    backend.register_mem_pool_host(pool)
    # SGLang names a page by a hash of its tokens. These pages are random, so that each run needs names of its own.
    pages = [secrets.token_hex(32) for _ in range(3)]
    try:
        print("stored:", backend.batch_set_v1(pages[:2], torch.arange(2 * PAGE_TOKENS)))
        print("pages of the prefix that are there:", backend.batch_exists(pages))
        print("loaded:", backend.batch_get_v1(pages[:2], torch.arange(4 * PAGE_TOKENS, 6 * PAGE_TOKENS)))
        equal = bool((pool.kv_buffer[4:6] == pool.kv_buffer[:2]).all())
        print("equal:", equal)
        print("figures:", backend.get_stats())
        return 0 if equal else 1
    finally:
        backend.close()


if __name__ == "__main__":
    sys.exit(main())
