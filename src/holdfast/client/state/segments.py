"""How each segment is reached, according to the master's last list; `topology` is the number of that list."""

from __future__ import annotations

from holdfast.ids import SegmentName
from holdfast.messages.requests import SegmentList
from holdfast.messages.shapes import SegmentPlace


class Segments:
    __slots__ = ("places", "seen", "told_at", "topology", "trusted_after", "unverified")

    def __init__(self) -> None:
        self.unverified: frozenset[int] = frozenset()
        """Handles of segments whose bytes may differ from a restored catalogue: their objects are copied and compared
        with their checksums, whatever the client's setting."""
        self.trusted_after = 0.0
        """A lease that ends by then may be older than the verification of its segment, so it is not trusted either."""
        self.places: dict[int, SegmentPlace] = {}
        self.told_at = 0.0
        """When the master last listed the segments."""
        self.topology = -1
        self.seen = -1
        """The number that the master's latest reply carried."""

    @property
    def stale(self) -> bool:
        return self.seen != self.topology or self.topology == -1

    def doubts(self, handle: int, until: float) -> bool:
        """May the object of a lease that ends then have left its place, or never have been there (I2)?"""
        return until <= self.trusted_after or handle in self.unverified

    def update(self, told: SegmentList, now: float) -> set[int]:
        """Take over the master's list. Returns the handles that no longer exist."""
        if told.doubtful_ms:
            self.trusted_after = max(self.trusted_after, now + told.doubtful_ms / 1000)
        gone = self.places.keys() - {place.handle for place in told.segments}
        self.unverified = frozenset(place.handle for place in told.segments if place.unverified)
        self.places = {place.handle: place for place in told.segments}
        self.topology = self.seen = told.topology
        self.told_at = now
        return gone

    def names_by_address(self) -> dict[str, set[SegmentName]]:
        """The segments of each node, by the address of the node."""
        found: dict[str, set[SegmentName]] = {}
        for place in self.places.values():
            found.setdefault(place.data_address, set()).add(place.name)
        return found

    def clear(self) -> None:
        self.places = {}
        self.unverified = frozenset()
        self.trusted_after = 0.0
        self.topology = self.seen = -1
