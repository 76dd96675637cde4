"""A range that goes from one tenant to another: earlier proofs are refused, what moves is ended, bytes are wiped."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import GrantRefused, TicketExpired
from holdfast.ids import GrantId, SegmentName, object_id
from holdfast.messages.commands import Clear, TicketTerms
from holdfast.messages.of_nodes import ReadRanges, WriteRange
from holdfast.messages.rows import TicketRow
from holdfast.node.memory import proofs as module
from holdfast.node.memory.proofs import Fences, TicketBook
from holdfast.transport.data_tcp import GrantedRange, WantedRange
from holdfast.wire.codec import PREAMBLE, encode, frame
from holdfast.wire.mac import range_mac
from tests.node.rig import SIZE, Served, soon
from tests.tickets import SECRET, read_ticket
from tests.waiting import wait_until

SEGMENT = SegmentName("n1", 77, 0)
GRANT = GrantId(11, 1)
BEFORE, SINCE = object_id(3, 900), object_id(4, 5)
"""A later epoch is later, also where its log was shorter."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as served:
        yield served


def read(served: Served, offset: int, length: int, issued: int) -> bytes:
    room = bytearray(length)
    ticket = read_ticket(SECRET, served.name(), (offset, length), issued=issued)
    with served.connection() as connection:
        connection.read_into(WantedRange(served.name(), ticket, offset, memoryview(room)), soon())
    return bytes(room)


def granted(served: Served, issued: int, offset: int = 4096, length: int = 4096) -> GrantedRange:
    mac = range_mac(SECRET, served.name(), GRANT, offset, length, issued)
    return GrantedRange(served.name(), GRANT, offset, length, mac)


def test_old_tickets_and_grants_open_nothing_of_the_next_tenants_bytes(served: Served) -> None:
    """I20."""
    served.memory.segments[0].mapping.map[:SIZE] = secret = os.urandom(SIZE)
    assert read(served, 4096, 100, BEFORE) == secret[4096:4196]
    served.data.clear(Clear(served.name(), 4096, 4096, SINCE))
    assert read(served, 4096, 4096, SINCE) == bytes(4096), "nothing of the tenant before is left"
    for offset, length in ((4096, 4096), (4000, 97), (8191, 100)):
        with pytest.raises(TicketExpired):
            read(served, offset, length, BEFORE)
    assert read(served, 0, 4096, BEFORE) == secret[:4096], "what lies beside it is read as before"
    assert read(served, 8192, 100, BEFORE) == secret[8192:8292]
    old, new = granted(served, BEFORE), granted(served, SINCE)
    with served.connection() as connection, pytest.raises(GrantRefused):
        connection.write(old, 0, memoryview(b"x" * 100), soon())
    with served.connection() as connection, pytest.raises(GrantRefused):
        connection.read_back(old, 0, memoryview(bytearray(100)), soon())
    with served.connection() as connection:
        connection.write(new, 0, memoryview(b"y" * 100), soon())
    assert read(served, 4096, 100, SINCE) == b"y" * 100
    served.data.clear(Clear(served.name(), 4096, 4096, SINCE))
    assert read(served, 4096, 100, SINCE) == b"y" * 100, "told again, it wipes nothing"


def test_a_time_that_was_altered_makes_no_proof(served: Served) -> None:
    """I20."""
    served.data.clear(Clear(served.name(), 4096, 4096, SINCE))
    old = granted(served, BEFORE)
    forged = old._replace(mac=SINCE.to_bytes(8, "little") + old.mac[8:])
    with served.connection() as connection, pytest.raises(GrantRefused):
        connection.write(forged, 0, memoryview(b"x" * 100), soon())


def begun(connected: socket.socket, request: ReadRanges | WriteRange, more: bytes = b"") -> None:
    connected.sendall(PREAMBLE + frame(0, 0, encode(request)) + more)


def test_a_read_that_is_under_way_ends_before_the_range_is_wiped(served: Served) -> None:
    """I20: it would go on with the next tenant's bytes."""
    served.memory.segments[0].mapping.map[:SIZE] = b"a" * SIZE
    ticket = read_ticket(SECRET, served.name(), (0, SIZE), issued=BEFORE)
    with served.raw() as connected:
        begun(connected, ReadRanges(served.name(), ticket, TicketRow.pack_rows([(0, SIZE)] * 8)))
        assert connected.recv(4096), "it has begun, and takes no more"
        served.data.clear(Clear(served.name(), 0, SIZE, SINCE))
        served.memory.segments[0].mapping.map[:SIZE] = b"b" * SIZE
        received = bytearray()
        try:
            while some := connected.recv(1 << 20):
                received += some
        except ConnectionResetError:
            pass
    assert len(received) < 8 * SIZE
    assert b"bbbb" not in received


def test_a_write_that_is_under_way_ends_before_the_range_is_wiped(served: Served) -> None:
    """I2, I20."""
    mac = range_mac(SECRET, served.name(), GRANT, 0, SIZE, BEFORE)
    with served.raw() as connected:
        begun(connected, WriteRange(served.name(), GRANT, 0, SIZE, mac, 0, SIZE), b"a" * 1000)
        wait_until(lambda: served.bytes_at(999, 1) == b"a", what="the first bytes in the memory")
        served.data.clear(Clear(served.name(), 0, SIZE, SINCE))
        try:
            connected.sendall(b"b" * SIZE)
        except (ConnectionResetError, BrokenPipeError):
            pass
        assert served.bytes_at(0, SIZE) == bytes(SIZE)


def test_a_node_that_has_just_begun_takes_no_ticket_that_was_given_before() -> None:
    """I20: its disk outlived it, and it knows of no range there that went to another tenant meanwhile."""
    book = TicketBook()
    book.trust(SECRET, TicketTerms(object_id(4, 0), 40_000, 30_000, SINCE), 0)
    old, new = (
        read_ticket(SECRET, SEGMENT, (0, 64), generation=object_id(4, 0), issued=issued) for issued in (BEFORE, SINCE)
    )
    with pytest.raises(TicketExpired):
        book.pieces(ReadRanges(SEGMENT, old), 0)
    assert list(book.pieces(ReadRanges(SEGMENT, new), 0)) == [(0, 64)]


@pytest.mark.parametrize("issued", [BEFORE - 1, BEFORE, SINCE - 1, SINCE, SINCE + 1])
def test_a_ticket_younger_than_all_fences_opens_what_a_look_at_each_range_would(issued: int) -> None:
    """I20. The fast path looks at no range."""
    book = TicketBook()
    book.trust(SECRET, TicketTerms(object_id(4, 0), 40_000, 30_000), 0)
    book.fences.put_up(SEGMENT, 0, 64, SINCE)
    book.fences.put_up(SEGMENT, 128, 64, BEFORE)
    for offset in (0, 64, 128):
        ticket = read_ticket(SECRET, SEGMENT, (offset, 64), generation=object_id(4, 0), issued=issued)
        if issued >= book.fences.since(SEGMENT, offset, 64):
            assert list(book.pieces(ReadRanges(SEGMENT, ticket), 0)) == [(offset, 64)]
        else:
            with pytest.raises(TicketExpired):
                book.pieces(ReadRanges(SEGMENT, ticket), 0)


def test_fences_are_bounded_and_never_forget_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """I17, I20: too many are joined, and refuse more than they must."""
    monkeypatch.setattr(module, "MOST_RANGES", 8)
    monkeypatch.setattr(module, "MOST_SEGMENTS", 2)
    fences = Fences()
    for at in range(100):
        fences.put_up(SEGMENT, at * 128, 64, at + 1)
        assert all(fences.since(SEGMENT, each * 128, 64) >= each + 1 for each in range(at + 1))
    for boot in (78, 79):
        fences.put_up(SEGMENT._replace(boot=boot), 0, 64, 1)
    assert fences.floor == 100, "those of a segment that is forgotten count everywhere"
