"""Memory that callers name by its address, on the host or on a CUDA device, as buffers that the client takes.

Engines hand over plain integers. Such an address may be host memory, memory of a device (then the CUDA driver copies
it), or nothing that is mapped here, which would end the process if it were touched: that one is refused. Ranges that
were registered are asked about once; any other range is asked about at every use, by a system call.
"""

from __future__ import annotations

import bisect
import ctypes
import enum
import errno
import functools
import mmap
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.client.buffers import memory_at
from holdfast.errors import BadValue, TryAgain

DRIVERS = ("libcuda.so.1", "libcuda.so")
SUCCESS = 0
CONTEXT, MEMORY_TYPE, DEVICE_ORDINAL = 1, 2, 9
"""CU_POINTER_ATTRIBUTE_*, as asked of cuPointerGetAttribute."""
DEVICE_TYPE = 2
"""CU_MEMORYTYPE_DEVICE. Managed memory, which the host can read, is reported as host or unified memory."""


class BadAddress(BadValue):
    """The address is not mapped in this process, or lies on a device that cannot be reached."""


class DeviceCopyFailed(TryAgain):
    """The CUDA driver did not copy."""

    code = "device_copy_failed"


class Place(enum.Enum):
    HOST = "host"
    DEVICE = "device"
    NOWHERE = "nowhere"


class CudaDriver:
    """The functions of libcuda that are used. `library` is the loaded library, or anything that has them."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._primary: dict[int, ctypes.c_void_p] = {}
        for name in ("cuPointerGetAttribute", "cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2", "cuCtxPushCurrent_v2"):
            getattr(library, name)  # AttributeError now, rather than in the middle of a read.

    def is_device(self, address: int) -> bool:
        kind = ctypes.c_uint(0)
        asked = self._attribute(kind, MEMORY_TYPE, address)
        # Host memory that CUDA never saw is an invalid value to it, and a driver that nobody initialised knows none.
        return bool(asked == SUCCESS and kind.value == DEVICE_TYPE)

    def _attribute(self, found: Any, attribute: int, address: int) -> int:
        return int(
            self._library.cuPointerGetAttribute(
                ctypes.byref(found), ctypes.c_int(attribute), ctypes.c_ulonglong(address)
            )
        )

    def read(self, address: int, size: int) -> bytearray:
        """The device's bytes, in host memory."""
        staged = bytearray(size)
        host = (ctypes.c_char * size).from_buffer(staged)
        self._copy(
            address,
            lambda: self._library.cuMemcpyDtoH_v2(
                ctypes.c_void_p(ctypes.addressof(host)), ctypes.c_ulonglong(address), ctypes.c_size_t(size)
            ),
        )
        return staged

    def write(self, address: int, data: memoryview) -> None:
        """Host memory, which must be writable, to the device."""
        host = (ctypes.c_char * data.nbytes).from_buffer(data)
        self._copy(
            address,
            lambda: self._library.cuMemcpyHtoD_v2(
                ctypes.c_ulonglong(address), ctypes.c_void_p(ctypes.addressof(host)), ctypes.c_size_t(data.nbytes)
            ),
        )

    def _copy(self, address: int, copy: Callable[[], int]) -> None:
        """Under the context that the address belongs to: an engine's background thread may have none."""
        self._check("cuCtxPushCurrent", self._library.cuCtxPushCurrent_v2(self._context_of(address)), address)
        try:
            self._check("cuMemcpy", copy(), address)
        finally:
            self._library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def _context_of(self, address: int) -> ctypes.c_void_p:
        context = ctypes.c_void_p()
        if self._attribute(context, CONTEXT, address) == SUCCESS and context.value:
            return context
        # Memory that was mapped piece by piece belongs to no context; any of its device's will do.
        ordinal = ctypes.c_int(0)
        self._check("cuPointerGetAttribute", self._attribute(ordinal, DEVICE_ORDINAL, address), address)
        if ordinal.value not in self._primary:
            primary = ctypes.c_void_p()
            retained = self._library.cuDevicePrimaryCtxRetain(ctypes.byref(primary), ordinal)
            self._check("cuDevicePrimaryCtxRetain", retained, address)
            self._primary[ordinal.value] = primary
        return self._primary[ordinal.value]

    @staticmethod
    def _check(what: str, result: int, address: int) -> None:
        if result != SUCCESS:
            raise DeviceCopyFailed(f"{what} for device memory at {address:#x} failed with CUDA error {result}")


@functools.cache
def cuda_driver() -> CudaDriver | None:
    """This machine's driver; None where there is none."""
    for name in DRIVERS:
        try:
            return CudaDriver(ctypes.CDLL(name))
        except (OSError, AttributeError):
            continue
    return None


_libc = ctypes.CDLL(None, use_errno=True)


def is_mapped(address: int, size: int) -> bool:
    """Are the first and the last page of the range mapped in this process?"""
    if address <= 0 or size <= 0 or address + size > 1 << 63:
        return False
    seen = (ctypes.c_ubyte * 1)()
    for page in {address // mmap.PAGESIZE, (address + size - 1) // mmap.PAGESIZE}:
        refused = _libc.mincore(ctypes.c_void_p(page * mmap.PAGESIZE), ctypes.c_size_t(1), seen) != 0
        # EAGAIN: the kernel is short of memory just now, which says nothing about the range.
        if refused and ctypes.get_errno() != errno.EAGAIN:
            return False
    return True


@dataclass(frozen=True, slots=True)
class DeviceTarget:
    """The destination of an object's bytes."""

    view: memoryview
    finish: Callable[[], None] | None = None
    """Called when the view has been filled: brings the bytes to the device."""


class CallersMemory:
    """Ranges of addresses that a caller registered, and access to these and any others."""

    def __init__(self, driver: CudaDriver | None) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._registered: list[tuple[int, Place]] = []
        """Where each range ends, and where it lies; in the order of `_starts`."""

    def register(self, address: int, size: int) -> bool:
        """False: it overlaps a range that is registered. BadAddress for what cannot be reached."""
        place = self._look(address, size)
        with self._lock:
            index = bisect.bisect_right(self._starts, address)
            before = index > 0 and self._registered[index - 1][0] > address
            behind = index < len(self._starts) and self._starts[index] < address + size
            if before or behind:
                return False
            self._starts.insert(index, address)
            self._registered.insert(index, (address + size, place))
            return True

    def unregister(self, address: int) -> bool:
        with self._lock:
            index = bisect.bisect_left(self._starts, address)
            if index == len(self._starts) or self._starts[index] != address:
                return False
            del self._starts[index], self._registered[index]
            return True

    def room_at(self, address: int) -> int | None:
        """How many bytes the registered range goes on from here; None: it is in none."""
        with self._lock:
            index = bisect.bisect_right(self._starts, address)
            end = self._registered[index - 1][0] if index else 0
            return end - address if end > address else None

    def place_of(self, address: int, size: int) -> Place:
        with self._lock:
            index = bisect.bisect_right(self._starts, address)
            if index and self._registered[index - 1][0] >= address + size:
                return self._registered[index - 1][1]
        return self._look(address, size)

    def _look(self, address: int, size: int) -> Place:
        if self._driver is not None and self._driver.is_device(address):
            return Place.DEVICE
        if is_mapped(address, size):
            return Place.HOST
        raise BadAddress(
            f"{size:,} bytes at {address:#x} are not mapped in this process; nothing was copied. "
            + ("" if self._driver else "If that is device memory: this process finds no CUDA driver (libcuda.so.1)")
        )

    def source(self, address: int, size: int) -> memoryview:
        """The bytes at this address, to be read."""
        if self.place_of(address, size) is Place.HOST:
            return memory_at(address, size, writable=False)
        assert self._driver is not None
        return memoryview(self._driver.read(address, size))

    def target(self, address: int, size: int) -> DeviceTarget:
        """Memory to be filled, which ends up at this address."""
        if self.place_of(address, size) is Place.HOST:
            return DeviceTarget(memory_at(address, size))
        driver = self._driver
        assert driver is not None
        staged = memoryview(bytearray(size))
        return DeviceTarget(staged, lambda: driver.write(address, staged))
