"""Fences: for each range that went from one tenant to another, since when proofs for it are good (ADR 55). Pure.

The primary has a fence raised before the next tenant gets the range, so that a ticket or a grant that an earlier one
kept opens nothing of the next one's bytes (I20), however long the proof is good otherwise. Proofs say when they were
given, by (epoch, index of the log), which only grows.
"""

from __future__ import annotations

from holdfast.core.space.range_map import RangeMap
from holdfast.ids import SegmentName

MOST_RANGES = 4_096
"""Of one segment. Beyond it neighbours are joined, and the earlier of them is refused proofs that were good: its
clients ask the master for others."""
MOST_SEGMENTS = 256


class Fences:
    """Changes replace what they change, so that other threads may look at the same time."""

    __slots__ = ("_maps", "floor")

    def __init__(self, floor: int = 0) -> None:
        """`floor`: no read with an older proof is good, whatever its range."""
        self.floor = floor
        self._maps: dict[SegmentName, RangeMap] = {}

    def __bool__(self) -> bool:
        return bool(self._maps)

    def since(self, segment: SegmentName, offset: int, length: int) -> int:
        """The latest fence in this range; 0 if there is none."""
        found = self._maps.get(segment)
        return 0 if found is None or length <= 0 else max(found.over(offset, length))

    def put_up(self, segment: SegmentName, offset: int, length: int, issued: int) -> None:
        found = self._maps.get(segment)
        changed = RangeMap(0) if found is None else found.copy()
        changed.put(offset, length, issued)
        while len(changed) > MOST_RANGES:
            changed = changed.coarsened()
        maps = {**self._maps, segment: changed}
        while len(maps) > MOST_SEGMENTS:  # Of earlier boots.
            oldest = next(iter(maps))
            self.floor = max(self.floor, *maps.pop(oldest).over(0, 1 << 62))
        self._maps = maps
