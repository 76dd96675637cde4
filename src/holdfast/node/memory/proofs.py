"""Proofs: what opens a node's memory to a client, and what ends that. Pure.

1. A ticket, to read ranges over TCP or to map the memory (ADR 48). A MAC made with the node's own key shows that a
   primary gave it. Its age is counted on this node's clock: a primary tells with every answer to a keepalive for how
   long tickets of its present generation are good, and from that the end of every generation of its epoch follows. A
   ticket of a new primary, of which the node has not heard yet, is taken as given now, unless no primary at all has
   been heard of for long: the cluster has unmounted the node by then.
2. A grant with the master's MAC, to write to its range over TCP, until it is refused. A node confirms `clean` once, and
   the range may belong to another writer from then on: so a refusal is for ever (I2, I11), and yet its memory is
   bounded (I17). When there are too many, the older half is folded into one number per client: all serials up to that
   floor are refused. A client takes its serials in order, so this costs at most a put that was long in flight; it is
   refused and takes another grant. If even the clients become too many, every TCP write is refused until the node has
   new memory: slow is better than wrong.
3. Fences say, for each range that went from one tenant to another, since when proofs for it are good (ADR 55). The
   primary has a fence raised before the next tenant gets the range, so that a ticket or a grant that an earlier one
   kept opens nothing of the next one's bytes (I20), however long the proof is good otherwise. Proofs say when they were
   given, by (epoch, index of the log), which only grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from holdfast.core.space.range_map import RangeMap
from holdfast.errors import BadRequest, GrantRefused, TicketExpired, TicketRefused
from holdfast.ids import COPIES, COUNTER_BITS, COUNTER_MASK, MOST_TICKET_RANGES, GrantId, SegmentName
from holdfast.instant import Instant
from holdfast.messages.commands import TicketTerms
from holdfast.messages.of_nodes import BytesOfGrant, ReadRanges
from holdfast.messages.rows import TicketRow, TwoWords
from holdfast.messages.shapes import AttachTicket, Ticket
from holdfast.wire.mac import attach_mac, issued_at, range_mac, same_mac, ticket_mac

UNHEARD_MS = 60_000
"""A node is unmounted when it has been silent for its lease and its jeopardy, 42 s."""
COPIES_MS = 600_000
"""Tickets for copies are good for this much longer: an order may wait behind others, and copies are paced."""
EPOCHS_KEPT = 4
REFUSED_CLIENTS_KEPT = 65_536
"""More were refused long ago: their tickets have expired."""
NEWEST_KEPT = 1_000_000
CLIENTS_KEPT = 1_000_000
LAST_SERIAL = 1 << 64
MOST_RANGES = 4_096
"""Of one segment. Beyond it neighbours are joined, and the earlier of them is refused proofs that were good: its
clients ask the master for others."""
MOST_SEGMENTS = 256


def check_write(key: bytes, request: BytesOfGrant) -> None:
    """Raise unless the write, or its reading back, has a valid MAC and is inside its grant's range."""
    issued = issued_at(request.mac)
    right = range_mac(key, request.segment, request.grant, request.range_offset, request.range_length, issued)
    if not key or not same_mac(request.mac, right):
        raise GrantRefused(f"grant {request.grant} is not vouched for by the master; nothing was written or read")
    if request.offset < 0 or request.length < 0 or request.offset + request.length > request.range_length:
        raise GrantRefused(
            f"the write would leave the range of grant {request.grant} ({request.range_length:,} bytes); "
            "nothing was written"
        )


class RefusedGrants:
    """Grants that are refused for ever."""

    __slots__ = ("_clients_kept", "_floors", "_newest", "_newest_kept", "full")

    def __init__(self, newest_kept: int = NEWEST_KEPT, clients_kept: int = CLIENTS_KEPT) -> None:
        self._newest_kept = newest_kept
        self._clients_kept = clients_kept
        # A dict keeps the order of arrival.
        self._newest: dict[GrantId, None] = {}
        self._floors: dict[int, int] = {}
        self.full = False

    def __contains__(self, grant: GrantId) -> bool:
        return self.full or grant in self._newest or grant.serial <= self._floors.get(grant.client, -1)

    def __len__(self) -> int:
        """How many entries it keeps in memory."""
        return len(self._newest) + len(self._floors)

    def check(self, grant: GrantId) -> None:
        if grant in self:
            raise GrantRefused(f"grant {grant} has ended; nothing was written. Take another one")

    def add_client(self, client: int) -> None:
        """Refuse every grant of this client, also future ones."""
        self._floors[client] = LAST_SERIAL

    def add_through(self, client: int, serial: int) -> None:
        """Refuse every grant of this client up to this serial."""
        self._floors[client] = max(serial, self._floors.get(client, -1))

    def of_copies(self) -> RefusedGrants:
        """The refused grants for copying: they may be on a disk, which outlives the memory."""
        kept = RefusedGrants(self._newest_kept, self._clients_kept)
        kept._newest = {grant: None for grant in self._newest if grant.client == COPIES}
        kept._floors = {client: floor for client, floor in self._floors.items() if client == COPIES}
        return kept

    def add(self, grant: GrantId) -> None:
        if grant in self:
            return
        self._newest[grant] = None
        if len(self._newest) <= self._newest_kept:
            return
        for old in list(islice(self._newest, -(-len(self._newest) // 2))):
            del self._newest[old]
            self._floors[old.client] = max(old.serial, self._floors.get(old.client, -1))
        if len(self._floors) > self._clients_kept:
            self.full = True
            self._newest.clear()
            self._floors.clear()


class Fences:
    """Changes replace what they change, so that other threads may look at the same time."""

    __slots__ = ("_maps", "floor", "newest")

    def __init__(self, floor: int = 0) -> None:
        """`floor`: no read with an older proof is good, whatever its range."""
        self.floor = floor
        self.newest = 0
        """The latest of all: a proof that was given since passes every one."""
        self._maps: dict[SegmentName, RangeMap] = {}

    def since(self, segment: SegmentName, offset: int, length: int) -> int:
        """The latest fence in this range; 0 if there is none."""
        found = self._maps.get(segment)
        return 0 if found is None or length <= 0 else max(found.over(offset, length))

    def put_up(self, segment: SegmentName, offset: int, length: int, issued: int) -> None:
        # Before the range is changed: whoever finds the new one must look at it.
        self.newest = max(self.newest, issued)
        found = self._maps.get(segment)
        changed = RangeMap(0) if found is None else found.copy()
        changed.put(offset, length, issued)
        while len(changed) > MOST_RANGES:
            changed = changed.coarsened()
        maps = {**self._maps, segment: changed}
        while len(maps) > MOST_SEGMENTS:  # Of earlier boots.
            oldest = next(iter(maps))
            self.floor = max(self.floor, *maps.pop(oldest).over(0, 1 << 62))
        self._maps = maps


class TicketBook:
    """Used by many threads: every change is one assignment."""

    __slots__ = ("_ends", "_heard_at", "_refused", "_terms", "fences", "key")

    def __init__(self) -> None:
        self.key = b""
        """The node's own key; empty before its first registration, when nothing is allowed."""
        self._terms: TicketTerms | None = None
        """The last ones; None if no primary has told any: then no ticket is good."""
        self._heard_at: Instant = 0
        self._ends: dict[int, tuple[int, Instant]] = {}
        """Epoch -> (number of a generation, when its tickets end)."""
        self._refused: dict[int, None] = {}
        self.fences = Fences()

    def trust(self, key: bytes, terms: TicketTerms | None, now: Instant) -> None:
        """A primary has registered the node."""
        if key != self.key:  # The first one, or of another history: its epochs are not these.
            self._ends = {}
            self.fences = Fences(0 if terms is None else terms.issued)
        self.key = key
        if terms is not None:
            self.told(terms, now)

    def told(self, terms: TicketTerms, now: Instant) -> None:
        self._terms = terms
        self._heard_at = now
        epoch, number = _parts(terms.generation)
        self._note_end(epoch, number, now + terms.good_ms)

    def refuse_client(self, client: int) -> None:
        """Take no more tickets of this client."""
        kept = islice(self._refused, max(0, len(self._refused) - REFUSED_CLIENTS_KEPT), None)
        self._refused = {**dict.fromkeys(kept), client: None}

    def pieces(self, request: ReadRanges, now: Instant) -> Sequence[TwoWords]:
        """The (offset, length) that the request may have, in the order in which they are sent; or raise."""
        self._check(request.segment, request.ticket, now)
        ranges = list(TicketRow.iter_unpack(request.ticket.ranges))
        if not request.wanted:
            self._check_fences(request.segment, ranges, request.ticket)
            return ranges
        if not TicketRow.is_whole(request.wanted):
            raise BadRequest("the wanted ranges are not whole; nothing was read")
        wanted = list(TicketRow.iter_unpack(request.wanted))
        known = set(ranges)
        for piece in wanted:
            if piece not in known and not _is_inside(piece, ranges):
                raise TicketRefused(
                    f"the ticket of client {request.ticket.client} is not for {piece[1]:,} bytes at {piece[0]:,}; "
                    "nothing was read"
                )
        self._check_fences(request.segment, wanted, request.ticket)
        return wanted

    def check_write(self, request: BytesOfGrant) -> None:
        """Raise unless the request is vouched for, inside its grant, and the range is still that grant's tenant's."""
        check_write(self.key, request)
        since = self.fences.since(request.segment, request.range_offset, request.range_length)
        if issued_at(request.mac) < max(since, self.fences.floor):
            raise GrantRefused(f"the range of grant {request.grant} is another's now; nothing was written or read")

    def check_file(self, segment: SegmentName, ticket: Ticket | None, offset: int, now: Instant) -> None:
        """Raise unless the ticket is for an object at this place."""
        if ticket is None:
            raise TicketRefused("a file is checked only for who shows a ticket for it; nothing was read")
        self._check(segment, ticket, now)
        self._check_fences(segment, [(offset, 1)], ticket)
        if all(start != offset for start, _ in TicketRow.iter_unpack(ticket.ranges)):
            raise TicketRefused(f"the ticket is not for the file at {offset:,}; nothing was read")

    def check_attach(self, segment: SegmentName, ticket: AttachTicket | None, write: bool, now: Instant) -> None:
        """Raise unless the ticket lets its client map this segment, for writing if `write`."""
        if ticket is None:
            raise TicketRefused("memory is passed only for a ticket of the master; nothing was mapped. Read over TCP")
        right = attach_mac(self.key, segment, ticket.client, ticket.generation, ticket.write)
        if not self.key or not same_mac(ticket.mac, right) or ticket.client in self._refused:
            raise TicketRefused(f"the ticket to map {segment} is not the master's; nothing was mapped")
        if write and not ticket.write:
            raise TicketRefused(f"the ticket lets its client map {segment} for reading only; nothing was mapped")
        self._check_age(ticket.generation, 0, now)

    def _check(self, segment: SegmentName, ticket: Ticket, now: Instant) -> None:
        ranges = ticket.ranges
        if not TicketRow.is_whole(ranges) or TicketRow.count(ranges) > MOST_TICKET_RANGES:
            raise BadRequest(f"a ticket is for at most {MOST_TICKET_RANGES} whole ranges; nothing was read")
        issued = issued_at(ticket.mac)
        right = ticket_mac(self.key, segment, ticket.client, ticket.generation, ranges, issued)
        if not self.key or not same_mac(ticket.mac, right):
            raise TicketRefused(f"the ticket for {segment} is not the master's; nothing was read")
        if ticket.client in self._refused:
            raise TicketRefused(f"the operator has revoked client {ticket.client}; nothing was read")
        self._check_age(ticket.generation, COPIES_MS if ticket.client == COPIES else 0, now)
        if issued < self.fences.floor:
            raise TicketExpired("the ticket was given before the node began; nothing was moved. Ask for another one")

    def _check_fences(self, segment: SegmentName, pieces: Sequence[TwoWords], ticket: Ticket) -> None:
        """Raise if one of these went to another tenant after the ticket was given. Most tickets are younger than every
        fence, and need no look at each range: 36 us for the 64 of a full one."""
        issued = issued_at(ticket.mac)
        if issued < self.fences.newest and any(issued < self.fences.since(segment, *piece) for piece in pieces):
            raise TicketExpired("there are other bytes by now than the ticket is for; nothing was moved. Ask again")

    def _check_age(self, generation: int, longer_ms: int, now: Instant) -> None:
        epoch, number = _parts(generation)
        terms, ends = self._terms, self._ends
        if epoch not in ends:
            if terms is None or epoch < max(ends, default=0) or now >= self._heard_at + UNHEARD_MS:
                raise TicketExpired("the ticket is of a master that the node does not know; nothing was moved")
            self._note_end(epoch, number, now + terms.good_ms + terms.roll_ms)
        known, end = self._ends[epoch]
        if terms is None or now >= end + (number - known) * terms.roll_ms + longer_ms:
            raise TicketExpired("the ticket has expired; nothing was moved. Ask the master for another one")

    def _note_end(self, epoch: int, number: int, end: Instant) -> None:
        newest = sorted({*self._ends, epoch})[-EPOCHS_KEPT:]
        self._ends = {each: (number, end) if each == epoch else self._ends[each] for each in newest}


def _parts(generation: int) -> tuple[int, int]:
    return generation >> COUNTER_BITS, generation & COUNTER_MASK


def _is_inside(piece: TwoWords, ranges: Sequence[TwoWords]) -> bool:
    start, length = piece
    return any(first <= start and start + length <= first + size for first, size in ranges)
