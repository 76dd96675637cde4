"""The Unix socket: whom it serves, and whose end it reports."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import TryAgain, UnknownSegment
from holdfast.ids import SegmentName
from holdfast.messages.of_nodes import Attached, AttachSegment, ReadRanges
from holdfast.messages.requests import Failed
from holdfast.node.memory.lent_memory import LentMemory
from holdfast.node.session.report import AHEAD
from holdfast.transport.data_tcp import NO_TICKET
from holdfast.wire.codec import HEAD_BYTES, PREAMBLE, decode_data_reply, encode, frame
from tests.node.rig import SIZE, Served, open_files, read_to_end, soon
from tests.other_user import as_other_user, needs_root
from tests.tickets import SECRET, TicketedLink, attach_ticket
from tests.waiting import wait_until


def attaching(served: Served) -> AttachSegment:
    return AttachSegment(served.name(), True, 0, attach_ticket(SECRET, served.name()))


def answer(connected: socket.socket) -> tuple[object, list[int]]:
    data, descriptors, _, _ = socket.recv_fds(connected, 65_536, 4)
    return decode_data_reply(data[HEAD_BYTES:]), descriptors


def test_only_the_nodes_own_user_can_connect(served: Served) -> None:
    assert stat.S_IMODE(os.stat(served.path).st_mode) == 0o600


@needs_root
def test_another_user_is_passed_no_memory_even_if_the_file_lets_it_in(served: Served) -> None:
    """The socket's mode keeps it out. Whoever changes that by mistake gives nothing away."""
    path = Path(served.path)

    def answered() -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
            connected.settimeout(20)
            connected.connect(path.name)
            data, descriptors, _, _ = socket.recv_fds(connected, 65_536, 4)
            assert not descriptors
            return data

    path.chmod(0o666)
    path.parent.chmod(0o711)
    reply = decode_data_reply(as_other_user(answered, str(path.parent))[HEAD_BYTES:])
    assert isinstance(reply, Failed)
    assert (reply.code, "own user only" in reply.text) == ("unreachable", True)
    assert served.gone_writers() == []
    with served.link() as own:
        own.map(served.name(), False, soon()).close()


def test_a_request_that_comes_byte_by_byte_is_answered(served: Served) -> None:
    request = PREAMBLE + frame(9, 0, encode(attaching(served)))
    with served.raw_unix() as connected:
        for index in range(len(request)):
            connected.sendall(request[index : index + 1])
        reply, descriptors = answer(connected)
        assert reply == Attached(1, SIZE)
        [descriptor] = descriptors
        os.close(descriptor)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        PREAMBLE + b"\xff" * 12,
        PREAMBLE + frame(0, 0, b"\xc1"),
        PREAMBLE + frame(0, 0, encode(ReadRanges(SegmentName("n1", 1, 0), NO_TICKET))),
    ],
    ids=["stranger", "giant frame", "no message", "bytes are not served here"],
)
def test_a_reader_that_breaks_the_protocol_is_told_so_and_left(served: Served, sent: bytes) -> None:
    with served.raw_unix() as connected:
        connected.sendall(sent)
        reply = decode_data_reply(read_to_end(connected)[HEAD_BYTES:])
        assert isinstance(reply, Failed)
        assert reply.code == "bad_request"
    assert served.gone_writers() == []


def test_a_writer_that_breaks_the_protocol_is_not_gone_before_it_ends(served: Served) -> None:
    """I2, I11: it still maps the memory, so its ranges may not be given to others."""
    with served.raw_unix() as connected:
        connected.sendall(PREAMBLE + frame(0, 0, encode(attaching(served))))
        reply, [descriptor] = answer(connected)
        os.close(descriptor)
        assert reply == Attached(1, SIZE)
        connected.sendall(b"\xff" * 100)
        assert isinstance(answer(connected)[0], Failed)
        connected.sendall(b"\xff" * 100_000)
        with served.link() as other:
            other.map(served.name(), False, soon()).close()
        assert served.gone_writers() == []
    wait_until(lambda: served.gone_writers() == [1])


def test_a_writer_that_takes_no_answers_is_not_gone_before_it_ends(served: Served) -> None:
    request = frame(0, 0, encode(attaching(served)))
    with served.raw_unix() as connected:
        connected.sendall(PREAMBLE + request)
        _, [descriptor] = answer(connected)
        os.close(descriptor)
        for _ in range(2000):
            connected.sendall(request)
        with served.link() as other:
            other.map(served.name(), False, soon()).close()
        assert served.gone_writers() == []
    wait_until(lambda: served.gone_writers() == [1])


def test_one_connection_too_many_is_told_to_come_later(tmp_path: Path) -> None:
    """I17."""
    with Served(tmp_path, max_connections=1) as served, served.link() as first:
        first.map(served.name(), True, soon())
        with served.link() as second, pytest.raises(TryAgain):
            second.map(served.name(), True, soon())
        first.map(served.name(), False, soon()).close()


def test_while_the_node_registers_no_more_writers_come_than_were_announced(served: Served) -> None:
    """I11: the master takes a writer that the registration does not list to be gone."""
    listed = served.report.writers_for_registration()
    links = [TicketedLink.open(served.path, soon()) for _ in range(3)]
    for link in links:
        link.map(served.name(), True, soon())
        assert link.writer in listed
    for _ in range(AHEAD - 3):
        served.report.writer_came()
    with served.link() as late:
        with pytest.raises(TryAgain):
            late.map(served.name(), True, soon())
        served.report.registered()
        late.map(served.name(), True, soon())
        assert late.writer not in listed
    for link in links:
        link.close()


def test_a_writers_number_is_void_with_the_memory_and_a_new_one_is_given_for_the_new(served: Served) -> None:
    """I14."""
    with served.link() as link:
        old = link.map(served.name(), True, soon())
        number = link.writer
        name = served.name()
        served.lending.withdraw()
        served.attach.memory_voided()
        served.report.memory_voided()
        with pytest.raises(UnknownSegment):
            link.map(name, True, soon())
        served.memory = LentMemory.create("n1", SIZE, 1)
        served.lending.lend(served.memory)
        assert served.memory.boot != name.boot
        new = link.map(served.name(), True, soon())
        assert link.writer > number
        new.map[:3] = b"new"
        old.map[:3] = b"old"
        assert served.bytes_at(0, 3) == b"new"
    wait_until(lambda: served.gone_writers() == [link.writer])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=100), st.booleans())
def test_no_bytes_whatever_stop_the_server(served: Served, noise: bytes, greet: bool) -> None:
    with served.raw_unix() as connected:
        connected.sendall((PREAMBLE if greet else b"") + noise)
    with served.link() as link:
        link.map(served.name(), False, soon()).close()
    assert served.gone_writers() == []


def test_stopping_leaves_neither_a_file_nor_a_descriptor_behind(tmp_path: Path) -> None:
    before = open_files()
    with Served(tmp_path) as served:
        link = TicketedLink.open(served.path, soon())
        mapping = link.map(served.name(), True, soon())
    mapping.close()
    link.close()
    assert not os.path.exists(served.path)
    assert open_files() == before
