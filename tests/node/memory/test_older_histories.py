"""Memory that belongs to a restored history: whoever knows it from the older one is told, fenced, and waited for."""

from __future__ import annotations

import struct

import pytest
import xxhash

from holdfast.errors import GrantRefused, UnknownSegment
from holdfast.ids import COPIES, GrantId, object_id
from holdfast.messages.of_nodes import WriteRange
from holdfast.node.memory.verification import mismatched
from holdfast.transport.data_tcp import GrantedRange
from holdfast.wire.codec import PREAMBLE, encode, frame
from tests.node.rig import SIZE, Served, read_to_end, soon
from tests.waiting import wait_until

OLD, NEW = 11, 77


def test_a_writer_of_the_older_history_is_waited_for_and_one_of_the_new_is_not(served: Served) -> None:
    """I9, I11: its copy into a range that the restored catalogue calls free may still run."""
    served.attach.enter_history(OLD, [])
    with served.link() as old, served.link() as new:
        old.map(served.name(), True, soon(), OLD)
        new.map(served.name(), True, soon(), NEW)  # It met the new master before this node did.
        assert served.attach.older_writers() == 0
        served.attach.enter_history(NEW, [OLD])
        assert served.attach.older_writers() == 1
        old.close()
        wait_until(lambda: served.attach.older_writers() == 0, what="the old writer is gone")


def test_a_client_that_knows_the_older_history_only_is_not_let_in_any_more(served: Served) -> None:
    served.attach.enter_history(NEW, [OLD])
    with served.link() as link:
        for write in (True, False):
            with pytest.raises(UnknownSegment):
                link.map(served.name(), write, soon(), OLD)
        link.map(served.name(), True, soon(), NEW).close()
    assert served.attach.older_writers() == 0


def test_a_write_over_tcp_that_the_older_history_granted_is_cut_and_refused(served: Served) -> None:
    """I2: not one more byte of it may arrive once the node says that its older writers are gone."""
    grant = GrantId(3, 1)
    mac = served.mac(grant, 0, SIZE)
    with served.raw() as connected, served.connection() as another:
        request = WriteRange(served.name(), grant, 0, SIZE, mac, 0, 100_000)
        connected.sendall(PREAMBLE + frame(1, 0, encode(request)) + b"x" * 1_000)
        wait_until(lambda: served.bytes_at(0, 1_000) == b"x" * 1_000, what="bytes arrive")
        served.tickets.key = b"the secret of the new history"
        served.data.enter_history(object_id(9, 0) - 1)
        wait_until(lambda: served.data.older_writers() == 0, what="nothing is written for the older history")
        read_to_end(connected)
        with pytest.raises(GrantRefused):
            another.write(GrantedRange(served.name(), grant, 0, SIZE, mac), 0, memoryview(b"y" * 64), soon())
    assert served.bytes_at(0, 1_001) == b"x" * 1_000 + b"\0"


def test_copies_that_the_older_history_ordered_are_refused_by_their_numbers(served: Served) -> None:
    running, queued, later = (GrantId(COPIES, object_id(epoch, 1)) for epoch in (7, 8, 9))
    served.data.begin_copy(running)
    served.data.enter_history(object_id(9, 0) - 1)
    assert served.data.older_writers() == 1
    served.data.end_copy(running)
    assert served.data.older_writers() == 0
    with pytest.raises(GrantRefused):
        served.data.begin_copy(queued)
    served.data.begin_copy(later)
    served.data.end_copy(later)


def test_ranges_are_compared_with_their_checksums(served: Served) -> None:
    served.memory.segments[1].mapping.view[64:128] = b"x" * 64
    right = xxhash.xxh3_64_intdigest(b"x" * 64)
    rows = [
        (1, 1, 64, 64, right),
        (2, 1, 128, 64, right),
        (3, 1, 64, 64, 0),
        (4, 1, SIZE - 32, 64, right),
    ]
    packed = b"".join(struct.pack("<5Q", *row) for row in rows)
    failed = mismatched(served.lending, "n1", served.memory.boot, packed)
    assert list(struct.iter_unpack("<3Q", failed)) == [(2, 1, 128), (3, 1, 64), (4, 1, SIZE - 32)]
