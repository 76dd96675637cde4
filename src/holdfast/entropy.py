"""Randomness for the shells: unique numbers, and secrets.

The simulator draws them from its seed instead, so that a run can be replayed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

DrawBytes: TypeAlias = Callable[[int], bytes]

SYSTEM_CHANCE: DrawBytes = os.urandom
_draw: DrawBytes = SYSTEM_CHANCE


def draw_from(source: DrawBytes) -> None:
    """Take all random bytes from this source from now on."""
    global _draw
    _draw = source


def fresh_bytes(count: int) -> bytes:
    return _draw(count)


def fresh_id() -> int:
    """A unique number of 63 bits, not 0."""
    return int.from_bytes(_draw(8), "little") >> 1 | 1
