"""How each segment is reached, as the master last told; `topology` is the number of that telling."""

from __future__ import annotations

from holdfast.ids import SegmentName
from holdfast.messages.requests import SegmentList
from holdfast.messages.shapes import SegmentPlace


class Segments:
    __slots__ = ("places", "seen", "told_at", "topology", "trusted_after", "unverified")

    def __init__(self) -> None:
        self.unverified: frozenset[int] = frozenset()
        """Handles of those whose bytes may differ from what a restored catalogue says: they are copied and compared
        with their checksums, whatever the client was told to do."""
        self.trusted_after = 0.0
        """Leases that end by then may be older than the verification of their segment: they are no better."""
        self.places: dict[int, SegmentPlace] = {}
        self.told_at = 0.0
        """When the master last said where they are."""
        self.topology = -1
        self.seen = -1
        """The number that the master's latest reply carried."""

    @property
    def stale(self) -> bool:
        return self.seen != self.topology or self.topology == -1

    def doubts(self, handle: int, until: float) -> bool:
        """May what a lease names, which ends then, lie in its place no more, or never have (I2)?"""
        return until <= self.trusted_after or handle in self.unverified

    def update(self, told: SegmentList, now: float) -> set[int]:
        """Take over what the master says. Gives the handles that are there no more."""
        if told.doubtful_ms:
            self.trusted_after = max(self.trusted_after, now + told.doubtful_ms / 1000)
        gone = self.places.keys() - {place.handle for place in told.segments}
        self.unverified = frozenset(place.handle for place in told.segments if place.unverified)
        self.places = {place.handle: place for place in told.segments}
        self.topology = self.seen = told.topology
        self.told_at = now
        return gone

    def names_by_address(self) -> dict[str, set[SegmentName]]:
        """The segments of each node, by where it is reached."""
        found: dict[str, set[SegmentName]] = {}
        for place in self.places.values():
            found.setdefault(place.data_address, set()).add(place.name)
        return found

    def clear(self) -> None:
        self.places = {}
        self.unverified = frozenset()
        self.trusted_after = 0.0
        self.topology = self.seen = -1
