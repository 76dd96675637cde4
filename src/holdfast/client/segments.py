"""How each segment is reached, as the master last told; `topology` is the number of that telling."""

from __future__ import annotations

from holdfast.messages.requests import SegmentList
from holdfast.messages.shapes import SegmentPlace


class Segments:
    __slots__ = ("places", "seen", "topology", "unverified")

    def __init__(self) -> None:
        self.unverified: frozenset[int] = frozenset()
        """Handles of those whose bytes may differ from what a restored catalogue says: they are copied and compared
        with their checksums, whatever the client was told to do."""
        self.places: dict[int, SegmentPlace] = {}
        self.topology = -1
        self.seen = -1
        """The number that the master's latest reply carried."""

    @property
    def stale(self) -> bool:
        return self.seen != self.topology or self.topology == -1

    def update(self, told: SegmentList) -> set[int]:
        """Take over what the master says. Gives the handles that are there no more."""
        gone = self.places.keys() - {place.handle for place in told.segments}
        self.unverified = frozenset(place.handle for place in told.segments if place.unverified)
        self.places = {place.handle: place for place in told.segments}
        self.topology = self.seen = told.topology
        return gone

    def clear(self) -> None:
        self.places = {}
        self.unverified = frozenset()
        self.topology = self.seen = -1
