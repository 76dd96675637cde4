"""A client that tries its tickets and grants on bytes that they are not for (I20, ADR 48, ADR 55).

It keeps the tickets that it was given, and shows them for ranges beside theirs, for other segments, and long after they
have expired. It asks the nodes directly, as no honest client does. Whatever it gets is loot. While a ticket is good it
reads the ticket's own ranges again and again, and likewise what its grants are for, written or not, also when they have
ended: bytes that another tenant put, there since or still, are loot, too.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from holdfast.client.state.grants import WriteGrant
from holdfast.errors import HoldfastError
from holdfast.ids import SegmentName
from holdfast.messages.of_nodes import ReadBack
from holdfast.messages.rows import TicketRow
from holdfast.messages.shapes import SegmentPlace, Ticket
from holdfast.simulation.world.nodes import NodeMachine, ServedNode
from holdfast.transport.data_tcp import GrantedRange, WantedRange

MOST_KEPT = 24
"""The first ones, which will be the oldest."""
PIECE_BYTES = 64
MOST_TRIED = 64
"""The last ones, which others may have got since."""


@dataclass(slots=True)
class Thief:
    nodes: Mapping[str, NodeMachine]
    longest_ns: int
    """No ticket is good for longer."""
    tenant: str
    whose: Callable[[int], str | None]
    """The tenant that did the put of this number; None if nobody did."""
    kept: dict[bytes, tuple[SegmentName, Ticket, int]] = field(default_factory=dict)
    """By MAC: the segment that it is for, the ticket, and when it was there."""
    tickets: deque[tuple[SegmentName, Ticket]] = field(default_factory=lambda: deque(maxlen=MOST_TRIED))
    grants: deque[GrantedRange] = field(default_factory=lambda: deque(maxlen=MOST_TRIED))

    def note(self, tickets: Iterable[Ticket], places: Mapping[int, SegmentPlace], now_ns: int) -> None:
        for ticket in tickets:
            place = places.get(ticket.segment)
            if place is not None and len(self.kept) < MOST_KEPT:
                self.kept.setdefault(ticket.mac, (place.name, ticket, now_ns))
            if place is not None and (place.name, ticket) not in self.tickets:
                self.tickets.append((place.name, ticket))

    def note_grants(self, grants: Iterable[WriteGrant], places: Mapping[int, SegmentPlace]) -> None:
        for grant in grants:
            for piece in grant.ranges:
                place = places.get(piece.segment)
                if place is not None and piece.mac:
                    granted = GrantedRange(place.name, grant.id, piece.offset, grant.length, piece.mac)
                    if granted not in self.grants:
                        self.grants.append(granted)

    def loot(self, now_ns: int) -> list[str]:
        """What it could read and may not."""
        found = self._others_bytes()
        for name, ticket, noted_ns in self.kept.values():
            own = list(TicketRow.iter_unpack(ticket.ranges))
            for offset, length in own[:2]:
                for start in (offset - PIECE_BYTES, offset + length - PIECE_BYTES // 2):
                    if start >= 0 and not any(a <= start and start + PIECE_BYTES <= a + size for a, size in own):
                        found += self._try(name, ticket, start, f"bytes at {start:,}, where its ticket ends")
                for other in self._others(name):
                    found += self._try(other, ticket, offset, f"bytes of {other} with a ticket for {name}")
                if now_ns - noted_ns > self.longest_ns:
                    age_ms = (now_ns - noted_ns) // 1_000_000
                    found += self._try(name, ticket, offset, f"bytes of {name} with a ticket of {age_ms} ms ago")
        return found

    def _others_bytes(self) -> list[str]:
        """Bytes of other tenants at places that were its own once, or are."""
        found: list[str] = []
        for name, ticket in self.tickets:
            for offset, length in TicketRow.iter_unpack(ticket.ranges):
                room = bytearray(length)
                if self._try(name, ticket, offset, "something", room):
                    found += self._of_others(room, f"{name} with a ticket for its own at {offset:,}")
        for granted in self.grants:
            room = bytearray(granted.length)
            if self._try_back(granted, room):
                found += self._of_others(room, f"{granted.segment} with its grant {granted.grant.serial}")
        return found

    def _of_others(self, room: bytearray, where: str) -> list[str]:
        """A value is its put's number, over and over; twice, because the last word of one may be cut."""
        words = array("Q", bytes(room[: len(room) // 8 * 8]))
        numbers = {one for one, following in pairwise(words) if one and one == following}
        owners = {number: self.whose(number) for number in sorted(numbers)}
        return [
            f"bytes of put {number} of {owner or 'the default tenant'} in {where}"
            for number, owner in owners.items()
            if owner is not None and owner != self.tenant
        ]

    def _others(self, name: SegmentName) -> Iterator[SegmentName]:
        """Segments that this ticket is not for: of other nodes, and of another boot of the same one."""
        for node in self.nodes.values():
            if node.alive is not None and (node.name, node.alive.boot) != (name.node, name.boot):
                yield SegmentName(node.name, node.alive.boot, name.number)

    def _try(
        self, name: SegmentName, ticket: Ticket, offset: int, what: str, room: bytearray | None = None
    ) -> list[str]:
        served = self._served(name)
        if served is None:
            return []
        target = memoryview(bytearray(PIECE_BYTES) if room is None else room)
        try:
            served.read(WantedRange(name, ticket, offset, target))
        except HoldfastError:
            return []
        return [what]

    def _try_back(self, granted: GrantedRange, room: bytearray) -> bool:
        served = self._served(granted.segment)
        if served is None:
            return False
        try:
            served.read_back(ReadBack(*granted, 0, len(room)), memoryview(room))
        except HoldfastError:
            return False
        return True

    def _served(self, name: SegmentName) -> ServedNode | None:
        node = self.nodes[name.node]
        return None if node.process is None or node.process.paused else node.alive
