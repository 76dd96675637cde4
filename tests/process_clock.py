"""A clock that stands still until the test turns it."""

from __future__ import annotations


class ProcessClock:
    now_ns = 0

    def pass_seconds(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)
