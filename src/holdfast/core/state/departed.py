"""A bounded memory of keys that are gone and why, for `explain`."""

from __future__ import annotations

from collections import deque

from holdfast.core.rules import REMEMBERED_DEPARTED
from holdfast.instant import Instant


class Departed:
    """Remembers whole batches as they come, which costs the hot path one append."""

    __slots__ = ("_batches", "_held")

    def __init__(self) -> None:
        self._batches: deque[tuple[list[str], str, Instant]] = deque()
        self._held = 0

    def add(self, keys: list[str], cause: str, now: Instant) -> None:
        self._batches.append((keys, cause, now))
        self._held += len(keys)
        while self._held > REMEMBERED_DEPARTED and len(self._batches) > 1:
            self._held -= len(self._batches.popleft()[0])

    def last(self, key: str) -> tuple[str, Instant] | None:
        """(cause, when) of the key's latest departure."""
        for keys, cause, when in reversed(self._batches):
            if key in keys:
                return cause, when
        return None
