"""Tickets through the death of a primary and of a node (ADR 48)."""

from __future__ import annotations

import os

import pytest

from holdfast.errors import TicketRefused, UnknownSegment
from holdfast.instant import now_seconds
from holdfast.messages.requests import ListSegments, Locate, Located, SegmentList
from holdfast.messages.rows import TicketRow
from holdfast.messages.shapes import SegmentPlace, Ticket
from holdfast.transport.data_tcp import DataConnection, WantedRange
from holdfast.wire.codec import expect
from tests.failover.cluster import Cluster, Process, call
from tests.waiting import wait_until


def located(master: Process, key: str) -> tuple[SegmentPlace, Ticket]:
    with master.channel() as channel:
        [ticket] = expect(call(channel, Locate([key], tickets=True)), Located).tickets
        places = expect(call(channel, ListSegments()), SegmentList).segments
    return next(place for place in places if place.handle == ticket.segment), ticket


def read(place: SegmentPlace, ticket: Ticket, address: str = "") -> bytes:
    [(offset, size)] = TicketRow.iter_unpack(ticket.ranges)
    target = bytearray(size)
    connection = DataConnection.open(address or place.data_address, now_seconds() + 20)
    try:
        connection.read_into(WantedRange(place.name, ticket, offset, memoryview(target)), now_seconds() + 20)
    finally:
        connection.close()
    return bytes(target)


def test_tickets_of_both_primaries_are_good_and_none_outlives_the_memory_of_its_node(cluster: Cluster) -> None:
    """I14, I20: whatever the node has heard of the failover by then."""
    data = os.urandom(5_000)
    with cluster.connect() as cache:
        cache.put("ticketed", data)
    old = cluster.primary()
    cluster.standby()
    place, ticket = located(old, "ticketed")
    old.kill()
    assert read(place, ticket) == data, "nobody has to be asked"
    new = cluster.primary(but=old)
    assert read(place, ticket) == data
    later_place, later = located(new, "ticketed")
    assert later.generation > ticket.generation
    assert read(later_place, later) == data
    [node] = cluster.nodes
    node.kill()
    node.start()
    node.wait_until_ready()
    wait_until(lambda: _is_back(cluster), what="the node lends new memory")
    for shown in (ticket, later):
        with pytest.raises((TicketRefused, UnknownSegment)):
            read(place, shown, node.address)


def _is_back(cluster: Cluster) -> bool:
    with cluster.connect(shared_memory=False) as cache:
        return cache.put("new memory", b"x", upsert=True) and cache.get("new memory") == b"x"
