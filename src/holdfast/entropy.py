"""Chance as the shells draw it: numbers that nobody else has, and secrets.

The simulator draws them from its seed instead, so that a run can be had again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeAlias

DrawBytes: TypeAlias = Callable[[int], bytes]

SYSTEM_CHANCE: DrawBytes = secrets.token_bytes
_draw: DrawBytes = SYSTEM_CHANCE


def draw_from(source: DrawBytes) -> None:
    """From now on chance is what this says."""
    global _draw
    _draw = source


def fresh_bytes(count: int) -> bytes:
    return _draw(count)


def fresh_id() -> int:
    """A number of 63 bits that is taken by nobody, and is not 0."""
    return int.from_bytes(_draw(8), "little") >> 1 | 1
