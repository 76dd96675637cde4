"""Bounds of a node's sockets: strangers are few and have little time, one address has a share, idle ones give way."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.errors import TryAgain
from holdfast.messages.of_nodes import HearRevocations, ReadRanges
from holdfast.messages.rows import TicketRow
from holdfast.node.memory import admission, attach_server, data_session
from holdfast.node.memory.admission import (
    GIVES_WAY_SECONDS,
    MOST_STRANGERS,
    connections_within,
    displaced_peer,
    displaced_stranger,
    has_room,
)
from holdfast.wire.codec import HEAD, PREAMBLE, encode, frame
from tests.certificates import HALF_HELLO, certified, dialing, serving
from tests.node.memory.test_data_server import GRANT, begin_write
from tests.node.rig import SIZE, Served, open_files, read_to_end, soon
from tests.tickets import SECRET, attach_ticket
from tests.waiting import wait_until


@dataclass
class Peer:
    address: str = "a"
    is_known: bool = False
    since: float = 0.0
    busy: bool = False
    is_leaving: bool = False


def test_a_flood_of_strangers_displaces_itself() -> None:
    """I17: those of an address that has few stay."""
    flood = [Peer("flood", since=float(number)) for number in range(MOST_STRANGERS - 1)]
    quiet = Peer("quiet", since=-1.0)
    assert displaced_stranger(flood) is None
    assert displaced_stranger([quiet, *flood]) is flood[0]
    flood[0].is_leaving = True
    assert displaced_stranger([quiet, *flood]) is None


def test_one_address_has_a_share_and_idle_ones_give_way() -> None:
    peers = [Peer("a", is_known=True, since=float(number)) for number in range(3)]
    assert not has_room(peers, "a", 4)
    assert has_room(peers, "b", 4)
    assert displaced_peer(peers, "a", 4, GIVES_WAY_SECONDS - 1) is None
    assert displaced_peer(peers, "a", 4, GIVES_WAY_SECONDS + 1) is peers[0]
    peers[0].busy = True
    assert displaced_peer(peers, "a", 4, GIVES_WAY_SECONDS + 1) is peers[1]
    peers += [Peer("b", is_known=True, since=-9.0)]
    assert displaced_peer(peers, "a", 4, GIVES_WAY_SECONDS + 9) is peers[1], "not one of another address"
    assert displaced_peer(peers, "c", 4, GIVES_WAY_SECONDS + 9) is peers[1], "of the busiest address"


def test_descriptors_are_left_for_the_node_itself() -> None:
    assert connections_within(1 << 20, 1024) == 1024
    assert 2 * (connections_within(1024, 1024) + MOST_STRANGERS) + admission.RESERVED_DESCRIPTORS <= 1024
    assert connections_within(100, 1024) == 1


@contextlib.contextmanager
def flood(connect: object, count: int, said: bytes) -> Iterator[list[socket.socket]]:
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            one = connect()  # type: ignore[operator]
            opened.append(one)
            with contextlib.suppress(OSError):  # The node may have closed it already.
                one.sendall(said)
        yield opened
    finally:
        for one in opened:
            one.close()


FIRST_WORDS = {
    "nothing": b"",
    "half a preamble": PREAMBLE[:5],
    "half a head": PREAMBLE + b"\0\0",
    "a length of 4 GiB": PREAMBLE + HEAD.pack((1 << 32) - 1, 0, 0),
    "half a frame": PREAMBLE + HEAD.pack(4_000, 0, 0) + bytes(3_000),
    "garbage": os.urandom(9_000),
}


@pytest.mark.parametrize("said", FIRST_WORDS.values(), ids=FIRST_WORDS)
def test_good_readers_go_on_while_the_data_port_is_flooded(served: Served, said: bytes) -> None:
    """I17, I10."""
    served.memory.segments[0].mapping.map[:8] = b"contents"
    host, _, port = served.data.address.rpartition(":")
    before = open_files()
    with flood(lambda: socket.create_connection((host, int(port)), timeout=20), 3 * MOST_STRANGERS, said) as opened:
        target = bytearray(8)
        with served.connection() as good:
            good.read_into(served.wanted(0, memoryview(target)), soon())
            assert target == b"contents"
            wait_until(lambda: served.data.connections <= MOST_STRANGERS + 1)
            good.read_into(served.wanted(0, memoryview(target)), soon())
        assert len(opened) == 3 * MOST_STRANGERS
    wait_until(lambda: served.data.connections == 0)
    wait_until(lambda: open_files() <= before)


@pytest.mark.parametrize("said", FIRST_WORDS.values(), ids=FIRST_WORDS)
def test_good_writers_go_on_while_the_attach_socket_is_flooded(served: Served, said: bytes) -> None:
    def connect() -> socket.socket:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.connect(served.path)
        one.settimeout(20)
        return one

    with served.link() as early:
        mapping = early.map(served.name(), True, soon())
        with flood(connect, 3 * MOST_STRANGERS, said), served.link() as late:
            late.map(served.name(), True, soon())
            wait_until(lambda: served.attach.connections <= MOST_STRANGERS + 2)
            mapping.map[:4] = b"good"
            assert not early.ended()
    assert served.bytes_at(0, 4) == b"good"


@pytest.mark.parametrize("said", [b"", PREAMBLE, PREAMBLE + HEAD.pack(100, 0, 0)])
def test_a_stranger_has_little_time_on_both_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(data_session, "STRANGER_SECONDS", 0.2)
    monkeypatch.setattr(attach_server, "STRANGER_SECONDS", 0.2)
    with Served(tmp_path) as served, served.raw() as remote, served.raw_unix() as local:
        for one in (remote, local):
            one.sendall(said)
            assert read_to_end(one) == b""
        with served.link() as link:
            mapping = link.map(served.name(), True, soon())
            wait_until(lambda: served.attach.connections == 1)
            assert not link.ended(), "who has shown a ticket stays"
            mapping.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certified(tmp_path_factory.mktemp("certificates"))


HELLOS = {"nothing": b"", "half a hello": HALF_HELLO, "no TLS": PREAMBLE}


@pytest.mark.parametrize("said", HELLOS.values(), ids=HELLOS)
def test_who_is_in_a_tls_handshake_is_a_stranger_and_is_displaced_as_one(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """I17: no handshake ends by itself here."""
    monkeypatch.setattr(data_session, "STRANGER_SECONDS", 600.0)
    with Served(tmp_path, stall_seconds=600.0, tls=serving(folder)) as served:
        served.memory.segments[0].mapping.map[:8] = b"contents"
        host, _, port = served.data.address.rpartition(":")
        with flood(lambda: socket.create_connection((host, int(port)), timeout=20), 3 * MOST_STRANGERS, said):
            target = bytearray(8)
            with served.connection(dialing(folder)) as good:
                good.read_into(served.wanted(0, memoryview(target)), soon())
            assert target == b"contents"
            wait_until(lambda: served.data.connections <= MOST_STRANGERS)
        wait_until(lambda: served.data.connections == 0)


@pytest.mark.parametrize("after", [0, 1, len(HALF_HELLO)])
def test_a_tls_handshake_has_a_strangers_time(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(data_session, "STRANGER_SECONDS", 0.3)
    with Served(tmp_path, tls=serving(folder)) as served, served.raw() as remote:
        remote.sendall(HALF_HELLO[:after])
        assert read_to_end(remote) == b""


def test_known_peers_are_bounded_and_the_next_is_told(tmp_path: Path) -> None:
    target = memoryview(bytearray(8))
    with Served(tmp_path, max_connections=2) as served, contextlib.ExitStack() as stack:
        readers = [stack.enter_context(served.connection()) for _ in range(3)]
        for one in readers[:2]:
            one.read_into(served.wanted(0, target), soon())
        with pytest.raises(TryAgain, match="2 connections"):
            readers[2].read_into(served.wanted(0, target), soon())
        readers[0].read_into(served.wanted(0, target), soon())


def test_a_peer_that_does_not_read_is_given_up(tmp_path: Path) -> None:
    """I17: its thread ends, and nothing is kept for it."""
    with Served(tmp_path, stall_seconds=0.3) as served, served.raw() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)

        request = frame(0, 0, encode(ReadRanges(served.name(), served.ticket((0, 4 << 20)))))
        deaf.sendall(PREAMBLE + 3 * request)
        wait_until(lambda: served.data.connections == 1)
        wait_until(lambda: served.data.connections == 0)


def test_a_writer_whose_bytes_trickle_is_given_up(tmp_path: Path) -> None:
    """I17: bytes that come without a pause, and never come to an end, keep no place and no thread."""
    with Served(tmp_path, stall_seconds=0.3) as served, served.raw() as slow:
        begin_write(served, slow, GRANT, SIZE, 1000)

        def is_closed() -> bool:
            try:
                slow.send(b"a")
            except OSError:
                return True
            return False

        wait_until(is_closed, 60)
        wait_until(lambda: served.data.connections == 0)
        assert served.data.clean([GRANT], soon()) == [GRANT], "and nothing waits for its write"


def test_a_reader_that_takes_a_request_of_many_pieces_bit_by_bit_is_given_up(tmp_path: Path) -> None:
    """I17: its bytes are waited for as those of one request, not anew for each piece."""
    with Served(tmp_path, stall_seconds=0.3) as served, served.raw() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        pieces = TicketRow.pack_rows([(0, 64 << 10)] * 200)
        ticket = served.ticket((0, 64 << 10))
        slow.sendall(PREAMBLE + frame(0, 0, encode(ReadRanges(served.name(), ticket, pieces))))
        wait_until(lambda: served.data.connections == 1)
        taken = 0

        def is_over() -> bool:
            nonlocal taken
            with contextlib.suppress(ConnectionResetError):
                taken += len(slow.recv(8 << 10))
            return served.data.connections == 0

        wait_until(is_over, 60)
        assert taken < 200 * (64 << 10)


def test_one_process_has_a_share_of_the_attach_socket(tmp_path: Path) -> None:
    with Served(tmp_path, max_connections=4) as served, contextlib.ExitStack() as stack:
        links = [stack.enter_context(served.link()) for _ in range(4)]
        for link in links[:3]:
            link.map(served.name(), True, soon())
        with pytest.raises(TryAgain, match="3 of one process"):
            links[3].map(served.name(), True, soon())
        assert not any(link.ended() for link in links[:3])


def test_a_listener_at_the_attach_socket_that_does_not_read_is_closed(served: Served) -> None:
    """I17: nothing is kept for it, and its end tells it that it missed something."""
    with served.raw_unix() as deaf, served.link() as good:
        good.map(served.name(), False, soon())
        hear = HearRevocations(served.name(), attach_ticket(SECRET, served.name(), False))
        deaf.sendall(PREAMBLE + frame(0, 0, encode(hear)))
        wait_until(lambda: served.attach.connections == 2)
        assert deaf.recv(1), "it is heard"

        def is_closed() -> bool:
            served.attach.revoke(bytes(8 << 10))
            return served.attach.connections == 1

        wait_until(is_closed, 60)
        assert not good.ended()
