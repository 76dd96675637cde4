"""HoldfastTier: the class that vLLM's TieringOffloadingSpec loads as a secondary tier.

vLLM copies chunks from the GPU into its own host memory; from there this tier stores them, and into it loads them
again. All of its methods are called by the scheduler, so they only note and hand over: bytes move on threads, one batch
of the client for each job. None of them raises for what the world may do, because that would end the engine.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, OffloadingEvent, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from holdfast.errors import BadValue
from holdfast.instant import now_seconds
from holdfast.integrations.options import Options
from holdfast.integrations.tolerant_cache import TolerantCache
from holdfast.integrations.vllm.chunk_names import name_of, prefix_of
from holdfast.integrations.vllm.lookups import Lookups

log = logging.getLogger("holdfast.integrations.vllm")

LOAD_THREADS = 2
"""The second one answers lookups and small loads while the first is in the middle of a large one."""
MOST_TOUCHED = 4096
"""Chunks to be marked as used in one step; more than that would only delay the marks of the next ones."""


class HoldfastTier(SecondaryTierManager):
    """Chunks of vLLM's host memory in a holdfast cluster, shared by all engines with the same model and shape."""

    medium = Medium.CPU

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        locality: str | None = None,
        enable_kv_events: bool = False,
        **options: object,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        chosen = Options.read(options, f"secondary tier {tier_type!r}")
        self.locality = Locality(locality) if locality is not None else None
        self._rows = _host_bytes(primary_kv_view)
        self._chunk_bytes: int = self.block_size_bytes
        self._prefix = prefix_of(offloading_spec.config, self._chunk_bytes, chosen.namespace)
        self._events: list[Any] | None = None
        if enable_kv_events and offloading_spec.config.enable_kv_cache_events:
            self._events = []
        self._cache = TolerantCache(chosen.connect("vLLM"), "vLLM", replicas=chosen.replicas, soft_pin=chosen.soft_pin)
        self._load_threads = ThreadPoolExecutor(LOAD_THREADS, "holdfast-load")
        self._store_threads = ThreadPoolExecutor(1, "holdfast-store")
        self._lookups = Lookups(self._cache.present_at_once, self._cache.present, self._load_threads)
        self._finished: queue.SimpleQueue[tuple[Any, list[bool], float]] = queue.SimpleQueue()
        self._under_way: set[Future[None]] = set()
        self._touched: dict[str, None] = {}

    def lookup(self, key: bytes, req_context: Any) -> Any:
        """Is the chunk there? From the key index at once; RETRY where a master must be asked."""
        there = self._lookups.lookup(name_of(self._prefix, key), req_context.req_id)
        if there is None:
            return LookupResult.RETRY
        return LookupResult.HIT if there else LookupResult.MISS

    def submit_store(self, job_metadata: Any) -> None:
        self._submit(self._store_threads, job_metadata, self._store)

    def submit_load(self, job_metadata: Any) -> None:
        self._submit(self._load_threads, job_metadata, self._load)

    def get_finished_jobs(self) -> Iterable[Any]:
        results = []
        while not self._finished.empty():
            job, done, seconds = self._finished.get_nowait()
            keys = list(job.keys)
            good = [key for key, ok in zip(keys, done, strict=True) if ok]
            if job.is_promotion:
                bad = [name_of(self._prefix, key) for key, ok in zip(keys, done, strict=True) if not ok]
                self._lookups.failed_to_load(bad, job.req_context.req_id)
            elif self._events is not None and good:
                self._events.append(
                    OffloadingEvent(keys=good, medium=self.medium, removed=False, locality=self.locality)
                )
            results.append(
                JobResult(
                    job_id=job.job_id,
                    success=len(good) == len(keys),
                    successful_keys=tuple(good) if good and job.is_promotion and len(good) < len(keys) else None,
                    transfer_time=seconds,
                    transfer_bytes=len(good) * self._chunk_bytes,
                )
            )
        return results

    def take_events(self) -> Iterable[Any]:
        if self._events is None:
            return ()
        events, self._events = self._events, []
        return events

    def touch(self, keys: Collection[bytes], req_context: Any) -> None:
        for key in keys:
            if len(self._touched) < MOST_TOUCHED:
                self._touched[name_of(self._prefix, key)] = None

    def on_new_request(self, req_context: Any) -> Any:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        self._lookups.end(req_context.req_id)

    def on_schedule_end(self, context: Any) -> None:
        self._lookups.flush()
        names, self._touched = list(self._touched), {}
        if names and not self._cache.away:
            self._hand_over(self._store_threads, lambda: self._cache.use(names))

    def drain_jobs(self) -> None:
        """Wait until no job touches vLLM's memory. Each ends within the client's timeout."""
        wait(list(self._under_way))

    def shutdown(self) -> None:
        for threads in (self._load_threads, self._store_threads):
            threads.shutdown(wait=True)
        self._cache.close()
        self._rows.release()

    def _submit(self, threads: ThreadPoolExecutor, job: Any, work: Any) -> None:
        def run() -> None:
            began = now_seconds()
            done = [False] * len(job.keys)
            try:
                done = work(job)
            except Exception:
                # The engine waits for this job's result, and would wait for ever.
                log.exception("a job of %d chunks failed by a defect; they count as missing", len(job.keys))
            finally:
                self._finished.put((job, done, now_seconds() - began))

        if not self._hand_over(threads, run):
            self._finished.put((job, [False] * len(job.keys), 0.0))

    def _hand_over(self, threads: ThreadPoolExecutor, work: Any) -> bool:
        """Run it on a thread; False: the threads have ended, because the engine is shutting down."""
        try:
            future = threads.submit(work)
        except RuntimeError:
            return False
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return True

    def _store(self, job: Any) -> list[bool]:
        return self._cache.store(list(zip(self._names(job), self._chunks(job), strict=True)))

    def _load(self, job: Any) -> list[bool]:
        chunks = self._chunks(job)
        return self._cache.load(self._names(job), chunks, [self._chunk_bytes] * len(chunks))

    def _names(self, job: Any) -> list[str]:
        return [name_of(self._prefix, key) for key in job.keys]

    def _chunks(self, job: Any) -> list[memoryview]:
        size = self._chunk_bytes
        return [self._rows[int(row) * size : (int(row) + 1) * size] for row in job.chunk_ids]


def _host_bytes(rows: Any) -> memoryview:
    """vLLM's host memory as flat bytes. Memory of a device cannot be given as a view, and is refused."""
    device = getattr(getattr(rows, "device", None), "type", "cpu")
    if device != "cpu":
        raise BadValue(f"vLLM gave memory of the device {device!r}; this tier moves host memory only")
    view = memoryview(rows)
    if view.readonly or not view.c_contiguous:
        raise BadValue("vLLM's host memory must be writable and contiguous for this tier")
    return view.cast("B")
