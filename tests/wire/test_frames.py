"""Frames: whatever way the bytes arrive, the same frames come out, and no length is trusted."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadRequest, WrongVersion
from holdfast.wire.codec import (
    FIRST_BYTES,
    HEAD_BYTES,
    MAX_FRAME_BYTES,
    NEWEST,
    OLDEST,
    PREAMBLE,
    FrameBuffer,
    check_preamble,
    frame,
)

Frame = tuple[int, int, bytes]

words = st.integers(0, 0xFFFF_FFFF)
frames = st.lists(st.tuples(words, words, st.binary(max_size=300)), max_size=8)


def stream_of(sent: list[Frame]) -> bytes:
    return b"".join(frame(*one) for one in sent)


def receive(buffer: FrameBuffer, chunk: bytes) -> list[Frame]:
    """Fill in what arrived, however little space there is at a time, and take the frames that are whole."""
    got: list[Frame] = []
    while True:
        space = buffer.space()
        assert len(space) > 0, "there is always room for the next byte"
        count = min(len(space), len(chunk))
        space[:count] = chunk[:count]
        buffer.filled(count)
        chunk = chunk[count:]
        while (one := buffer.next_frame()) is not None:
            got.append((one[0], one[1], bytes(one[2])))
        if not chunk:
            return got


def capacity_of(buffer: FrameBuffer) -> int:
    return len(buffer._bytes)


@given(frames, st.data())
def test_any_split_of_the_stream_gives_the_same_frames(sent: list[Frame], data: st.DataObject) -> None:
    stream = stream_of(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    buffer, got = FrameBuffer(), list[Frame]()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += receive(buffer, stream[start:end])
    assert got == sent
    assert len(buffer) == 0


@given(frames)
def test_one_byte_at_a_time_gives_the_same_frames(sent: list[Frame]) -> None:
    buffer, got = FrameBuffer(), list[Frame]()
    for at, byte in enumerate(stream := stream_of(sent)):
        got += receive(buffer, bytes([byte]))
        assert stream_of(got) == stream[: len(stream_of(got))]
        assert len(buffer) == at + 1 - len(stream_of(got))
    assert got == sent


def test_a_stream_cut_at_any_byte_gives_the_whole_frames_before_the_cut() -> None:
    sent: list[Frame] = [(1, 30_000, b""), (2, 0, b"a" * 70), (0xFFFF_FFFF, 0xFFFF_FFFF, b"\0" * 3), (4, 1, b"end")]
    stream = stream_of(sent)
    ends = [len(stream_of(sent[: count + 1])) for count in range(len(sent))]
    for cut in range(len(stream) + 1):
        buffer = FrameBuffer()
        assert receive(buffer, stream[:cut]) == sent[: sum(end <= cut for end in ends)]


def test_frames_larger_than_the_first_buffer_come_whole() -> None:
    payload = bytes(range(256)) * 2048
    sent: list[Frame] = [(1, 0, payload), (2, 0, b"x"), (3, 0, payload[:-1]), (4, 0, b"")]
    stream = stream_of(sent)
    buffer, got = FrameBuffer(), list[Frame]()
    for at in range(0, len(stream), 10_007):
        got += receive(buffer, stream[at : at + 10_007])
    assert got == sent


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 0x7FFF_FFFF, 0xFFFF_FFFF])
def test_a_giant_length_is_refused_before_memory_is_taken_i17(length: int) -> None:
    buffer = FrameBuffer()
    with pytest.raises(BadRequest, match="over the limit"):
        receive(buffer, struct.pack("<III", length, 1, 0))
    assert capacity_of(buffer) == FIRST_BYTES


def test_a_promised_length_takes_no_memory_until_the_bytes_arrive_i17() -> None:
    buffer = FrameBuffer()
    receive(buffer, struct.pack("<III", MAX_FRAME_BYTES, 1, 0))
    assert capacity_of(buffer) == FIRST_BYTES
    arrived = HEAD_BYTES
    chunk = bytes(48_000)
    while arrived < 2_000_000:
        receive(buffer, chunk)
        arrived += len(chunk)
        assert capacity_of(buffer) <= max(FIRST_BYTES, 4 * arrived)


def test_a_frame_of_exactly_the_limit_is_taken_and_its_memory_given_back_i17() -> None:
    payload = bytes(MAX_FRAME_BYTES)
    buffer = FrameBuffer()
    assert receive(buffer, frame(1, 2, payload)) == [(1, 2, payload)]
    assert capacity_of(buffer) <= 4 * MAX_FRAME_BYTES
    receive(buffer, b"")
    assert capacity_of(buffer) == FIRST_BYTES


def test_a_message_over_the_limit_is_not_sent() -> None:
    with pytest.raises(BadRequest, match="nothing was sent"):
        frame(1, 0, bytes(MAX_FRAME_BYTES + 1))


def test_a_buffer_with_its_own_limit_keeps_it() -> None:
    buffer = FrameBuffer(limit=100)
    assert receive(buffer, frame(1, 0, bytes(100))) == [(1, 0, bytes(100))]
    with pytest.raises(BadRequest, match="limit of 100"):
        receive(buffer, frame(1, 0, bytes(101)))


def test_a_payload_is_good_until_space_is_asked_for_again() -> None:
    buffer = FrameBuffer()
    stream = frame(1, 0, b"first") + frame(2, 0, b"second")
    buffer.space()[: len(stream)] = stream
    buffer.filled(len(stream))
    first, second = buffer.next_frame(), buffer.next_frame()
    assert first is not None
    assert second is not None
    assert (bytes(first[2]), bytes(second[2])) == (b"first", b"second")


def test_the_preamble_is_taken_before_the_first_frame() -> None:
    buffer = FrameBuffer()
    stream = PREAMBLE + frame(1, 0, b"hello")
    for at in range(len(PREAMBLE)):
        assert not buffer.take_preamble()
        buffer.space()[:1] = stream[at : at + 1]
        buffer.filled(1)
    assert buffer.take_preamble()
    assert receive(buffer, stream[len(PREAMBLE) :]) == [(1, 0, b"hello")]


def preamble_of(oldest: int, newest: int) -> bytes:
    return PREAMBLE[:4] + struct.pack("<HH", oldest, newest - oldest)


@pytest.mark.parametrize(
    ("oldest", "newest", "behind"),
    [
        (OLDEST - 1, OLDEST - 1, "the caller"),
        (NEWEST + 1, NEWEST + 1, "the one that was called"),
        (NEWEST + 1, NEWEST + 3, "the one that was called"),
    ],
)
def test_a_version_too_far_away_is_told_which_side_to_upgrade(oldest: int, newest: int, behind: str) -> None:
    text = f"versions {oldest} to {newest}, .* {OLDEST} to {NEWEST}; .* Upgrade {behind},"
    with pytest.raises(WrongVersion, match=text):
        check_preamble(preamble_of(oldest, newest))
    buffer = FrameBuffer()
    buffer.space()[: len(PREAMBLE)] = preamble_of(oldest, newest)
    buffer.filled(len(PREAMBLE))
    with pytest.raises(WrongVersion):
        buffer.take_preamble()


@pytest.mark.parametrize(
    ("oldest", "newest", "spoken"),
    [(OLDEST, NEWEST, NEWEST), (1, 1, 1), (NEWEST, NEWEST + 1, NEWEST), (OLDEST, OLDEST, OLDEST)],
)
def test_the_newest_version_of_both_sides_is_spoken(oldest: int, newest: int, spoken: int) -> None:
    assert check_preamble(preamble_of(oldest, newest)) == spoken


def test_the_preamble_is_one_that_version_1_takes() -> None:
    """Version 1 compares the first number with its own, and reads no other: this stays while 1 is spoken."""
    assert PREAMBLE[4:6] == struct.pack("<H", 1)


@pytest.mark.parametrize(
    "stranger", [b"GET / HT", b"\x16\x03\x01\x02\x00\x01\x00\x01", bytes(8), b"HLDG\1\0\0\0", b"SSH-2.0-"]
)
def test_a_stranger_is_told_so(stranger: bytes) -> None:
    with pytest.raises(BadRequest, match="does not speak"):
        check_preamble(stranger)


def test_a_receive_that_brought_one_frame_gives_it_at_once() -> None:
    buffer = FrameBuffer()
    data = frame(7, 5, b"payload")
    buffer.space()[: len(data)] = data
    found = buffer.sole_frame(len(data))
    assert found is not None
    assert (found[0], found[1], bytes(found[2])) == (7, 5, b"payload")
    assert buffer.next_frame() is None


def test_a_receive_that_brought_more_or_less_than_one_frame_is_kept() -> None:
    one, two = frame(7, 5, b"payload"), frame(8, 0, b"another")
    for cut in range(1, len(one) + len(two) + 1):
        buffer = FrameBuffer()
        found = []
        for piece in ((one + two)[:cut], (one + two)[cut:]):
            if not piece:
                continue
            buffer.space()[: len(piece)] = piece
            sole = buffer.sole_frame(len(piece))
            if sole is not None:
                found.append((sole[0], bytes(sole[2])))
            while (held := buffer.next_frame()) is not None:
                found.append((held[0], bytes(held[2])))
        assert found == [(7, b"payload"), (8, b"another")], f"cut at {cut}"


def test_a_sole_frame_over_the_limit_is_refused_as_any_other() -> None:
    buffer = FrameBuffer(limit=4)
    data = frame(7, 5, b"payload")
    buffer.space()[: len(data)] = data
    assert buffer.sole_frame(len(data)) is None
    with pytest.raises(BadRequest):
        buffer.next_frame()


def test_buffers_with_a_common_scratch_keep_only_what_is_not_whole() -> None:
    """ADR 51: thousands of idle connections hold no buffers."""
    scratch = memoryview(bytearray(FIRST_BYTES))
    buffers = [FrameBuffer(scratch=scratch) for _ in range(3)]
    data = [frame(number, 0, bytes([number]) * 30_000) for number in range(3)]
    for buffer, whole in zip(buffers, data, strict=True):
        assert buffer.space().obj is scratch.obj
        buffer.space()[:20_000] = whole[:20_000]
        buffer.filled(20_000)
        assert buffer.next_frame() is None
        assert 20_000 <= buffer.keep() <= 25_000
    for number, (buffer, whole) in enumerate(zip(buffers, data, strict=True)):
        assert receive(buffer, whole[20_000:] + frame(9, 0, b"next")) == [
            (number, 0, bytes([number]) * 30_000),
            (9, 0, b"next"),
        ]
        assert buffer.keep() == 0
        assert buffer.space().obj is scratch.obj


def test_a_long_frame_takes_no_more_than_itself() -> None:
    buffer = FrameBuffer(scratch=memoryview(bytearray(FIRST_BYTES)))
    payload = bytes(MAX_FRAME_BYTES)
    assert receive(buffer, frame(1, 2, payload)[:-1]) == []
    assert buffer.keep() <= MAX_FRAME_BYTES + FIRST_BYTES
    assert receive(buffer, payload[:1]) == [(1, 2, payload)]
    assert buffer.keep() == 0
