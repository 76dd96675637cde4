"""The TCP data port: what it refuses, and that `clean` means clean."""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import BadRequest, BadValue, GrantRefused, TryAgain, UnknownSegment
from holdfast.ids import GrantId
from holdfast.messages.of_nodes import AttachSegment, ReadRanges, WriteRange
from holdfast.messages.requests import Failed
from holdfast.messages.shapes import Message
from holdfast.transport.data_tcp import GrantedRange
from holdfast.wire.codec import MAX_FRAME_BYTES, PREAMBLE, FrameBuffer, decode_data_reply, encode, frame
from holdfast.wire.mac import range_mac
from tests.node.rig import SECRET, SIZE, Served, read_to_end, soon
from tests.waiting import wait_until

GRANT = GrantId(11, 1)
OTHER = GrantId(11, 2)


def replies(received: bytes) -> list[Message]:
    buffer = FrameBuffer()
    buffer.space()[: len(received)] = received
    buffer.filled(len(received))
    found = []
    while (whole := buffer.next_frame()) is not None:
        found.append(decode_data_reply(bytes(whole[2])))
    return found


def refusal_of(connected: socket.socket) -> str:
    [reply] = replies(read_to_end(connected))
    assert isinstance(reply, Failed)
    return reply.code


def test_any_segment_but_its_own_is_refused(served: Served) -> None:
    """I14."""
    name = served.name()
    target = memoryview(bytearray(8))
    with served.connection() as connection:
        for wrong in (name._replace(boot=name.boot + 2), name._replace(number=2), name._replace(node="n2")):
            with pytest.raises(UnknownSegment):
                connection.read_into(served.wanted(0, target, wrong), soon())
        with pytest.raises(UnknownSegment):
            wrong = name._replace(boot=name.boot + 2)
            mac = range_mac(SECRET, wrong, GRANT, 0, 64)
            connection.write(GrantedRange(wrong, GRANT, 0, 64, mac), 0, memoryview(b"x" * 8), soon())
    assert served.bytes_at(0, 8) == bytes(8)


@pytest.mark.parametrize(("offset", "length"), [(SIZE, 1), (SIZE - 4, 8), (1 << 62, 8)])
def test_a_read_beyond_the_segment_is_refused(served: Served, offset: int, length: int) -> None:
    with served.connection() as connection:
        with pytest.raises(BadValue):
            connection.read_into(served.wanted(offset, memoryview(bytearray(length))), soon())
        assert not connection.closed


def test_wanted_ranges_that_are_not_whole_are_refused(served: Served) -> None:
    with served.raw() as connected:
        connected.sendall(PREAMBLE + frame(0, 0, encode(ReadRanges(served.name(), served.ticket((8, 4)), bytes(15)))))
        connected.shutdown(socket.SHUT_WR)
        assert refusal_of(connected) == "bad_request"


def test_a_write_without_the_masters_mac_is_refused(served: Served) -> None:
    """I2: nobody writes to memory that the master did not grant."""
    right = served.mac(GRANT, 4096, 4096)
    forgeries = [
        (GRANT, 4096, 4096, b""),
        (GRANT, 4096, 4096, bytes(16)),
        (GRANT, 4096, 4096, right[:-1]),
        (OTHER, 4096, 4096, right),
        (GRANT, 0, 4096, right),
        (GRANT, 4096, 8192, right),
        (GRANT, 4096, 4096, range_mac(b"another secret", served.name(), GRANT, 4096, 4096)),
        (GRANT, 4096, 4096, served.mac(GRANT, 4096, 4096, number=1)),
    ]
    for grant, offset, length, mac in forgeries:
        with served.connection() as connection, pytest.raises(GrantRefused):
            connection.write(GrantedRange(served.name(), grant, offset, length, mac), 0, memoryview(b"x" * 64), soon())
    assert served.bytes_at(0, 16384) == bytes(16384)


def test_no_write_is_taken_before_the_masters_secret_is_known(served: Served) -> None:
    served.tickets.key = b""
    with served.connection() as connection, pytest.raises(GrantRefused):
        mac = range_mac(b"", served.name(), GRANT, 0, 64)
        connection.write(GrantedRange(served.name(), GRANT, 0, 64, mac), 0, memoryview(b"x" * 64), soon())


@pytest.mark.parametrize(("offset", "size"), [(4096, 1), (4090, 7), (0, 4097), (-1, 8)])
def test_a_write_beyond_its_range_is_refused(served: Served, offset: int, size: int) -> None:
    """I9: a grant's writer touches that grant's range and nothing else."""
    with served.connection() as connection, pytest.raises(GrantRefused):
        mac = served.mac(GRANT, 8192, 4096)
        connection.write(GrantedRange(served.name(), GRANT, 8192, 4096, mac), offset, memoryview(b"x" * size), soon())
    assert served.bytes_at(0, 32768) == bytes(32768)


def test_a_range_that_leaves_the_segment_is_refused_even_with_a_mac(served: Served) -> None:
    with served.connection() as connection, pytest.raises(BadValue):
        mac = served.mac(GRANT, SIZE - 64, 4096)
        connection.write(GrantedRange(served.name(), GRANT, SIZE - 64, 4096, mac), 0, memoryview(b"x" * 100), soon())


@pytest.mark.parametrize(("offset", "length"), [(-1, 64), (0, -64)])
def test_a_range_below_0_is_refused_even_with_a_mac(served: Served, offset: int, length: int) -> None:
    mac = served.mac(GRANT, offset, length)
    with served.connection() as connection, pytest.raises(BadRequest):
        connection.write(GrantedRange(served.name(), GRANT, offset, length, mac), 0, memoryview(b"x"), soon())
    assert served.bytes_at(0, 4096) == bytes(4096)


def begin_write(served: Served, connected: socket.socket, grant: GrantId, size: int, sent: int) -> None:
    """A write that stops after `sent` of its bytes, at the node's very memory."""
    request = WriteRange(served.name(), grant, 0, SIZE, served.mac(grant, 0, SIZE), 0, size)
    connected.sendall(PREAMBLE + frame(0, 0, encode(request)) + b"a" * sent)
    wait_until(lambda: served.bytes_at(sent - 1, 1) == b"a", what="the first bytes in the memory")


def test_clean_ends_the_writer_in_the_middle_and_not_one_more_byte_arrives(served: Served) -> None:
    """I2, I11: when `clean` has been confirmed the range may be somebody else's."""
    with served.raw() as connected:
        begin_write(served, connected, GRANT, SIZE, 1000)
        assert served.data.clean([GRANT, OTHER], soon()) == [GRANT, OTHER]
        served.memory.segments[0].mapping.map[:SIZE] = bytes(SIZE)
        # The connection is closed under the writer; whatever it still sends goes nowhere.
        try:
            connected.sendall(b"b" * SIZE)
        except (ConnectionResetError, BrokenPipeError):
            pass
        read_to_end(connected)
    wait_until(lambda: served.data.connections == 0)
    assert served.bytes_at(0, SIZE) == bytes(SIZE)


def test_clean_is_not_confirmed_while_the_writer_is_still_inside(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: a shut socket is not enough; the thread must have left."""
    inside, leave = threading.Event(), threading.Event()
    end_write = served.data.end_write

    def slow_end(session: object) -> None:
        inside.set()
        assert leave.wait(20)
        end_write(session)  # type: ignore[arg-type]

    monkeypatch.setattr(served.data, "end_write", slow_end)
    with served.raw() as connected:
        begin_write(served, connected, GRANT, SIZE, 1000)
        assert served.data.clean([GRANT, OTHER], soon(0.05)) == [OTHER]
        assert inside.wait(20)
        leave.set()
        assert served.data.clean([GRANT], soon()) == [GRANT]


def test_clean_leaves_other_writers_alone(served: Served) -> None:
    with served.raw() as connected:
        begin_write(served, connected, OTHER, 2000, 1000)
        assert served.data.clean([GRANT], soon()) == [GRANT]
        connected.sendall(b"z" * 1000)
        wait_until(lambda: served.bytes_at(1999, 1) == b"z")


def test_a_cleaned_grant_is_refused_from_then_on(served: Served) -> None:
    """I11."""
    mac = served.mac(GRANT, 0, 4096)
    with served.connection() as connection:
        connection.write(GrantedRange(served.name(), GRANT, 0, 4096, mac), 0, memoryview(b"before"), soon())
        assert served.data.clean([GRANT], soon()) == [GRANT]
        with pytest.raises(GrantRefused):
            connection.write(GrantedRange(served.name(), GRANT, 0, 4096, mac), 0, memoryview(b"after."), soon())
    assert served.bytes_at(0, 6) == b"before"


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "bad_request"),
        (PREAMBLE[:4] + struct.pack("<HH", 99, 0), "wrong_version"),
        (PREAMBLE + struct.pack("<III", 0xFFFF_FFFF, 0, 0), "bad_request"),
        (PREAMBLE + struct.pack("<III", MAX_FRAME_BYTES, 0, 0), "bad_request"),
        (PREAMBLE + frame(0, 0, b"\xc1"), "bad_request"),
        (PREAMBLE + frame(0, 0, b""), "bad_request"),
    ],
    ids=["stranger", "other version", "giant frame", "large frame", "no message", "empty message"],
)
def test_what_is_not_understood_is_answered_so_and_the_connection_closed(
    served: Served, sent: bytes, code: str
) -> None:
    with served.raw() as connected:
        connected.sendall(sent)
        assert refusal_of(connected) == code


def test_memory_is_not_passed_over_tcp(served: Served) -> None:
    with served.raw() as connected:
        connected.sendall(PREAMBLE + frame(0, 0, encode(AttachSegment(served.name(), True))))
        assert refusal_of(connected) == "bad_request"


def test_a_request_torn_at_any_byte_is_answered_when_its_rest_comes(served: Served) -> None:
    served.memory.segments[0].mapping.map[:5] = b"whole"
    request = PREAMBLE + frame(3, 0, encode(ReadRanges(served.name(), served.ticket((0, 5)))))
    for cut in range(1, len(request)):
        with served.raw() as connected:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.sendall(request[:cut])
            connected.sendall(request[cut:])
            connected.shutdown(socket.SHUT_WR)
            assert read_to_end(connected).endswith(b"whole")


def test_a_peer_that_leaves_in_the_middle_costs_nothing(served: Served) -> None:
    request = PREAMBLE + frame(3, 0, encode(ReadRanges(served.name(), served.ticket((0, SIZE)))))
    for cut in (0, 3, 8, 11, 25, len(request)):
        with served.raw() as connected:
            connected.sendall(request[:cut])
            wait_until(lambda: served.data.connections == 1, what="the server has taken the connection")
        wait_until(lambda: served.data.connections == 0)
    with served.connection() as after:
        after.read_into(served.wanted(0, memoryview(bytearray(8))), soon())


def test_a_connection_that_says_nothing_is_closed_after_a_while(tmp_path: Path) -> None:
    """I10, I17: a half-open connection does not stay."""
    with Served(tmp_path, idle_seconds=0.1, stall_seconds=0.1) as served:
        for sent in (b"", PREAMBLE[:3], PREAMBLE, PREAMBLE + b"\x10\x00\x00"):
            with served.raw() as connected:
                connected.sendall(sent)
                assert read_to_end(connected) == b""


def test_a_write_that_stops_moving_ends_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    with Served(tmp_path, stall_seconds=0.1) as served, served.raw() as connected:
        begin_write(served, connected, GRANT, SIZE, 1000)
        assert read_to_end(connected) == b""
        wait_until(lambda: served.data.connections == 0)


def test_a_reader_that_takes_no_bytes_ends(tmp_path: Path) -> None:
    with Served(tmp_path, stall_seconds=0.1) as served, served.raw() as connected:
        request = frame(0, 0, encode(ReadRanges(served.name(), served.ticket((0, SIZE)))))
        connected.sendall(PREAMBLE + request * 16)
        assert connected.recv(1), "the server has begun to answer"
        wait_until(lambda: served.data.connections == 0)
        assert len(read_to_end(connected)) < 16 * SIZE


def test_one_connection_too_many_is_told_to_come_later(tmp_path: Path) -> None:
    """I17."""
    with Served(tmp_path, max_connections=2) as served:
        with served.connection() as first, served.connection() as second:
            target = memoryview(bytearray(8))
            first.read_into(served.wanted(0, target), soon())
            second.read_into(served.wanted(0, target), soon())
            with pytest.raises(TryAgain) as raised, served.connection() as third:
                third.read_into(served.wanted(0, target), soon())
            assert raised.value.code == "try_again"
            first.read_into(served.wanted(0, target), soon())
        wait_until(lambda: served.data.connections == 0)
        with served.connection() as again:
            again.read_into(served.wanted(0, target), soon())


def test_memory_that_is_withdrawn_is_refused_and_a_write_in_flight_hurts_nobody(served: Served) -> None:
    """I14: the old memory is refused from then on; a thread in it is not pulled the map from under."""
    name = served.name()
    with served.raw() as writer, served.connection() as reader:
        begin_write(served, writer, GRANT, 2000, 1000)
        served.lending.withdraw()
        with pytest.raises(UnknownSegment):
            reader.read_into(served.wanted(0, memoryview(bytearray(8)), name), soon())
        writer.sendall(b"z" * 1000)
        writer.shutdown(socket.SHUT_WR)
        assert len(replies(read_to_end(writer))) == 1


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_whatever_stop_the_server_or_change_the_memory(served: Served, noise: bytes, greet: bool) -> None:
    with served.raw() as connected:
        try:
            connected.sendall((PREAMBLE if greet else b"") + noise)
            connected.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        read_to_end(connected)
    with served.connection() as connection:
        connection.read_into(served.wanted(0, memoryview(bytearray(8))), soon())
    assert served.bytes_at(0, 4096) == bytes(4096)


def test_stopping_ends_every_connection_and_thread(tmp_path: Path) -> None:
    """I10: nothing hangs."""
    before = threading.active_count()
    with Served(tmp_path) as served:
        with served.raw() as writing, served.raw() as idle:
            begin_write(served, writing, GRANT, SIZE, 1000)
            idle.sendall(PREAMBLE)
            served.data.stop()
            assert read_to_end(idle) == b""
            read_to_end(writing)
        assert served.data.connections == 0
    assert threading.active_count() == before
    assert os.listdir(tmp_path) == []
