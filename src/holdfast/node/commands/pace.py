"""A node's copy rate. Pure: it computes how long to wait, and never waits."""

from __future__ import annotations

import threading

BURST_SECONDS = 0.25


class Pace:
    """Bytes per second over all copies of a node; 0: no limit."""

    def __init__(self, bytes_per_second: int = 0) -> None:
        self.bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._paid_until = 0.0

    def pause_after(self, size_bytes: int, now: float) -> float:
        """Seconds to wait after copying these bytes, so that the mean stays below the rate."""
        rate = self.bytes_per_second
        if not rate:
            return 0.0
        with self._lock:
            self._paid_until = max(self._paid_until, now) + size_bytes / rate
            return max(0.0, self._paid_until - now - BURST_SECONDS)
