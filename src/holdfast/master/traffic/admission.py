"""Who may have a connection: bounds for all, for one address and for one identity, and places kept for the cluster.

The life of a connection here:
1. It arrives, and has not said who it is. There is room for few of these: the next one takes the place of the oldest,
   which has had the most time. So half-open connections keep nobody out who greets at once.
2. It greets, and counts for its address and its identity. Clients have all places but the reserved ones.
3. If a client would not get one, nodes, masters and operators are let in all the same. Where everybody has all roles,
   nobody can be told from them by name: a newcomer is let in on trial, may send what they send, and stays if it does.
4. It leaves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.errors import TryAgain
from holdfast.identity.identities import Identity
from holdfast.identity.roles import ALL_ROLES, Role
from holdfast.messages.of_sessions import GiveSign
from holdfast.messages.requests import GetStatus, ListNodes, ListSegments
from holdfast.messages.shapes import Message

MAX_CONNECTIONS = 20_000
RESERVED_ROLES = frozenset({Role.NODE, Role.MASTER, Role.OPERATOR})
RESERVED = 256
"""Places for nodes, masters and operators, if there are eight times as many in all."""
UNGREETED = 512
"""The most connections that have not said who they are: at 4 KiB each, 2 MiB."""
SPARE_DESCRIPTORS = 1_024
"""Descriptors for everything else: the log, snapshots, HTTP, and as many connections as the kernel hands over at once
to be refused (the length of its queue)."""
ON_TRIAL = frozenset({GiveSign, GetStatus, ListNodes, ListSegments})
"""What operators and nodes send before anything that shows who they are."""

PeerT = TypeVar("PeerT")


@dataclass(frozen=True, slots=True)
class Caps:
    """The most connections."""

    total: int = MAX_CONNECTIONS
    of_address: int = 0
    """From one address; 0: three quarters of what clients may have."""
    of_identity: int = 0
    """Of one identity among several; 0: the same."""

    def within(self, descriptors: int) -> Caps:
        """The same, as far as the process may have so many descriptors."""
        spare = min(SPARE_DESCRIPTORS, descriptors // 4)
        return Caps(max(1, min(self.total, descriptors - spare)), self.of_address, self.of_identity)

    @property
    def reserved(self) -> int:
        return min(RESERVED, self.total // 8)

    @property
    def of_clients(self) -> int:
        return self.total - self.reserved

    @property
    def ungreeted(self) -> int:
        return max(1, min(UNGREETED, self.total // 4))

    def of_one(self, given: int) -> int:
        return given or max(1, self.of_clients * 3 // 4)


class Admission(Generic[PeerT]):
    def __init__(self, caps: Caps) -> None:
        self.caps = caps
        self.refused: Counter[str] = Counter()
        """Connections that were refused or displaced, by the bound."""
        self._address: dict[PeerT, str] = {}
        self._ungreeted: dict[PeerT, None] = {}
        """In the order in which they came."""
        self._identity: dict[PeerT, str] = {}
        """Clients only."""
        self._of_address: Counter[str] = Counter()
        self._of_identity: Counter[str] = Counter()

    @property
    def clients(self) -> int:
        """Clients that have greeted."""
        return len(self._identity)

    def arrive(self, peer: PeerT, address: str) -> PeerT | None:
        """A connection was accepted. Returns the one that it displaces."""
        caps = self.caps
        oldest = None
        if len(self._address) >= caps.total or len(self._ungreeted) >= caps.ungreeted:
            oldest = next(iter(self._ungreeted), None)
            if oldest is None:
                raise self._too_many("total", f"{caps.total:,} connections are open")
            self.refused["ungreeted"] += 1
            self.leave(oldest)
        self._address[peer] = address
        self._ungreeted[peer] = None
        return oldest

    def greet(self, peer: PeerT, identity: Identity, is_one_of_several: bool) -> bool:
        """It has said who it is. False: it is let in on trial."""
        address = self._address.get(peer)
        if address is None:
            return True  # It has lost its place already, and is being closed.
        has_reserved = bool(identity.roles & RESERVED_ROLES)
        if is_one_of_several and has_reserved and identity.roles != ALL_ROLES:
            self._ungreeted.pop(peer, None)
            return True
        full = self._full_for(address, identity.name if is_one_of_several else None)
        if full is not None:
            if has_reserved:
                return False
            raise self._too_many(*full)
        self._ungreeted.pop(peer, None)
        self._identity[peer] = identity.name
        self._of_identity[identity.name] += 1
        self._of_address[address] += 1
        return True

    def _full_for(self, address: str, name: str | None) -> tuple[str, str] | None:
        """The bound that keeps one more client out, and how to say so."""
        caps = self.caps
        if len(self._identity) >= caps.of_clients:
            return "clients", f"{caps.of_clients:,} connections of clients are open"
        if (count := self._of_address[address]) >= caps.of_one(caps.of_address):
            return "address", f"{count:,} connections from {address} are open"
        if name is not None and (count := self._of_identity[name]) >= caps.of_one(caps.of_identity):
            return "identity", f"{count:,} connections of {name!r} are open"
        return None

    def is_proven(self, peer: PeerT, request: Message) -> bool:
        """Whether a request of a connection on trial shows that it is a node, a master or an operator."""
        needs = getattr(type(request), "needs", None)
        if needs in RESERVED_ROLES:
            self._ungreeted.pop(peer, None)
            return True
        if type(request) not in ON_TRIAL:
            raise self._too_many(
                "trial", "as many connections of clients are open as there may be, or from one address"
            )
        return False

    def leave(self, peer: PeerT) -> None:
        address = self._address.pop(peer, None)
        self._ungreeted.pop(peer, None)
        name = self._identity.pop(peer, None)
        if address is not None and name is not None:
            _count_down(self._of_address, address)
            _count_down(self._of_identity, name)

    def _too_many(self, bound: str, text: str) -> TryAgain:
        self.refused[bound] += 1
        return TryAgain(f"{text}: no more are let in; nothing was changed. Close some, or try again later")


def _count_down(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
