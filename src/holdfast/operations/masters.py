"""How clients and nodes find the primary: the three kinds of address.

A list of addresses is tried in turn, any of which may name the primary; with a coordination URL, coordination is asked
who leads each time the primary is lost; a service name is looked up once. A standby's hint comes before all of these.
"""

from __future__ import annotations

import math

from holdfast.coordination.interface import CoordinationLost
from holdfast.coordination.urls import parse_location, redacted
from holdfast.errors import Unreachable
from holdfast.transport.addresses import master_addresses

LOOK_SECONDS = 2.0
"""Timeout for asking coordination who leads, unless the caller's is shorter."""
ONE_MASTER_SECONDS = 1.0
"""Timeout for connecting to one master, before the next is tried."""
LOST_SHARE = 0.15
"""The share of that timeout that the master gets which was just lost; it doubles each time."""


class Masters:
    """For one thread at a time; `candidates` may block to ask coordination."""

    def __init__(self, address: str) -> None:
        self.text = address
        self._given: list[str] = []
        self._url = ""
        self._hint = ""
        self._turn = 0
        self._lost = ""
        self._lost_share = 1.0
        self.direction: str
        """Any master or coordination address, used to learn which local interface faces the cluster."""
        if "://" in address:
            place = parse_location(address, "holdfast")
            self._once = bool(place.service)
            self._url = address
            self.direction = place.hosts[0] if place.hosts else "127.0.0.1:7070"
        else:
            self._given = master_addresses(address)
            self.direction = self._given[0]

    @property
    def looks_up(self) -> bool:
        return bool(self._url)

    def candidates(self, within_s: float = math.inf) -> list[str]:
        """Addresses to try now, in this order. Unreachable if coordination knows no primary, or has not answered within
        this time: a caller's timeout covers everything."""
        hint, self._hint = self._hint, ""
        known = self._given or [self._look_up(min(LOOK_SECONDS, within_s))]
        turned = known[self._turn % len(known) :] + known[: self._turn % len(known)]
        return [hint, *(address for address in turned if address != hint)] if hint else turned

    def _look_up(self, within_s: float) -> str:
        from holdfast.coordination.leader_lookup import find_leader

        if within_s <= 0:
            raise Unreachable("the deadline passed before coordination was asked who leads; nothing was sent")
        try:
            leader = find_leader(self._url, within_s)
        except CoordinationLost as error:
            raise Unreachable(f"no primary is known: {error}") from None
        if leader is None:
            raise Unreachable(f"{redacted(self._url)} names no primary now; nothing was sent")
        if self._once:
            self._given = [leader.address]
        return leader.address

    def hinted(self, address: str) -> None:
        """Try this address first: a master named it as the primary."""
        self._hint = address

    def failed(self) -> None:
        """The first one failed: begin with the next one."""
        self._turn += 1

    def lost(self, address: str) -> None:
        """The connection to this one ended: try it last. A stopped process accepts connections, and never replies."""
        if address in self._given:
            self._turn = self._given.index(address) + 1
        if address != self._lost:
            self._lost, self._lost_share = address, LOST_SHARE

    def patience(self, address: str, usual_seconds: float = ONE_MASTER_SECONDS) -> float:
        """Timeout for connecting to this one, in seconds. Until another master takes over, the standbys still name the
        one that has stopped: wait for that one only briefly, and ask the standbys again soon. The only master there is
        gets all the time."""
        if address != self._lost or self._given == [address]:
            return usual_seconds
        share, self._lost_share = self._lost_share, min(2 * self._lost_share, 1.0)
        return share * usual_seconds

    def found(self) -> None:
        """A master has accepted us."""
        self._lost = ""


class Round:
    """One round of trying all candidates, each once. An address that one of them names is tried next."""

    def __init__(self, addresses: list[str]) -> None:
        self._waiting = list(addresses)
        self._tried: set[str] = set()

    def next(self) -> str | None:
        """The next address to try; None when all have been tried."""
        while self._waiting:
            address = self._waiting.pop(0)
            if address not in self._tried:
                self._tried.add(address)
                return address
        return None

    def hinted(self, address: str) -> None:
        if address:
            self._waiting.insert(0, address)
