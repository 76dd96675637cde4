"""An array that grows without a copy, for columns of millions of rows (ADR 65).

It lies in memory of its own, whose pages the kernel moves when it grows (mremap): no second copy, no pause, and no hole
in the heap where the smaller array was. Pages are taken as they are first written.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt


class GrowingArray:
    """`array` is all of it, zero at first; `cells` is the same as a memoryview, which is quicker for single values."""

    __slots__ = ("_dtype", "array", "cells", "raw")

    def __init__(self, length: int, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self.raw = self._zeros(length)
        """Its bytes."""
        self._view()

    def _zeros(self, length: int) -> mmap.mmap:
        return mmap.mmap(-1, length * self._dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def _view(self) -> None:
        self.array: npt.NDArray[Any] = np.frombuffer(self.raw, self._dtype)
        self.cells = self.array.data

    def grow(self, length: int) -> None:
        """Make room for this many. Views are of the memory before, which is why nobody should have one."""
        del self.cells, self.array
        try:
            self.raw.resize(length * self._dtype.itemsize)
        except BufferError:
            # Somebody does have one, as the traceback of an exception may: that memory stays as it is.
            before, self.raw = self.raw, self._zeros(length)
            self.raw[: len(before)] = before[:]
        self._view()
