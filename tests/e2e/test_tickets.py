"""Bytes of a real node: only for a ticket of the master's, and for good readers also while both sockets are flooded."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Iterator

import pytest

from holdfast.errors import TicketRefused
from holdfast.instant import now_seconds
from holdfast.messages.of_nodes import AttachSegment
from holdfast.messages.requests import Hello, ListSegments, Locate, Located, SegmentList
from holdfast.messages.rows import TicketRow
from holdfast.messages.shapes import SegmentPlace, Ticket
from holdfast.transport.attach import NodeLink
from holdfast.transport.channel import Channel
from holdfast.transport.data_tcp import NO_TICKET, DataConnection, WantedRange
from holdfast.wire.codec import PREAMBLE, expect
from tests.e2e.rig import Rig

FLOOD = 300


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig("32MiB") as rig:
        yield rig


def soon() -> float:
    return now_seconds() + 20


def located(rig: Rig, key: str) -> tuple[SegmentPlace, Ticket]:
    channel = Channel.open(rig.address, Hello(secrets.randbits(63) | 1), soon())
    try:
        found = expect(channel.call(Locate([key], tickets=True), soon()), Located)
        listed = expect(channel.call(ListSegments(), soon()), SegmentList)
    finally:
        channel.close()
    [ticket] = found.tickets
    return next(place for place in listed.segments if place.handle == ticket.segment), ticket


def read(place: SegmentPlace, ticket: Ticket, offset: int, size: int) -> bytes:
    target = bytearray(size)
    connection = DataConnection.open(place.data_address, soon())
    try:
        connection.read_into(WantedRange(place.name, ticket, offset, memoryview(target)), soon())
    finally:
        connection.close()
    return bytes(target)


def test_a_real_node_gives_bytes_for_a_ticket_of_its_master_only(rig: Rig) -> None:
    """I20."""
    data = os.urandom(1_000)
    with rig.connect(shared_memory=False) as cache:
        cache.put("mine", data)
        cache.put("another's", os.urandom(1_000))
        assert cache.get("mine") == data
    place, ticket = located(rig, "mine")
    [(offset, size)] = TicketRow.iter_unpack(ticket.ranges)
    assert read(place, ticket, offset, size) == data
    forged = Ticket(ticket.segment, ticket.client, ticket.generation, TicketRow.pack(0, 1 << 20), ticket.mac)
    for shown, start in ((NO_TICKET, offset), (forged, 0), (ticket, offset + 1)):
        with pytest.raises(TicketRefused):
            read(place, shown, start, size)
    link = NodeLink.open(place.socket_path, soon())
    try:
        with pytest.raises(TicketRefused):
            link.attach(AttachSegment(place.name), soon())
        assert place.attach is not None
        with link.attach(AttachSegment(place.name, ticket=place.attach), soon()).view[offset : offset + size] as mapped:
            assert mapped == data
    finally:
        link.close()


def test_good_readers_go_on_while_both_sockets_of_a_node_are_flooded(rig: Rig) -> None:
    """I10, I17."""
    values = {f"flooded/{number}": os.urandom(500) for number in range(100)}
    with rig.connect() as cache:
        cache.put_many(values)
    place, _ = located(rig, "flooded/1")
    host, _, port = place.data_address.rpartition(":")
    with contextlib.ExitStack() as stack:
        for number in range(FLOOD):
            remote = stack.enter_context(socket.create_connection((host, int(port)), timeout=20))
            local = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            local.connect(place.socket_path)
            for one in (remote, local):
                with contextlib.suppress(OSError):  # It may have been displaced already.
                    one.sendall(PREAMBLE[: number % 9])
        for mapped in (False, True):
            with rig.connect(shared_memory=mapped) as cache:
                assert cache.get_many(list(values)) == values
                assert cache.put(f"stored meanwhile/{mapped}", b"x" * 500)
                assert cache.get(f"stored meanwhile/{mapped}") == b"x" * 500
