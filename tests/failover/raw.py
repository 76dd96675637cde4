"""Puts in single steps, over a raw connection: so that a story can come between the grant and the commit."""

from __future__ import annotations

import struct

import xxhash

from holdfast.ids import GrantId
from holdfast.instant import now_seconds
from holdfast.messages.requests import CommitPuts, Committed, Granted, GrantRanges, ListSegments, SegmentList
from holdfast.transport.channel import Channel
from holdfast.transport.data_tcp import DataConnection, GrantedRange
from holdfast.wire.codec import expect
from tests.failover.cluster import call


def granted_and_written(channel: Channel, client: int, serial: int, data: bytes) -> tuple[GrantId, bytes]:
    """A grant with the bytes in it, and the rows that commit them."""
    grant = GrantId(client, serial)
    granted = expect(call(channel, GrantRanges(grant, len(data).to_bytes(8, "little"))), Granted)
    places = {place.handle: place for place in expect(call(channel, ListSegments()), SegmentList).segments}
    for own in granted.ranges:
        place = places[own.segment]
        connection = DataConnection.open(place.data_address, now_seconds() + 10)
        try:
            written = GrantedRange(place.name, grant, own.offset, granted.length, own.mac)
            connection.write(written, 0, memoryview(data), now_seconds() + 10)
        finally:
            connection.close()
    return grant, struct.pack("<3Q", 0, len(data), xxhash.xxh3_64_intdigest(data) or 1)


def commit(channel: Channel, grant: GrantId, key: str, rows: bytes) -> bool:
    return expect(call(channel, CommitPuts(grant, [key], rows)), Committed).stored == b"\1"
