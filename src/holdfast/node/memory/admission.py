"""Which connections a node keeps: bounds for strangers, for each address, and for the process's descriptors. Pure.

A connection is a stranger until it has shown a ticket or a grant that is good. Strangers have 5 s and 4 KiB, and there
are few of them at once: one more makes the oldest of the busiest address go, so that a flood displaces itself. Known
peers may stay idle for long, but one that has been idle for a while gives way when there is no room for another.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Protocol, TypeVar

STRANGER_SECONDS = 5.0
STRANGER_BYTES = 4 << 10
MOST_STRANGERS = 64
ADDRESS_SHARE = 0.75
"""Of the connections that a node serves, those of one address may be this share."""
GIVES_WAY_SECONDS = 10.0
RESERVED_DESCRIPTORS = 256
"""For the node's session, its orders, the files of its disk and its memory."""


class AdmittedPeer(Protocol):
    address: str
    is_known: bool
    since: float
    """When it came, or when its last request ended."""
    busy: bool
    """A request of it is being served."""

    @property
    def is_leaving(self) -> bool:
        """It was told to go."""


PeerT = TypeVar("PeerT", bound=AdmittedPeer)


def connections_within(descriptors: int, wanted: int) -> int:
    """How many known peers each of a node's two sockets may have with this many descriptors for the process."""
    return max(1, min(wanted, (descriptors - RESERVED_DESCRIPTORS) // 2 - MOST_STRANGERS))


def displaced_stranger(peers: Iterable[PeerT]) -> PeerT | None:
    """Who must go before one more stranger comes."""
    strangers = [peer for peer in peers if not peer.is_known and not peer.is_leaving]
    if len(strangers) < MOST_STRANGERS:
        return None
    return _oldest_of_the_busiest(strangers)


def has_room(peers: Collection[PeerT], address: str, most: int) -> bool:
    """May one more peer of this address be known?"""
    known = _known(peers)
    return len(known) < most and _count(known, address) < of_one_address(most)


def displaced_peer(peers: Collection[PeerT], address: str, most: int, now: float) -> PeerT | None:
    """A known peer that has been idle for a while, to make room for one of this address; None: nobody gives way."""
    known = _known(peers)
    idle = [peer for peer in known if not peer.busy and now >= peer.since + GIVES_WAY_SECONDS]
    if _count(known, address) >= of_one_address(most):
        idle = [peer for peer in idle if peer.address == address]
    return _oldest_of_the_busiest(idle) if idle else None


def of_one_address(most: int) -> int:
    return math.ceil(ADDRESS_SHARE * most)


def _known(peers: Iterable[PeerT]) -> list[PeerT]:
    return [peer for peer in peers if peer.is_known and not peer.is_leaving]


def _count(peers: Iterable[PeerT], address: str) -> int:
    return sum(peer.address == address for peer in peers)


def _oldest_of_the_busiest(peers: Collection[PeerT]) -> PeerT:
    counts = Counter(peer.address for peer in peers)
    return min(peers, key=lambda peer: (-counts[peer.address], peer.since))
