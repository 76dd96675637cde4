"""HiCacheHoldfast: the class that SGLang's `dynamic` backend loads.

SGLang calls it from its prefetch and backup threads, with at most 128 pages at a time; each call is one batch of the
client, and bytes move straight between SGLang's host pool and the cache. Whatever fails is a miss.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolTransferResult

from holdfast.errors import BadValue
from holdfast.instant import now_seconds
from holdfast.integrations.options import Options
from holdfast.integrations.sglang.figures import TransferFigures
from holdfast.integrations.sglang.pools import KV, Pool, Shard, contiguous
from holdfast.integrations.sglang.prefixes import allowed, covered, leading
from holdfast.integrations.tolerant_cache import TolerantCache

log = logging.getLogger("holdfast.integrations.sglang")

OF_SGLANG = frozenset(
    {
        "backend_name",
        "module_path",
        "class_name",
        "interface_v1",
        "allocator",
        "extra_backend_tag",
        "prefetch_threshold",
        "prefetch_timeout_base",
        "prefetch_timeout_per_ki_token",
        "hicache_storage_pass_prefix_keys",
        "tp_lcm_size",
    }
)


class HiCacheHoldfast(HiCacheStorage):
    """SGLang's third cache level on a holdfast cluster."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        options = Options.read(storage_config.extra_config or {}, "--hicache-storage-backend-extra-config", OF_SGLANG)
        self._shard = Shard.of(storage_config, options.namespace)
        self._pools: dict[str, Pool] = {}
        self._flat: Pool | None = None
        self._figures = TransferFigures() if storage_config.enable_storage_metrics else None
        self._cache = TolerantCache(
            options.connect("SGLang"), "SGLang", replicas=options.replicas, soft_pin=options.soft_pin
        )

    # Pools

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Take the pool whose pages v1 and generic calls move. An error here ends the attachment."""
        super().register_mem_pool_host(mem_pool_host)
        self._pools[KV] = Pool(mem_pool_host, KV, self._shard)
        self._flat = Pool(mem_pool_host, KV, self._shard, flat=True)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Take a further pool, by the name that v2 calls use."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = _text(host_pool_name)
        self._pools[name] = Pool(host_pool, name, self._shard)

    def _pool(self, name: Any) -> Pool:
        try:
            return self._pools[_text(name)]
        except KeyError:
            raise BadValue(f"the pool {_text(name)!r} was not registered; there are {sorted(self._pools)}") from None

    # Pages of the main pool

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many pages from the start are there. Asks the key index; nothing is leased."""
        return leading(self._present(self._pool(KV), keys))

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._move([(self._pool(KV), keys, host_indices)], is_read=True)[0]

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._move([(self._pool(KV), keys, host_indices)], is_read=False)[0]

    # Pages of several pools

    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """Which prefix lengths can be restored, with all pools. One question for the pages of all of them."""
        transfers = list(pool_transfers or [])
        asked = [(self._pool(KV), keys)]
        asked += [(self._pool(transfer.name), _keys_asked(transfer, keys)) for transfer in transfers]
        present = self._present_each(asked)
        pages = leading(present[0])
        hits = {KV: pages} if pages else {}
        lengths = list(range(1, pages + 1))
        for transfer, there in zip(transfers, present[1:], strict=True):
            policy = _text(transfer.hit_policy)
            if policy == "block_groups":
                # Another form of the same pages: it is reported, and limits nothing.
                reached = covered(there, transfer.group_pages, transfer.block_pages)
            else:
                fitting = set(allowed(policy, there[:pages], max(1, len(transfer.keys or ()))))
                lengths = [length for length in lengths if length in fitting]
                reached = max(fitting, default=0)
            if reached:
                hits[transfer.name] = reached
        return PoolTransferResult(lengths[-1] if lengths else 0, hits, lengths)

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        return self._move_transfers(transfers, is_read=True)

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        return self._move_transfers(transfers, is_read=False)

    # Pages that SGLang copies itself (without "interface_v1": 1)

    def exists(self, key: str) -> bool:
        return self._present(self._flat_pool(), [key])[0]

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """The targets, filled; None where the page is missing."""
        targets = list(target_locations or ())
        if len(targets) != len(keys) or any(target is None for target in targets):
            raise BadValue("a page is read into a tensor: give one in target_locations for each key")
        pool = self._flat_pool()
        began = now_seconds()
        sizes = [target.nbytes for target in targets]
        loaded = self._cache.load([pool.names(key)[0] for key in keys], targets, sizes)
        self._count(True, sum(loaded), sum(size for size, ok in zip(sizes, loaded, strict=True) if ok), began)
        return [target if ok else None for target, ok in zip(targets, loaded, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        pages = list(values or ())
        if len(pages) != len(keys) or any(page is None for page in pages):
            raise BadValue("a page is stored from a tensor: give one in values for each key")
        pool = self._flat_pool()
        if not pool.is_written:
            return True
        began = now_seconds()
        pages = [contiguous(page) for page in pages]
        stored = self._cache.store([(pool.names(key)[0], page) for key, page in zip(keys, pages, strict=True)])
        self._count(False, sum(stored), sum(page.nbytes for page in pages), began)
        return all(stored)

    # The rest

    def clear(self) -> bool:
        """Remove all pages of this model, of all ranks; other models and namespaces keep theirs."""
        return self._cache.remove_matching("^" + re.escape(self._shard.root))

    def get_stats(self) -> Any:
        """Figures of the transfers since the last call; None without --enable-metrics."""
        if self._figures is None:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics

        return StorageMetrics(**self._figures.take())

    def close(self) -> None:
        self._cache.close()

    # How it is done

    def _flat_pool(self) -> Pool:
        if self._flat is None:
            raise BadValue(
                "no host pool was registered, so keys of pages cannot be named; register_mem_pool_host first"
            )
        return self._flat

    def _present(self, pool: Pool, keys: Sequence[str]) -> list[bool]:
        return self._present_each([(pool, keys)])[0]

    def _present_each(self, asked: Sequence[tuple[Pool, Sequence[str]]]) -> list[list[bool]]:
        """Which pages are there, for each pool, by one question."""
        names = [name for pool, keys in asked if pool.holds_bytes for key in keys for name in pool.names(key)]
        return _by_page([(pool, keys, pool.holds_bytes) for pool, keys in asked], self._cache.present(names))

    def _move_transfers(self, transfers: Sequence[Any], is_read: bool) -> dict[str, list[bool]]:
        moves = [(self._pool(transfer.name), transfer.keys or [], transfer.host_indices) for transfer in transfers]
        moved = self._move(moves, is_read)
        return {transfer.name: pages for transfer, pages in zip(transfers, moved, strict=True)}

    def _move(self, moves: Sequence[tuple[Pool, list[str], Any]], is_read: bool) -> list[list[bool]]:
        """Read or write the pages of all pools in one batch; for each pool, which of its pages that worked for."""
        began = now_seconds()
        names: list[str] = []
        buffers: list[list[Any]] = []
        for pool, keys, indices in moves:
            if keys and _has_bytes(pool, is_read):
                names += [name for key in keys for name in pool.names(key)]
                buffers += pool.buffers(len(keys), indices, writable=is_read)
        sizes = [sum(part.nbytes for part in parts) for parts in buffers]
        if is_read:
            done = self._cache.load(names, buffers, sizes)
        else:
            done = self._cache.store(list(zip(names, buffers, strict=True)))
        results = _by_page([(pool, keys, _has_bytes(pool, is_read)) for pool, keys, _ in moves], done)
        if is_read:
            _take(moves, results, buffers)
        if names:
            self._count(is_read, sum(map(sum, results)), sum(s for s, ok in zip(sizes, done, strict=True) if ok), began)
        return results

    def _count(self, is_read: bool, pages: int, size_bytes: int, began: float) -> None:
        if self._figures is not None:
            self._figures.add(is_read, pages, size_bytes, now_seconds() - began)


def _has_bytes(pool: Pool, is_read: bool) -> bool:
    """False: there is nothing to do for this pool, and that counts as done."""
    return pool.holds_bytes and (is_read or pool.is_written)


def _take(
    moves: Sequence[tuple[Pool, list[str], Any]], results: Sequence[list[bool]], buffers: Sequence[list[Any]]
) -> None:
    """Bring pages into pools that they were not read into directly."""
    at = 0
    for (pool, keys, indices), pages in zip(moves, results, strict=True):
        if keys and pool.holds_bytes:
            count = len(keys) * pool.objects_per_page
            pool.take(pages, indices, buffers[at : at + count])
            at += count


def _by_page(asked: Sequence[tuple[Pool, Sequence[str], bool]], outcomes: Sequence[bool]) -> list[list[bool]]:
    """For each pool, which pages are good: those of which every object is. Pools that were left out are good."""
    results = []
    at = 0
    for pool, keys, was_asked in asked:
        each = pool.objects_per_page if was_asked else 0
        results.append([all(outcomes[at + page * each : at + (page + 1) * each]) for page in range(len(keys))])
        at += each * len(keys)
    return results


def _keys_asked(transfer: Any, keys: list[str]) -> list[str]:
    return list(transfer.keys or ()) if _text(transfer.hit_policy) == "block_groups" else keys


def _text(name: Any) -> str:
    """SGLang's names are enumerations of texts."""
    return str(getattr(name, "value", name))
