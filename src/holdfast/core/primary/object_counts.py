"""Objects that were found, missed, stored and evicted since this primary began: for metrics, nothing depends on it."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from holdfast.core.catalogue.catalogue import Catalogue, Slots
from holdfast.core.catalogue.holdings import memory_bytes_of


class EvictionReason(StrEnum):
    WATERMARK = "watermark"
    """Memory was fuller than the high watermark."""
    PUT = "put"
    """A put needed the room."""
    QUOTA = "quota"
    """Its tenant was beyond a limit."""
    DISK = "disk"
    """The disk that held its only replica was full."""


class ObjectCounts:
    """Plain attributes: one more addition to a read costs 30 ns."""

    __slots__ = ("evicted", "evicted_bytes", "hit_bytes", "hits", "misses", "stored", "stored_bytes")

    def __init__(self) -> None:
        self.hits = 0
        """Keys that a read located; a client that has a lease reads without asking."""
        self.hit_bytes = 0
        self.misses = 0
        self.stored = 0
        self.stored_bytes = 0
        self.evicted: Counter[EvictionReason] = Counter()
        self.evicted_bytes: Counter[EvictionReason] = Counter()
        """Memory, of all replicas; of a disk's objects their size there."""

    def count_evicted(self, catalogue: Catalogue, slots: Slots, reason: EvictionReason) -> None:
        """These objects are about to be evicted from the cache."""
        self.evicted[reason] += len(slots)
        held = catalogue.sizes[slots] if reason is EvictionReason.DISK else memory_bytes_of(catalogue, slots)
        self.evicted_bytes[reason] += int(held.sum())
