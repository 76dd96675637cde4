"""How tests wait: for a condition, with a deadline, never for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_until(condition: Callable[[], Found], deadline_s: float = 20.0, what: str = "") -> Found:
    """What the condition gives, once that is true in a boolean sense; AssertionError at the deadline."""
    give_up_at = time.monotonic() + deadline_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > give_up_at:
            raise AssertionError(f"not within {deadline_s:g} s: {what or condition}")
        time.sleep(0.01)
