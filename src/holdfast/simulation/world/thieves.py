"""A client that tries its tickets on bytes that they are not for (I20, ADR 48).

It keeps the tickets that it was given, and shows them for ranges beside theirs, for other segments, and long after they
have expired. It asks the nodes directly, as no honest client does. Whatever it gets is loot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from holdfast.errors import HoldfastError
from holdfast.ids import SegmentName
from holdfast.messages.rows import TicketRow
from holdfast.messages.shapes import SegmentPlace, Ticket
from holdfast.simulation.world.nodes import NodeMachine
from holdfast.transport.data_tcp import WantedRange

MOST_KEPT = 24
"""The first ones, which will be the oldest."""
PIECE_BYTES = 64


@dataclass(slots=True)
class Thief:
    nodes: Mapping[str, NodeMachine]
    longest_ns: int
    """No ticket is good for longer."""
    kept: dict[bytes, tuple[SegmentName, Ticket, int]] = field(default_factory=dict)
    """By MAC: the segment that it is for, the ticket, and when it was there."""

    def note(self, tickets: Iterable[Ticket], places: Mapping[int, SegmentPlace], now_ns: int) -> None:
        for ticket in tickets:
            place = places.get(ticket.segment)
            if place is not None and len(self.kept) < MOST_KEPT:
                self.kept.setdefault(ticket.mac, (place.name, ticket, now_ns))

    def loot(self, now_ns: int) -> list[str]:
        """What it could read and may not."""
        found: list[str] = []
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

    def _others(self, name: SegmentName) -> Iterator[SegmentName]:
        """Segments that this ticket is not for: of other nodes, and of another boot of the same one."""
        for node in self.nodes.values():
            if node.alive is not None and (node.name, node.alive.boot) != (name.node, name.boot):
                yield SegmentName(node.name, node.alive.boot, name.number)

    def _try(self, name: SegmentName, ticket: Ticket, offset: int, what: str) -> list[str]:
        node = self.nodes[name.node]
        if node.alive is None or node.process is None or node.process.paused:
            return []
        try:
            node.alive.read(WantedRange(name, ticket, offset, memoryview(bytearray(PIECE_BYTES))))
        except HoldfastError:
            return []
        return [what]
