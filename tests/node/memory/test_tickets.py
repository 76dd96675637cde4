"""The node's check of tickets: forged, for another range, node or client, too old by its own clock (ADR 48)."""

from __future__ import annotations

import os

import pytest

from holdfast.errors import BadRequest, HoldfastError, TicketExpired, TicketRefused
from holdfast.ids import COPIES, MOST_TICKET_RANGES, SegmentName, object_id
from holdfast.messages.commands import TicketTerms
from holdfast.messages.of_nodes import ReadRanges
from holdfast.messages.rows import TicketRow
from holdfast.messages.shapes import Ticket
from holdfast.node.memory import proofs as module
from holdfast.node.memory.proofs import COPIES_MS, UNHEARD_MS, TicketBook
from holdfast.wire.mac import node_key
from tests.node.rig import Served, soon
from tests.tickets import READER, SECRET, attach_ticket, read_ticket

SEGMENT = SegmentName("n1", 77, 0)
KEY = node_key(b"the secret of the history", "n1")
ROLL_MS, LEASE_MS = 30_000, 10_000
FIRST = object_id(3, 0)


def terms(generation: int = FIRST, left_ms: int = ROLL_MS) -> TicketTerms:
    return TicketTerms(generation, left_ms + LEASE_MS, ROLL_MS)


@pytest.fixture
def book() -> TicketBook:
    made = TicketBook()
    made.trust(KEY, terms(), 0)
    return made


def ticket(*ranges: tuple[int, int], generation: int = FIRST, client: int = READER, key: bytes = KEY) -> Ticket:
    return read_ticket(key, SEGMENT, *ranges, generation=generation, client=client)


def read(book: TicketBook, shown: Ticket, now: int = 0, *wanted: tuple[int, int]) -> list[tuple[int, int]]:
    return list(book.pieces(ReadRanges(SEGMENT, shown, TicketRow.pack_rows(wanted)), now))


def test_a_ticket_is_good_for_its_ranges_and_parts_of_them(book: TicketBook) -> None:
    shown = ticket((64, 100), (4096, 0), (4096, 50))
    assert read(book, shown) == [(64, 100), (4096, 0), (4096, 50)]
    assert read(book, shown, 0, (4096, 50), (64, 1), (163, 1)) == [(4096, 50), (64, 1), (163, 1)]


@pytest.mark.parametrize("piece", [(63, 1), (64, 101), (164, 1), (0, 5000), (4096, 51), (1 << 63, 1), (64, 1 << 63)])
def test_a_ticket_is_for_no_other_range(book: TicketBook, piece: tuple[int, int]) -> None:
    """I20."""
    with pytest.raises(TicketRefused):
        read(book, ticket((64, 100), (4096, 50)), 0, (64, 1), piece)


def test_a_forged_or_altered_ticket_is_refused(book: TicketBook) -> None:
    """I20: every field is part of the proof."""
    good = ticket((64, 100))
    for bad in (
        Ticket(0, READER, FIRST, good.ranges, b""),
        Ticket(0, READER, FIRST, good.ranges, os.urandom(16)),
        Ticket(0, READER + 1, FIRST, good.ranges, good.mac),
        Ticket(0, READER, FIRST + 1, good.ranges, good.mac),
        Ticket(0, READER, FIRST, TicketRow.pack(64, 101), good.mac),
        ticket((64, 100), key=b"the key of another node"),
    ):
        with pytest.raises(TicketRefused) as refused:
            read(book, bad)
        assert not isinstance(refused.value, TicketExpired)


def test_a_ticket_is_for_one_segment_of_one_node(book: TicketBook) -> None:
    """I14: also not for the same node after a restart, which has another boot id."""
    for other in (SEGMENT._replace(node="n2"), SEGMENT._replace(boot=78), SEGMENT._replace(number=1)):
        with pytest.raises(TicketRefused):
            book.pieces(ReadRanges(other, ticket((64, 100))), 0)
    assert node_key(b"s", "n1") != node_key(b"s", "n2"), "a node cannot vouch for others"


def test_malformed_ranges_are_refused_before_anything_is_computed(book: TicketBook) -> None:
    for ranges in (bytes(15), bytes(16 * (MOST_TICKET_RANGES + 1))):
        with pytest.raises(BadRequest):
            read(book, Ticket(0, READER, FIRST, ranges, bytes(16)))


def test_a_ticket_expires_by_the_nodes_own_clock(book: TicketBook) -> None:
    """I16: the node was told a duration; nothing that the client sends has a time in it."""
    shown = ticket((64, 100))
    assert read(book, shown, ROLL_MS + LEASE_MS - 1)
    with pytest.raises(TicketExpired):
        read(book, shown, ROLL_MS + LEASE_MS)


def test_later_generations_of_a_known_epoch_need_not_be_told(book: TicketBook) -> None:
    """Tickets of a primary that rolled and died before the node's next keepalive stay good for their lease."""
    rolled = ticket((64, 100), generation=FIRST + 2)
    book.told(terms(object_id(4, 0)), 2 * ROLL_MS + 1_000)
    assert read(book, rolled, 3 * ROLL_MS + LEASE_MS - 1)
    with pytest.raises(TicketExpired):
        read(book, rolled, 3 * ROLL_MS + LEASE_MS)
    with pytest.raises(TicketExpired):
        read(book, ticket((64, 100)), ROLL_MS + LEASE_MS)


def test_a_new_primarys_ticket_is_good_before_the_node_has_heard_of_it(book: TicketBook) -> None:
    """After a failover clients may be quicker than the node's keepalive."""
    later = ticket((64, 100), generation=object_id(4, 0))
    assert read(book, later, UNHEARD_MS - 1)
    end = UNHEARD_MS - 1 + LEASE_MS + 2 * ROLL_MS
    assert read(book, later, end - 1)
    with pytest.raises(TicketExpired):
        read(book, later, end)
    with pytest.raises(TicketExpired):
        read(book, ticket((64, 100), generation=object_id(5, 0)), UNHEARD_MS)  # Nobody was heard of for too long.


def test_a_ticket_of_an_epoch_that_was_skipped_is_refused(book: TicketBook) -> None:
    book.told(terms(object_id(5, 0)), 1_000)
    assert read(book, ticket((64, 100)), 1_000), "that of an earlier one that the node knew is good for its time"
    with pytest.raises(TicketExpired):
        read(book, ticket((64, 100), generation=object_id(4, 0)), 1_000)


def test_another_history_has_another_key_and_no_old_ticket(book: TicketBook) -> None:
    """I19."""
    book.trust(b"the key after a restore", terms(object_id(2, 0)), 0)
    with pytest.raises(TicketRefused):
        read(book, ticket((64, 100)))


def test_copies_have_more_time(book: TicketBook) -> None:
    shown = ticket((64, 100), client=COPIES)
    assert read(book, shown, ROLL_MS + LEASE_MS + COPIES_MS - 1)
    with pytest.raises(TicketExpired):
        read(book, shown, ROLL_MS + LEASE_MS + COPIES_MS)


def test_a_revoked_clients_tickets_are_refused(book: TicketBook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that it got before."""
    book.refuse_client(READER)
    with pytest.raises(TicketRefused, match="revoked"):
        read(book, ticket((64, 100)))
    assert read(book, ticket((64, 100), client=6))
    with pytest.raises(TicketRefused):
        book.check_attach(SEGMENT, attach_ticket(KEY, SEGMENT, generation=FIRST), False, 0)
    monkeypatch.setattr(module, "REFUSED_CLIENTS_KEPT", 10)
    for client in range(100, 200):
        book.refuse_client(client)
    assert len(book._refused) <= 11, "I17"


def test_before_the_first_registration_nothing_is_good() -> None:
    fresh = TicketBook()
    with pytest.raises(TicketRefused):
        read(fresh, ticket((64, 100), key=b""))
    with pytest.raises(TicketRefused):
        fresh.check_attach(SEGMENT, attach_ticket(b"", SEGMENT, generation=FIRST), False, 0)


def test_only_who_has_a_ticket_for_it_maps_the_memory(book: TicketBook) -> None:
    """I20: and for writing only with one for writing."""
    for_reading = attach_ticket(KEY, SEGMENT, write=False, generation=FIRST)
    book.check_attach(SEGMENT, for_reading, False, 0)
    book.check_attach(SEGMENT, attach_ticket(KEY, SEGMENT, generation=FIRST), True, 0)
    bad: list[tuple[object, bool]] = [
        (None, False),
        (for_reading, True),
        (attach_ticket(b"another key", SEGMENT, generation=FIRST), False),
        (attach_ticket(KEY, SEGMENT._replace(boot=1), generation=FIRST), False),
    ]
    for shown, write in bad:
        with pytest.raises(TicketRefused):
            book.check_attach(SEGMENT, shown, write, 0)  # type: ignore[arg-type]
    with pytest.raises(TicketExpired):
        book.check_attach(SEGMENT, for_reading, False, ROLL_MS + LEASE_MS)


def test_a_file_is_checked_for_who_may_read_it(book: TicketBook) -> None:
    book.check_file(SEGMENT, ticket((64, 100)), 64, 0)
    for shown, offset in ((None, 64), (ticket((64, 100)), 65), (ticket((64, 100), key=b"x"), 64)):
        with pytest.raises(TicketRefused):
            book.check_file(SEGMENT, shown, offset, 0)


def test_both_sockets_answer_a_bad_ticket_with_its_error_and_give_nothing(served: Served) -> None:
    """I20, over the real sockets."""
    served.memory.segments[0].mapping.map[:8] = b"contents"
    target = bytearray(8)
    good = served.wanted(0, memoryview(target))
    forged = good._replace(ticket=read_ticket(b"a guess", served.name(), (0, 8)))
    with served.connection() as connection:
        with pytest.raises(TicketRefused):
            connection.read_into(forged, soon())
        assert connection.closed
    with served.link() as link, pytest.raises(TicketRefused):
        link.map(served.name(), True, soon(), 0, attach_ticket(SECRET, served.name(), write=False))
    assert served.report.writers == 0
    assert target == bytes(8)
    with served.connection() as connection:
        connection.read_into(good, soon())
    assert target == b"contents"
    served.tickets.told(TicketTerms(object_id(1, 0), 0, 0), 0)
    with served.connection() as connection, pytest.raises(TicketExpired):
        connection.read_into(good, soon())


def test_errors_of_tickets_cross_the_wire_with_their_types() -> None:
    for kind in (TicketRefused, TicketExpired):
        assert issubclass(kind, HoldfastError)
        assert kind.code.startswith("ticket_")
