"""Memory of the caller's process that Mooncake hands out: host allocations, and pools of reusable buffers."""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from typing import Any, Self

from holdfast.instant import now_seconds

MOST_BYTES = 1 << 46
FREED, NOT_OURS = 0, -1


class MooncakeHostMemAllocator:
    """Pages of host memory, by address."""

    def __init__(self) -> None:
        self._pages: dict[int, mmap.mmap] = {}

    def alloc(self, size: int) -> int:
        """The address; 0 if there is no such memory."""
        if size <= 0:
            return 0
        try:
            pages = mmap.mmap(-1, size)
        except (OSError, ValueError, OverflowError):
            return 0
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        self._pages[address] = pages
        return address

    def free(self, address: int) -> int:
        return FREED if self._pages.pop(address, None) is not None else NOT_OURS


def bind_to_numa_node(node: int) -> None:
    """Nothing: nodes lend memory where they run, and the kernel places the caller's own."""


def get_alloc_func_addr() -> int:
    """The address of an allocator for torch's pluggable one. malloc's, since host memory needs no registration."""
    return _address_of("malloc")


def get_free_func_addr() -> int:
    return _address_of("free")


def _address_of(name: str) -> int:
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0


class BufferLeaseView:
    """The type of a lease's memory before Mooncake gave out memoryviews; it is one now."""

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer


class BufferLease:
    """A buffer of a pool, until it is released or forgotten."""

    def __init__(self, pool: BufferPool, region: mmap.mmap, size: int) -> None:
        self._pool = pool
        self._region: mmap.mmap | None = region
        self.size = size
        self.ptr = ctypes.addressof(ctypes.c_char.from_buffer(region))
        self._views: list[weakref.ref[Any]] = []

    @property
    def buffer(self) -> memoryview:
        if self._region is None:
            raise RuntimeError("the lease has been released")
        if not self.size:
            return memoryview(bytearray())
        # ctypes owns the view's memory, so that its lifetime shows whether the view is still used.
        window = (ctypes.c_ubyte * self.size).from_address(self.ptr)
        self._views.append(weakref.ref(window))
        return memoryview(window).cast("B")

    def release(self) -> None:
        self._views = [view for view in self._views if view() is not None]
        if self._views:
            raise RuntimeError("the buffer cannot be released while it has exported views")
        region, self._region = self._region, None
        if region is not None:
            self._pool._take_back(region)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        region, self._region = getattr(self, "_region", None), None
        if region is not None:
            self._pool._take_back(region)


class BufferPool:
    """Buffers of size classes that double, kept for the next caller. `max_bytes` and `max_regions` bound what the pool
    has mapped; 0 and None are no bound."""

    def __init__(
        self,
        store: object,
        max_bytes: int = 0,
        min_size_class: int = 65_536,
        max_size_class: int | None = None,
        alignment: int = 8 << 20,
        block_on_exhaustion: bool = True,
        default_timeout: float | None = None,
        max_regions: int | None = None,
        prewarm_size: int | None = None,
        prewarm_count: int = 0,
    ) -> None:
        if alignment <= 0 or alignment & (alignment - 1):
            raise RuntimeError(f"alignment must be a power of two, not {alignment}")
        self._store = store
        self._max_bytes = max_bytes
        self._least = max(min_size_class, mmap.PAGESIZE)
        self._blocks = block_on_exhaustion
        self._default_timeout = default_timeout
        self._max_regions = max_regions
        self._changed = threading.Condition(threading.RLock())
        self._free: dict[int, list[mmap.mmap]] = {}
        self._mapped_bytes = 0
        self._mapped = 0
        self._leased = 0
        if prewarm_size is not None:
            self.prewarm(prewarm_size, prewarm_count)

    def acquire(self, size: int, block: bool | None = None, timeout: float | None = None) -> BufferLease:
        blocks = self._blocks if block is None else bool(block)
        seconds = self._default_timeout if timeout is None else float(timeout)
        length = self._class_of(size)
        deadline = None if seconds is None else now_seconds() + seconds
        with self._changed:
            while (region := self._taken(length)) is None:
                left = None if deadline is None else deadline - now_seconds()
                if not blocks or (left is not None and left <= 0) or not self._changed.wait(left):
                    raise RuntimeError(f"the buffer pool is exhausted: no {length:,} bytes are free")
            self._leased += 1
        return BufferLease(self, region, size)

    buffer = acquire

    def prewarm(self, size: int, count: int) -> None:
        """Map buffers ahead."""
        length = self._class_of(size)
        with self._changed:
            for _ in range(count):
                region = self._map(length)
                if region is not None:
                    self._free.setdefault(length, []).append(region)

    def _class_of(self, size: int) -> int:
        if not 0 <= size <= MOST_BYTES or (self._max_bytes and size > max(self._max_bytes, self._least)):
            raise RuntimeError(f"{size:,} bytes are over the pool's capacity")
        return self._least if size <= self._least else 1 << (size - 1).bit_length()

    def _taken(self, length: int) -> mmap.mmap | None:
        waiting = self._free.get(length)
        return waiting.pop() if waiting else self._map(length)

    def _map(self, length: int) -> mmap.mmap | None:
        if self._max_regions is not None and self._mapped >= self._max_regions:
            return None
        if self._max_bytes and self._mapped_bytes + length > max(self._max_bytes, length):
            return None
        self._mapped += 1
        self._mapped_bytes += length
        return mmap.mmap(-1, length)

    def _take_back(self, region: mmap.mmap) -> None:
        with self._changed:
            self._free.setdefault(len(region), []).append(region)
            self._leased -= 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            if self._leased:
                raise RuntimeError(f"the buffer pool has {self._leased} active leases")
            self._free.clear()
