"""Nodes that did not answer in time: an object that lies on them alone is a miss at once, not a wait.

The first request that meets a dead, stopped or cut-off node pays for finding out. From then on the node is probed in
the background, by one small request at a time, and no other request waits for it until it has answered (ADR 41). Every
step is one dict operation, so that threads need no lock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from holdfast.messages.shapes import SegmentPlace

FIRST_PROBE_SECONDS = 0.05
LONGEST_PROBE_SECONDS = 2.0
"""The longest back-off between two probes of a node. It doubles: a node that is away for long costs next to nothing."""


@dataclass(slots=True)
class Failing:
    place: SegmentPlace
    """One of its segments."""
    probe_at: float
    pause: float


class FailingNodes:
    __slots__ = ("by_address",)

    def __init__(self) -> None:
        self.by_address: dict[str, Failing] = {}
        """Empty most of the time, so callers check this first."""

    def __bool__(self) -> bool:
        return bool(self.by_address)

    def __contains__(self, address: object) -> bool:
        return address in self.by_address

    def failed(self, place: SegmentPlace, now: float) -> None:
        """Note that the node did not answer a request or a probe."""
        known = self.by_address.get(place.data_address)
        pause = FIRST_PROBE_SECONDS if known is None else min(2 * known.pause, LONGEST_PROBE_SECONDS)
        self.by_address[place.data_address] = Failing(place, now + pause, pause)

    def answered(self, address: str) -> None:
        self.by_address.pop(address, None)

    def keep_only(self, addresses: Collection[str]) -> None:
        """Forget the others: nodes that have left the cluster or were restarted."""
        for address in list(self.by_address):
            if address not in addresses:
                self.by_address.pop(address, None)

    def next_probe(self) -> Failing | None:
        """The node that is to be probed next."""
        return min(list(self.by_address.values()), key=lambda each: each.probe_at, default=None)
