"""What strangers, broken clients and other versions send to a real master; it says why, and goes on serving."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from holdfast.messages.requests import Exists, Failed, Hello, Presence, Welcome
from holdfast.wire.codec import HEAD_BYTES, MAX_FRAME_BYTES, PREAMBLE, decode_reply, encode, frame
from tests.client.inside import core_of
from tests.e2e.rig import Rig, raw_connection
from tests.other_user import as_other_user, needs_root

import socket  # isort: skip


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig("32MiB") as rig:
        yield rig
        with rig.connect() as cache:
            assert cache.put("still", b"serving")
            assert cache.get("still") == b"serving"


def receive(connection: socket.socket) -> object:
    """The next reply; None at the end."""
    head = connection.recv(HEAD_BYTES, socket.MSG_WAITALL)
    if len(head) < HEAD_BYTES:
        return None
    length, _, _ = struct.unpack("<III", head)
    return decode_reply(connection.recv(length, socket.MSG_WAITALL))


def test_another_protocol_is_told_so(rig: Rig) -> None:
    with raw_connection(rig.address) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        reply = receive(peer)
        assert isinstance(reply, Failed)
        assert reply.code == "bad_request"
        assert receive(peer) is None


def test_another_version_is_told_which_one_to_upgrade(rig: Rig) -> None:
    with raw_connection(rig.address) as peer:
        peer.sendall(PREAMBLE[:4] + struct.pack("<HH", 99, 0))
        reply = receive(peer)
        assert isinstance(reply, Failed)
        assert reply.code == "wrong_version"
        assert "99" in reply.text


def test_a_giant_frame_is_refused_by_its_head(rig: Rig) -> None:
    with raw_connection(rig.address) as peer:
        peer.sendall(PREAMBLE + struct.pack("<III", MAX_FRAME_BYTES + 1, 1, 1_000))
        reply = receive(peer)
        assert isinstance(reply, Failed)
        assert "over the limit" in reply.text
        assert receive(peer) is None


def test_the_first_request_must_be_a_greeting(rig: Rig) -> None:
    with raw_connection(rig.address) as peer:
        peer.sendall(PREAMBLE + frame(1, 1_000, encode(Exists(["k"]))))
        reply = receive(peer)
        assert isinstance(reply, Failed)
        assert "Hello" in reply.text


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x91\xcc\xff", b"\x92\x02\x93\x01\x02\x03", b"\x91" * 2_000, encode(Presence(b""))]
)
def test_an_unknown_or_senseless_request_gets_an_error_and_the_connection_goes_on(rig: Rig, payload: bytes) -> None:
    with raw_connection(rig.address) as peer:
        peer.sendall(PREAMBLE + frame(1, 1_000, encode(Hello(77))))
        assert isinstance(receive(peer), Welcome)
        peer.sendall(frame(2, 1_000, payload))
        reply = receive(peer)
        assert isinstance(reply, Failed)
        assert reply.code == "bad_request"
        peer.sendall(frame(3, 1_000, encode(Exists(["k"]))))
        assert receive(peer) == Presence(b"\0")


def test_a_frame_torn_by_a_hang_up_is_forgotten(rig: Rig) -> None:
    whole = PREAMBLE + frame(1, 1_000, encode(Hello(77))) + frame(2, 1_000, encode(Exists(["k"] * 50)))
    for cut in (1, 7, 8, 15, 25, len(whole) - 1):
        with raw_connection(rig.address) as peer:
            peer.sendall(whole[:cut])
    with rig.connect() as cache:
        assert cache.exists("k") is False


def test_requests_are_pipelined_and_a_trickle_of_bytes_is_understood(rig: Rig) -> None:
    with raw_connection(rig.address) as peer:
        whole = PREAMBLE + frame(0, 1_000, encode(Hello(78)))
        whole += b"".join(frame(i, 1_000, encode(Exists([f"k{i}"]))) for i in range(1, 20))
        for i in range(0, len(whole), 3):
            peer.sendall(whole[i : i + 3])
        assert isinstance(receive(peer), Welcome)
        assert [receive(peer) for _ in range(19)] == [Presence(b"\0")] * 19


def test_a_second_control_connection_of_a_client_ends_the_first(rig: Rig) -> None:
    with raw_connection(rig.address) as first, raw_connection(rig.address) as second:
        for peer in (first, second):
            peer.sendall(PREAMBLE + frame(1, 1_000, encode(Hello(79, control=True))))
            assert isinstance(receive(peer), Welcome)
        with pytest.raises((ConnectionError, AssertionError)):
            assert receive(first) is not None
        second.sendall(frame(2, 1_000, encode(Exists(["k"]))))
        assert isinstance(receive(second), Presence)


def test_a_missing_token_is_refused() -> None:
    with Rig("32MiB", token="secret") as rig:
        with raw_connection(rig.address) as peer:
            peer.sendall(PREAMBLE + frame(1, 1_000, encode(Hello(80, token="wrong"))))
            reply = receive(peer)
            assert isinstance(reply, Failed)
            assert reply.code == "not_authorized"
            assert receive(peer) is None
        with rig.connect(token="secret") as cache:
            assert cache.put("k", b"x")


@needs_root
@pytest.mark.parametrize("token", ["", "a token for everybody"], ids=["open cluster", "cluster with a token"])
def test_another_user_of_the_machine_uses_tcp_unless_a_token_is_asked_for(token: str) -> None:
    """The abstract socket has no mode that keeps other users out: the master looks who they are. They are served, like
    somebody from another machine."""
    with Rig("32MiB", **({"token": token} if token else {})) as rig:

        def use() -> tuple[bytes, bool]:
            with rig.connect(token=token) as cache:
                cache.put("theirs", b"1")
                return cache.get("theirs"), core_of(cache).key_table is not None

        assert as_other_user(use) == (b"1", bool(token))
        with rig.connect(token=token) as cache:
            assert cache.get("theirs") == b"1"
            assert core_of(cache).key_table is not None
