"""A same-host writer that takes a grant and then misbehaves, as a killed or stopped process does.

`hold`: maps the memory, takes the grant, says so, and waits. `scribble`: writes over its grant without end.
"""

from __future__ import annotations

import secrets
import sys

from holdfast.ids import GrantId
from holdfast.instant import now_seconds
from holdfast.messages.of_nodes import AttachSegment
from holdfast.messages.requests import Granted, GrantRanges, Hello, ListSegments, SegmentList
from holdfast.messages.shapes import Attachment
from holdfast.transport.attach import NodeLink
from holdfast.transport.channel import Channel
from holdfast.wire.codec import expect

address, mode, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
deadline = now_seconds() + 30
client = secrets.randbits(63) | 1
channel = Channel.open(address, Hello(client, control=True), deadline)
[place] = expect(channel.call(ListSegments(), deadline), SegmentList).segments
link = NodeLink.open(place.socket_path, deadline)
mapping = link.attach(AttachSegment(place.name, True, ticket=place.attach), deadline)
attached = [Attachment(place.handle, link.writer)]
request = GrantRanges(GrantId(client, 1), size.to_bytes(8, "little"), attached=attached)
granted = expect(channel.call(request, deadline), Granted)
[own] = granted.ranges
print("granted", own.offset, granted.length, flush=True)
if mode == "hold":
    sys.stdin.readline()
letters = b"W" * 4096
while True:
    for start in range(own.offset, own.offset + granted.length, len(letters)):
        stop = min(start + len(letters), own.offset + granted.length)
        mapping.view[start:stop] = letters[: stop - start]
