"""Keys that this process stored, with their sizes, so that LMCache can be told when the cluster has evicted them.

LMCache counts the objects reported as stored, per tenant (`cache_salt`). A cache with its own eviction must report
what is gone, or those counts only grow. The ledger is bounded: the oldest entries leave it, and are reported as gone.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key")


class Ledger(Generic[Key]):
    """For any thread. In the order in which the keys were last looked at."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._sizes: OrderedDict[Key, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sizes)

    def enter(self, keys: Sequence[Key], sizes: Sequence[int]) -> tuple[list[int], list[tuple[Key, int]]]:
        """How many bytes each of them adds to what was known, and the entries that had to leave."""
        added: list[int] = []
        left: list[tuple[Key, int]] = []
        with self._lock:
            for key, size in zip(keys, sizes, strict=True):
                added.append(0 if key in self._sizes else size)
                self._sizes[key] = self._sizes.get(key, size)
                self._sizes.move_to_end(key)
            while len(self._sizes) > self._most:
                left.append(self._sizes.popitem(last=False))
        return added, left

    def strike(self, keys: Iterable[Key]) -> list[tuple[Key, int]]:
        """Those of them that were in it, which they are no longer."""
        with self._lock:
            return [(key, self._sizes.pop(key)) for key in keys if key in self._sizes]

    def known(self, keys: Iterable[Key]) -> list[Key]:
        """Those of them that are in it."""
        with self._lock:
            return [key for key in keys if key in self._sizes]

    def oldest(self, count: int) -> list[Key]:
        """Those that nobody has looked at for longest; they go to the end."""
        with self._lock:
            some = [key for key, _ in zip(self._sizes, range(count), strict=False)]
            for key in some:
                self._sizes.move_to_end(key)
        return some
