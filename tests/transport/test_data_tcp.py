"""Bytes over TCP, from the client's side."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import xxhash

from holdfast.errors import BadRequest, BadValue, DeadlineExceeded, GrantRefused, Refused, UnknownSegment, Unreachable
from holdfast.ids import GrantId, SegmentName
from holdfast.messages.of_nodes import Sending
from holdfast.node.memory.data_session import DataSession
from holdfast.transport.bulk_copy import SHARED_FROM
from holdfast.transport.data_tcp import (
    CHUNK,
    NO_TICKET,
    TOGETHER_BELOW,
    WINDOW,
    DataConnection,
    GrantedRange,
    WantedRange,
)
from holdfast.wire.codec import encode, frame
from tests.node.rig import SIZE, Served, soon

GRANT = GrantId(5, 1)
SEGMENT = SegmentName("n1", 1, 0)


@pytest.mark.parametrize("size", [0, 1, 4096, CHUNK, 3 * CHUNK + 17, SHARED_FROM + 5])
def test_what_is_written_over_tcp_is_read_back_with_the_same_digest(served: Served, size: int) -> None:
    data = os.urandom(size)
    with served.connection() as connection:
        sent, got = xxhash.xxh3_64(), xxhash.xxh3_64()
        mac = served.mac(GRANT, 8192, SIZE - 8192)
        connection.write(GrantedRange(served.name(), GRANT, 8192, SIZE - 8192, mac), 64, memoryview(data), soon(), sent)
        assert served.bytes_at(8192 + 64, size) == data
        target = bytearray(size)
        connection.read_into(served.wanted(8192 + 64, memoryview(target)), soon(), got)
        assert target == data
        assert sent.intdigest() == got.intdigest() == xxhash.xxh3_64_intdigest(data)
        assert not connection.closed


def test_a_write_without_a_digest_is_written_as_well(served: Served) -> None:
    data = os.urandom(2 * CHUNK)
    with served.connection() as connection:
        connection.write(
            GrantedRange(served.name(), GRANT, 0, SIZE, served.mac(GRANT, 0, SIZE)), 0, memoryview(data), soon()
        )
    assert served.bytes_at(0, len(data)) == data


@pytest.mark.parametrize("step", [37, 211])
def test_many_values_are_written_at_once_each_to_its_own_place(served: Served, step: int) -> None:
    """Small ones together, or between them some that are not small."""
    most = 9_000 if step == 37 else TOGETHER_BELOW + 4_000
    values = [os.urandom(index * step % most + 1) for index in range(3 * WINDOW + 5)]
    digests = [xxhash.xxh3_64() for _ in values]
    mac = served.mac(GRANT, 4096, SIZE - 4096)
    with served.connection() as connection:
        sources = [
            (index * most, memoryview(value), digest)
            for index, (value, digest) in enumerate(zip(values, digests, strict=True))
        ]
        connection.write_many(GrantedRange(served.name(), GRANT, 4096, SIZE - 4096, mac), sources, soon())
        connection.write_many(GrantedRange(served.name(), GRANT, 4096, SIZE - 4096, mac), [], soon())
        assert not connection.closed
    for index, (value, digest) in enumerate(zip(values, digests, strict=True)):
        assert served.bytes_at(4096 + index * most, len(value)) == value
        assert digest.intdigest() == xxhash.xxh3_64_intdigest(value)


def test_neighbours_are_one_write_and_padding_between_them_is_zeros(served: Served) -> None:
    """ADR 76: hundreds of small values cost the node one message, not one each."""
    values = [os.urandom(size) for size in [1_000] * 200 + [1, 64, 65, 20_000, 1_000, 3]]
    offsets = [0, *itertools.accumulate(len(value) + -len(value) % 64 for value in values)]
    served.memory.segments[0].mapping.map[:] = b"x" * SIZE
    sources = [(offset, memoryview(value), None) for offset, value in zip(offsets, values, strict=False)]
    apart = (offsets[-1] + 64, memoryview(b"not a neighbour"), None)
    granted = GrantedRange(served.name(), GRANT, 0, SIZE, served.mac(GRANT, 0, SIZE))
    with served.connection() as connection:
        connection.write_many(granted, [*sources, apart], soon())
    for offset, source, _ in [*sources, apart]:
        assert served.bytes_at(offset, source.nbytes) == source
    assert served.bytes_at(1_000, 24) == bytes(24), "between neighbours"
    large = offsets[203] + 20_000
    assert served.bytes_at(large, 32) == b"x" * 32, "a large one is written alone"
    assert served.bytes_at(offsets[-1], 64) == b"x" * 64
    assert served.data.transfers().writes == 4


@pytest.mark.parametrize("older", [False, True])
def test_small_ranges_are_answered_together_and_by_an_older_node_one_by_one(
    served: Served, older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(SIZE)
    served.memory.segments[0].mapping.map[:] = content
    sent: list[int] = []

    def noted(self: DataSession, data: bytes, *rest: object) -> None:
        sent.append(len(data))
        original(self, data, *rest)  # type: ignore[arg-type]

    original = DataSession._send_all
    monkeypatch.setattr(DataSession, "_send_all", noted)
    if older:
        monkeypatch.setattr(DataSession, "_read_together", lambda *_: False)
    targets = [bytearray(size) for size in [1_000] * 50 + [1, TOGETHER_BELOW - 1, 5_000]]
    wanted = [served.wanted(index * 10_000, memoryview(target)) for index, target in enumerate(targets)]
    ticket = served.ticket(*((each.offset, each.target.nbytes) for each in wanted))
    one_ticket = [each._replace(ticket=ticket) for each in wanted]
    with served.connection() as connection:
        connection.read_many(one_ticket, soon())
        connection.read_into(wanted[0], soon())
        assert not connection.closed
    for index, target in enumerate(targets):
        assert target == content[index * 10_000 : index * 10_000 + len(target)]
    assert (len(sent) == 2) is not older, "one answer for all, and one for the read after it"


@pytest.mark.parametrize("size", [10, 400_000])
def test_a_refusal_after_confirmed_writes_says_why(served: Served, size: int) -> None:
    mac = served.mac(GRANT, 0, 4096)
    sources = [(0, memoryview(bytes(8)), None)] * 5 + [(4000, memoryview(bytes(size * 10)), None)] * 5
    with served.connection() as connection:
        with pytest.raises(Refused, match="range"):
            connection.write_many(GrantedRange(served.name(), GRANT, 0, 4096, mac), sources, soon())
        assert connection.closed


def test_many_ranges_are_read_at_once_each_into_its_own_place(served: Served) -> None:
    content = os.urandom(SIZE)
    for segment in served.memory.segments:
        segment.mapping.map[:] = content
    count = 5 * WINDOW + 3
    targets = [bytearray(index * 37 % 9000) for index in range(count)]
    wanted = [
        served.wanted(index * 1000, memoryview(target), served.name(index % 2)) for index, target in enumerate(targets)
    ]
    with served.connection() as connection:
        connection.read_many(wanted, soon())
        connection.read_many([], soon())
    for index, target in enumerate(targets):
        assert target == content[index * 1000 : index * 1000 + len(target)]


def test_one_refused_range_of_many_is_raised_and_the_others_are_filled(served: Served) -> None:
    served.memory.segments[0].mapping.map[:8] = b"contents"
    good, bad, last = bytearray(8), bytearray(8), bytearray(8)
    gone = served.name()._replace(boot=3)
    with served.connection() as connection:
        wanted = [
            served.wanted(0, memoryview(good)),
            served.wanted(0, memoryview(bad), gone),
            served.wanted(0, memoryview(last)),
        ]
        with pytest.raises(UnknownSegment):
            connection.read_many(wanted, soon())
        assert (good, bad, last) == (b"contents", bytes(8), b"contents")
        assert not connection.closed
        connection.read_into(served.wanted(0, memoryview(bad)), soon())
        assert bad == b"contents"


@pytest.mark.parametrize(("size", "refusal"), [(10, GrantRefused), (SIZE, GrantRefused), (64 << 20, BadValue)])
def test_a_refused_write_says_why_however_much_is_on_the_way(served: Served, size: int, refusal: type[Refused]) -> None:
    with served.connection() as connection:
        with pytest.raises(refusal):
            connection.write(
                GrantedRange(served.name(), GRANT, 0, SIZE, b"forged" * 3), 0, memoryview(bytes(size)), soon()
            )
        assert connection.closed


def test_ipv6_addresses_are_served(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with Served(tmp_path, listen="[::1]:0") as served:
        assert served.data.address.startswith("[::1]:")
        with served.connection() as connection:
            target = bytearray(16)
            connection.read_into(served.wanted(0, memoryview(target)), soon())


@pytest.mark.parametrize("address", ["", "nowhere", ":7", "host:x", "host:99999"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(BadValue):
        DataConnection.open(address, soon())


def test_nobody_at_the_address_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unreachable):
        DataConnection.open(f"127.0.0.1:{port}", soon())


@contextmanager
def odd_node(says: bytes, hang_up: bool = False) -> Iterator[str]:
    """Takes one connection and says one thing."""
    done = threading.Event()

    def take() -> None:
        connected, _ = listener.accept()
        with connected:
            connected.sendall(says)
            if not hang_up:
                done.wait(20)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            done.set()
            thread.join(20)


@pytest.mark.parametrize("says", [b"", frame(0, 0, encode(Sending(64)))[:-1], frame(0, 0, encode(Sending(64))) + b"x"])
def test_a_node_that_stops_in_the_middle_costs_the_deadline_and_no_more(says: bytes) -> None:
    """I10: every request ends."""
    with odd_node(says) as address:
        connection = DataConnection.open(address, soon())
        with pytest.raises(DeadlineExceeded):
            connection.read_into(WantedRange(SEGMENT, NO_TICKET, 0, memoryview(bytearray(64))), soon(0.05))
        assert connection.closed


@pytest.mark.parametrize("digest", [None, xxhash.xxh3_64()], ids=["plain", "hashed"])
def test_a_node_that_takes_no_bytes_costs_the_deadline_and_no_more(digest: xxhash.xxh3_64 | None) -> None:
    with odd_node(b"") as address:
        connection = DataConnection.open(address, soon())
        with pytest.raises(DeadlineExceeded):
            connection.write(
                GrantedRange(SEGMENT, GRANT, 0, 1 << 26, b""), 0, memoryview(bytes(1 << 26)), soon(0.3), digest
            )
        assert connection.closed


@pytest.mark.parametrize("cut", [0, 5, 12, 14, 15, 40])
def test_a_connection_that_breaks_within_an_answer_is_unreachable(cut: int) -> None:
    whole = frame(0, 0, encode(Sending(64))) + bytes(64)
    with odd_node(whole[:cut], hang_up=True) as address:
        connection = DataConnection.open(address, soon())
        with pytest.raises(Unreachable):
            connection.read_into(WantedRange(SEGMENT, NO_TICKET, 0, memoryview(bytearray(64))), soon())
        assert connection.closed


def test_bytes_of_a_read_are_not_taken_for_a_refusal_when_the_next_request_cannot_be_sent() -> None:
    whole = frame(0, 0, encode(Sending(64))) + bytes(64)
    with odd_node(whole[:40]) as address:
        connection = DataConnection.open(address, soon())
        connection._socket.shutdown(socket.SHUT_WR)
        with pytest.raises(Unreachable):
            connection.read_into(WantedRange(SEGMENT, NO_TICKET, 0, memoryview(bytearray(64))), soon())
        assert connection.closed


@pytest.mark.parametrize(
    "says",
    [b"\xff" * 64, frame(0, 0, b"\xc1\xc1"), frame(0, 0, encode(Sending(63)))],
    ids=["giant frame", "no message", "another length"],
)
def test_an_answer_that_makes_no_sense_ends_the_connection(says: bytes) -> None:
    with odd_node(says) as address:
        connection = DataConnection.open(address, soon())
        with pytest.raises(BadRequest):
            connection.read_into(WantedRange(SEGMENT, NO_TICKET, 0, memoryview(bytearray(64))), soon())
        assert connection.closed
