"""Tickets: the primary's word to nodes, carried by clients, about what these may read over TCP or map (ADR 48).

A ticket names ranges, so that a client can read what it located and nothing beside it. It has no time in it: it is of
a generation, and the primary begins a new one every ROLL_MS. Nodes are told in durations how long a generation is good
(I16), which is at least as long as the leases that were given with its tickets. A generation is (epoch, number), so
that a new primary's are new without a record.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from holdfast.core.state.row_tables import LOCATED_TABLE, TICKET_TABLE, new_table, table_of
from holdfast.core.state.state import State
from holdfast.ids import MOST_TICKET_RANGES, SegmentHandle, object_id
from holdfast.instant import Instant, lengthened
from holdfast.messages.commands import TicketTerms
from holdfast.messages.rows import LocatedRow, TicketRow
from holdfast.messages.shapes import AttachTicket, Ticket
from holdfast.wire.mac import attach_mac, node_key, ticket_mac

ROLL_MS = 30_000
_STEP = MOST_TICKET_RANGES * TicketRow.size_bytes


class Tickets:
    """Gives tickets in the name of this primary."""

    __slots__ = ("_state", "began_at", "roll_ms")

    def __init__(self, state: State) -> None:
        self._state = state
        self.began_at: Instant = 0
        """When its epoch began, on its own clock."""
        self.roll_ms = ROLL_MS

    def generation(self, now: Instant) -> int:
        return object_id(self._state.epoch, (now - self.began_at) // self.roll_ms)

    def issued(self) -> int:
        """When a proof is given that is given now: (epoch, index of the log). Later ones are never less, also those
        of the next primaries. 0 until there are tenants: nobody needs to know."""
        state = self._state
        return object_id(state.epoch, state.index) if state.tenants.were_there else 0

    def terms(self, lease_ttl_ms: int, now: Instant) -> TicketTerms:
        left_ms = self.roll_ms - (now - self.began_at) % self.roll_ms
        return TicketTerms(self.generation(now), lengthened(left_ms + lease_ttl_ms), self.roll_ms, self.issued())

    def to_read(
        self, client: int, rows: bytes, others: Iterable[tuple[int, SegmentHandle, int]], now: Instant
    ) -> list[Ticket]:
        """Tickets for these located rows, and for further replicas: (index of the row, segment, offset)."""
        generation = self.generation(now)
        tickets = [
            ticket
            for segment, ranges in _ranges_of(rows).items()
            for ticket in self.to_read_ranges(client, segment, ranges, generation)
        ]
        further: dict[SegmentHandle, bytearray] = {}
        for index, segment, offset in others:
            size = LocatedRow.unpack_one(rows[index * LocatedRow.size_bytes : (index + 1) * LocatedRow.size_bytes])[3]
            further.setdefault(segment, bytearray()).extend(TicketRow.pack(offset, size))
        for segment, ranges in further.items():
            tickets += self.to_read_ranges(client, segment, bytes(ranges), generation)
        return tickets

    def to_read_ranges(self, client: int, segment: SegmentHandle, ranges: bytes, generation: int) -> list[Ticket]:
        """Tickets for these ranges of one segment, a `TicketRow` each."""
        name = self._state.segments[segment].name
        key, issued = node_key(self._state.secret, name.node), self.issued()
        return [
            Ticket(segment, client, generation, some, ticket_mac(key, name, client, generation, some, issued))
            for some in (ranges[start : start + _STEP] for start in range(0, len(ranges), _STEP))
        ]

    def to_attach(self, client: int, segment: SegmentHandle, write: bool, now: Instant) -> AttachTicket:
        name = self._state.segments[segment].name
        generation = self.generation(now)
        mac = attach_mac(node_key(self._state.secret, name.node), name, client, generation, write)
        return AttachTicket(client, generation, write, mac)


def _ranges_of(rows: bytes) -> dict[SegmentHandle, bytes]:
    """The places of located rows by segment, in their order; packed as in a ticket."""
    if len(rows) == LocatedRow.size_bytes:
        id_, segment, offset, size, _ = LocatedRow.unpack_one(rows)
        return {segment: TicketRow.pack(offset, size)} if id_ else {}
    located = table_of(LOCATED_TABLE, rows)
    located = located[located["id"] != 0]
    ranges = new_table(TICKET_TABLE, len(located))
    ranges["offset"] = located["offset"]
    ranges["length"] = located["size"]
    segments = located["segment"]
    return {int(segment): ranges[segments == segment].tobytes() for segment in np.unique(segments)}
