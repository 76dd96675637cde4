"""LMCache's L2 adapter of type `plugin`: stores, lookups with locks, and loads, each a batch, none of them blocking.

What LMCache calls a lock is a lease of the cluster: every master and every other client respects it, and the client
keeps it alive until it is unlocked. A load copies straight into LMCache's memory, with the checksum compared.

The life of a task:

1. submitted by one of LMCache's controllers, which gets a number and goes on;
2. run by a worker; whatever fails is a miss (lookup, load) or a failed store, never an exception;
3. its result is put down and its file descriptor signalled;
4. the controller takes the result, once.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import EncodedObjectKey, KeyEntry, KeyListPage
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase
from lmcache.v1.platform import create_event_notifier

from holdfast.errors import HoldfastError
from holdfast.integrations.lmcache.keys import L2, Chunk, l2_name, parsed_l2_name
from holdfast.integrations.lmcache.ledger import Ledger
from holdfast.integrations.lmcache.options import LmcacheOptions
from holdfast.integrations.lmcache.shared_pool import SWEEP_KEYS, SharedPool, empty_value

Result = TypeVar("Result")
MemoryObj = Any


class HoldfastL2AdapterConfig(L2AdapterConfigBase):
    """`adapter_params`, checked. LMCache finds this class by its name."""

    def __init__(self, options: LmcacheOptions) -> None:
        self.options = options

    @classmethod
    def from_dict(cls, d: Mapping[str, object]) -> HoldfastL2AdapterConfig:
        return cls(LmcacheOptions.from_mapping(d))

    @classmethod
    def help(cls) -> str:
        return LmcacheOptions.explained()


class Desk(Generic[Result]):
    """Where the results of one kind of task lie until they are taken, and the file descriptor that tells of them."""

    def __init__(self) -> None:
        self.notifier = create_event_notifier()
        self._lock = threading.Lock()
        self._results: dict[int, Result] = {}
        self._closed = False

    def put(self, task: int, result: Result) -> None:
        with self._lock:
            self._results[task] = result
            if not self._closed:
                self.notifier.notify()

    def take(self, task: int) -> Result | None:
        with self._lock:
            return self._results.pop(task, None)

    def take_all(self) -> dict[int, Result]:
        with self._lock:
            taken, self._results = self._results, {}
        return taken

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self.notifier.close()


class HoldfastL2Adapter(L2AdapterInterface):
    def __init__(self, config: HoldfastL2AdapterConfig | Mapping[str, object], l1_memory_desc: object = None) -> None:
        """`l1_memory_desc` is where LMCache's own memory lies; shared memory and TCP need not know."""
        options = config.options if isinstance(config, HoldfastL2AdapterConfig) else LmcacheOptions.from_mapping(config)
        super().__init__(max_capacity_bytes=options.max_capacity_bytes)
        self._ledger: Ledger[Chunk] = Ledger(options.tracked_keys)
        self._cluster_bytes: tuple[int, int] = (0, 0)
        """Used, and lent by all nodes, as last seen."""
        self._pool = SharedPool(options, L2)
        self._tasks = itertools.count(1)
        self._in_flight = 0
        self._counting = threading.Lock()
        self._stored: Desk[Any] = Desk()
        self._looked_up: Desk[Any] = Desk()
        self._loaded: Desk[Any] = Desk()
        self._readers = ThreadPoolExecutor(options.workers, "holdfast-read")
        self._writers = ThreadPoolExecutor(options.workers, "holdfast-store")
        self._pool.start_patrol(self._sweep)

    def set_backend_identity(self, name: str, shared: bool = False) -> None:
        """The cluster is shared by the fleet, whether or not the configuration says so."""
        super().set_backend_identity(name, shared=True)

    def get_store_event_fd(self) -> int:
        return int(self._stored.notifier.fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return int(self._looked_up.notifier.fileno())

    def get_load_event_fd(self) -> int:
        return int(self._loaded.notifier.fileno())

    def submit_store_task(self, keys: list[Chunk], objects: list[MemoryObj]) -> int:
        chunks, values = list(keys), list(objects)
        return self._submit(
            self._writers, self._stored, lambda: self._store(chunks, values), lambda: L2StoreResult(False, 0), "a store"
        )

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        return self._stored.take_all()

    def submit_lookup_and_lock_task(self, keys: list[Chunk], group_layout_descs: object = None) -> int:
        chunks = list(keys)
        return self._submit(
            self._readers, self._looked_up, lambda: self._lookup(chunks), lambda: Bitmap(len(chunks)), "a lookup"
        )

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        return self._looked_up.take(task_id)

    def submit_unlock(self, keys: list[Chunk]) -> None:
        self._pool.release([l2_name(key) for key in keys])

    def submit_load_task(self, keys: list[Chunk], objects: list[MemoryObj]) -> int:
        chunks, targets = list(keys), list(objects)
        return self._submit(
            self._readers, self._loaded, lambda: self._load(chunks, targets), lambda: Bitmap(len(chunks)), "a load"
        )

    def query_load_result(self, task_id: int) -> Any:
        return self._loaded.take(task_id)

    def delete(self, keys: list[Chunk]) -> None:
        """Delete these. Objects that are being read stay, and can be deleted later."""
        chunks = list(keys)
        removed = self._pool.remove([l2_name(key) for key in chunks])
        self._tell_gone([key for key, gone in zip(chunks, removed, strict=True) if gone])

    def list_l2_keys(self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None) -> Any:
        """A page is what some slots of the catalogue hold at this moment: objects that come and go meanwhile may be
        left out. Chunks whose names were cut for their length are not listed."""
        if page_size <= 0:
            raise ValueError(f"page_size must be positive, not {page_size}")
        place, skip = _parsed_cursor(cursor)
        beginning = "" if model_name is None else f"{model_name}@"
        listed: list[str] = []
        token: str | None = None
        while True:
            names, following = self._pool.some_names(beginning, place)
            room = page_size - len(listed)
            listed += names[skip : skip + room]
            if len(names) - skip > room:
                token = f"{place}.{skip + room}"
                break
            place, skip = following, 0
            if not following or len(listed) == page_size:
                token = f"{place}.0" if following else None
                break
        sized = zip(map(parsed_l2_name, listed), self._pool.sizes_of(listed), strict=True)
        return KeyListPage(tuple(KeyEntry(_encoded(one), size) for one, size in sized if one and size), token)

    def get_usage(self) -> Any:
        """The cluster's bytes and capacity, and this process's own count per tenant. Where a capacity is set for
        LMCache's own eviction, all of it is this process's own count."""
        own = super().get_usage()
        used, capacity = self._cluster_bytes
        if self._max_capacity_bytes or not capacity:
            return own
        return AdapterUsage(used, capacity, MappingProxyType(dict(own.bytes_by_cache_salt)))

    def report_status(self) -> dict[str, Any]:
        used, capacity = self._cluster_bytes
        return {
            **self._pool.status(),
            "type": type(self).__name__,
            "tasks_in_flight": self._in_flight,
            "tracked_keys": len(self._ledger),
            "cluster_used_bytes": used,
            "cluster_capacity_bytes": capacity,
        }

    def close(self) -> None:
        """Waits for what runs, at most as long as its timeout, then gives all leases up."""
        for workers in (self._readers, self._writers):
            workers.shutdown(cancel_futures=True)
        self._pool.close()
        for desk in (self._stored, self._looked_up, self._loaded):
            desk.close()

    def _submit(
        self,
        workers: ThreadPoolExecutor,
        desk: Desk[Any],
        work: Callable[[], Any],
        failed: Callable[[], Any],
        doing: str,
    ) -> int:
        task = next(self._tasks)

        def run() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - LMCache's controllers take no exception; it is logged.
                self._pool.failures.note(doing, error)
                result = failed()
            with self._counting:
                self._in_flight -= 1
            desk.put(task, result)

        with self._counting:
            self._in_flight += 1
        try:
            workers.submit(run)
        except RuntimeError as error:  # It was closed.
            self._pool.failures.note(doing, error)
            with self._counting:
                self._in_flight -= 1
            desk.put(task, failed())
        return task

    def _store(self, chunks: list[Chunk], objects: list[MemoryObj]) -> Any:
        names = [l2_name(chunk) for chunk in chunks]
        values = [_bytes_of(one) for one in objects]
        sizes = [value.nbytes for value in values]
        # A value without bytes would be refused together with its batch.
        kept = [index for index, size in enumerate(sizes) if size]
        outcomes: list[bool | HoldfastError] = [empty_value(name) for name in names]
        for index, one in zip(kept, self._pool.store([names[i] for i in kept], [values[i] for i in kept]), strict=True):
            outcomes[index] = one
        there = [index for index, one in enumerate(outcomes) if not isinstance(one, HoldfastError)]
        stored_bytes = sum(sizes[index] for index in there if outcomes[index] is True)
        self._pool.count(stored_bytes=stored_bytes)
        self._tell_stored([chunks[index] for index in there], [sizes[index] for index in there])
        return L2StoreResult(len(there) == len(chunks), stored_bytes)

    def _lookup(self, chunks: list[Chunk]) -> Any:
        found = Bitmap(len(chunks))
        sizes = self._pool.lookup([l2_name(chunk) for chunk in chunks])
        if sizes is None:
            return found
        for index, size in enumerate(sizes):
            if size:
                found.set(index)
        self._tell_if_gone(self._ledger.known(chunk for chunk, size in zip(chunks, sizes, strict=True) if not size))
        return found

    def _load(self, chunks: list[Chunk], objects: list[MemoryObj]) -> Any:
        targets = [_bytes_of(one) for one in objects]
        sizes = self._pool.load([l2_name(chunk) for chunk in chunks], targets)
        loaded = Bitmap(len(chunks))
        read: list[Chunk] = []
        for index, (size, target) in enumerate(zip(sizes, targets, strict=True)):
            # An object of another size is of another layout: part of the target would hold what it held before.
            if size and size == target.nbytes:
                loaded.set(index)
                read.append(chunks[index])
        if read:
            self._notify_keys_accessed(read)
        return loaded

    def _tell_stored(self, chunks: list[Chunk], sizes: list[int]) -> None:
        if not chunks:
            return
        added, left = self._ledger.enter(chunks, sizes)
        self._notify_keys_stored(chunks, added)
        if left:
            self._notify_keys_deleted([key for key, _ in left], [size for _, size in left])

    def _tell_gone(self, chunks: list[Chunk]) -> int:
        """To LMCache, those that it counts."""
        struck = self._ledger.strike(chunks)
        if struck:
            self._notify_keys_deleted([key for key, _ in struck], [size for _, size in struck])
        return len(struck)

    def _sweep(self) -> None:
        """Learn what the cluster has evicted, and how full it is."""
        nodes = self._pool.nodes()
        if nodes is not None:
            self._cluster_bytes = (sum(one.used_bytes for one in nodes), sum(one.capacity_bytes for one in nodes))
        self._tell_if_gone(self._ledger.oldest(SWEEP_KEYS))

    def _tell_if_gone(self, chunks: list[Chunk]) -> None:
        """To LMCache, those that are not stored any more. One that a lookup missed may only be out of reach."""
        gone = self._pool.gone([l2_name(chunk) for chunk in chunks])
        self._pool.count(evicted=self._tell_gone([chunks[index] for index in gone]))


def _bytes_of(memory: MemoryObj) -> memoryview:
    """Its logical bytes, in place."""
    return memoryview(memory.byte_array)


def _encoded(parts: Any) -> Any:
    return EncodedObjectKey(
        chunk_hash_hex=parts.chunk_hash.hex(),
        model_name=parts.model_name,
        kv_rank=parts.kv_rank,
        object_group_id=parts.object_group_id,
        cache_salt=parts.cache_salt,
    )


def _parsed_cursor(cursor: str | None) -> tuple[int, int]:
    if cursor is None:
        return 0, 0
    place, _, skip = cursor.partition(".")
    if not (place.isdecimal() and skip.isdecimal()):
        raise ValueError(f"{cursor!r} is no cursor of a page of holdfast's keys")
    return int(place), int(skip)
