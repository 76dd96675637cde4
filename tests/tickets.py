"""Tickets as a master gives them, for tests that have no master; and a node's link that shows one for every map."""

from __future__ import annotations

from holdfast.ids import SegmentName, object_id
from holdfast.messages.commands import TicketTerms
from holdfast.messages.of_nodes import AttachSegment
from holdfast.messages.rows import TicketRow
from holdfast.messages.shapes import AttachTicket, Ticket
from holdfast.transport.attach import NodeLink
from holdfast.transport.data_tcp import WantedRange
from holdfast.transport.shared_memory import Mapping
from holdfast.wire.mac import attach_mac, ticket_mac

SECRET = b"a secret of the master's"
"""The key of the node that a test serves (`tests.node.rig`)."""
READER = 5
GENERATION = object_id(1, 0)
TERMS = TicketTerms(GENERATION, 3_600_000, 3_600_000)


def read_ticket(
    key: bytes,
    segment: SegmentName,
    *ranges: tuple[int, int],
    handle: int = 0,
    client: int = READER,
    generation: int = GENERATION,
    issued: int = 0,
) -> Ticket:
    packed = TicketRow.pack_rows(ranges)
    return Ticket(handle, client, generation, packed, ticket_mac(key, segment, client, generation, packed, issued))


def wanted(key: bytes, segment: SegmentName, offset: int, target: memoryview) -> WantedRange:
    """These bytes, with a ticket for exactly them."""
    return WantedRange(segment, read_ticket(key, segment, (offset, target.nbytes)), offset, target)


def attach_ticket(
    key: bytes, segment: SegmentName, write: bool = True, client: int = READER, generation: int = GENERATION
) -> AttachTicket:
    return AttachTicket(client, generation, write, attach_mac(key, segment, client, generation, write))


class TicketedLink(NodeLink):
    """Shows a ticket for every map."""

    __slots__ = ()

    def map(
        self, segment: SegmentName, write: bool, deadline: float, history: int = 0, ticket: AttachTicket | None = None
    ) -> Mapping:
        ticket = ticket or attach_ticket(SECRET, segment, write)
        return self.attach(AttachSegment(segment, write, history, ticket), deadline)
