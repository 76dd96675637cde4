"""LMCache's connector of type `native_plugin`: six methods and a file descriptor, which LMCache makes an L2 adapter of.

LMCache keeps the locks of such a connector in its own process, and does not report unlocks to it. So an object that a
lookup finds is leased until it is loaded, or for `lookup_hold_s` (lookup_holds). The locks of `plugin`
(`HoldfastL2Adapter`) are leases of the cluster for as long as they last.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from holdfast.errors import HoldfastError
from holdfast.instant import now_seconds
from holdfast.integrations.lmcache.keys import L2
from holdfast.integrations.lmcache.lookup_holds import LookupHolds
from holdfast.integrations.lmcache.options import LmcacheOptions
from holdfast.integrations.lmcache.shared_pool import SharedPool, empty_value

Completion = tuple[int, bool, str, list[bool] | None]
Answer = tuple[bool, str, list[bool]]


class HoldfastNativeConnector:
    """For any thread. Keyword arguments are those of `LmcacheOptions`."""

    def __init__(self, **adapter_params: object) -> None:
        options = LmcacheOptions.from_mapping(adapter_params)
        self._pool = SharedPool(options, L2)
        self._holds = LookupHolds(options.lookup_hold_s)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._completions: list[Completion] = []
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False
        self._readers = ThreadPoolExecutor(options.workers, "holdfast-read")
        self._writers = ThreadPoolExecutor(options.workers, "holdfast-store")
        self._pool.start_patrol(lambda: self._pool.release(self._holds.over(now_seconds())))

    def event_fd(self) -> int:
        return self._descriptor

    def submit_batch_set(self, keys: list[str], memoryviews: list[memoryview]) -> int:
        names, values = list(keys), list(memoryviews)
        return self._submit(self._writers, len(names), lambda: self._set(names, values), "a store")

    def submit_batch_get(self, keys: list[str], memoryviews: list[memoryview]) -> int:
        names, targets = list(keys), list(memoryviews)
        return self._submit(self._readers, len(names), lambda: self._get(names, targets), "a load")

    def submit_batch_exists(self, keys: list[str]) -> int:
        names = list(keys)
        return self._submit(self._readers, len(names), lambda: self._exists(names), "a lookup")

    def submit_batch_delete(self, keys: list[str]) -> int:
        names = list(keys)
        return self._submit(self._readers, len(names), lambda: self._delete(names), "a removal")

    def drain_completions(self) -> list[Completion]:
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            pass
        with self._lock:
            taken, self._completions = self._completions, []
        return taken

    def report_status(self) -> dict[str, object]:
        return self._pool.status()

    def close(self) -> None:
        """Waits for what runs, at most as long as its timeout."""
        for workers in (self._readers, self._writers):
            workers.shutdown(cancel_futures=True)
        self._pool.close()
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._descriptor)

    def _submit(self, workers: ThreadPoolExecutor, count: int, work: Callable[[], Answer], doing: str) -> int:
        number = next(self._numbers)

        def run() -> None:
            try:
                answer = work()
            except Exception as error:  # noqa: BLE001 - It is logged, and LMCache is told.
                self._pool.failures.note(doing, error)
                answer = (False, str(error) or repr(error), [False] * count)
            self._complete((number, *answer))

        try:
            workers.submit(run)
        except RuntimeError as error:  # It was closed.
            self._complete((number, False, str(error), [False] * count))
        return number

    def _complete(self, completion: Completion) -> None:
        with self._lock:
            self._completions.append(completion)
            if not self._closed:
                os.eventfd_write(self._descriptor, 1)

    def _set(self, names: list[str], values: Sequence[memoryview]) -> Answer:
        kept = [index for index, value in enumerate(values) if value.nbytes]
        outcomes: list[bool | HoldfastError] = [empty_value(name) for name in names]
        for index, one in zip(kept, self._pool.store([names[i] for i in kept], [values[i] for i in kept]), strict=True):
            outcomes[index] = one
        self._pool.count(
            stored_bytes=sum(value.nbytes for value, one in zip(values, outcomes, strict=True) if one is True)
        )
        errors = [one for one in outcomes if isinstance(one, HoldfastError)]
        there = [not isinstance(one, HoldfastError) for one in outcomes]
        return not errors, str(errors[0]) if errors else "", there

    def _get(self, names: list[str], targets: Sequence[memoryview]) -> Answer:
        try:
            sizes = self._pool.load(names, targets)
        finally:
            self._pool.release(self._holds.loaded(names, now_seconds()))
        # An object of another size is of another layout.
        loaded = [bool(size) and size == target.nbytes for size, target in zip(sizes, targets, strict=True)]
        return all(loaded), "", loaded

    def _exists(self, names: list[str]) -> Answer:
        found = [bool(size) for size in self._pool.lookup(names) or [0] * len(names)]
        leased = [name for name, there in zip(names, found, strict=True) if there]
        self._pool.release(self._holds.found(leased, now_seconds()))
        return True, "", found

    def _delete(self, names: list[str]) -> Answer:
        # A leased object would not be removed, not even by its own client.
        self._pool.release(self._holds.removed(names))
        return True, "", self._pool.remove(names)
