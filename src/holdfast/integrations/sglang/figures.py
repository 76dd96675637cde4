"""Pages and bandwidth of transfers, as SGLang's metrics collector takes them."""

from __future__ import annotations

import threading
from collections import deque

MOST_KEPT = 10_000
"""The most values kept per figure if nobody collects them."""


class TransferFigures:
    """Figures of reads and writes since the last `take`. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: deque[tuple[int, float]] = deque(maxlen=MOST_KEPT)
        self._written: deque[tuple[int, float]] = deque(maxlen=MOST_KEPT)

    def add(self, is_read: bool, pages: int, size_bytes: int, seconds: float) -> None:
        if pages and seconds > 0:
            with self._lock:
                (self._read if is_read else self._written).append((pages, size_bytes / seconds / (1 << 30)))

    def take(self) -> dict[str, list[float]]:
        """By the field names of SGLang's StorageMetrics; bandwidth in GiB/s."""
        with self._lock:
            read, written = list(self._read), list(self._written)
            self._read.clear()
            self._written.clear()
        return {
            "prefetch_pgs": [pages for pages, _ in read],
            "backup_pgs": [pages for pages, _ in written],
            "prefetch_bandwidth": [speed for _, speed in read],
            "backup_bandwidth": [speed for _, speed in written],
        }
