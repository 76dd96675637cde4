"""Any bytes at all: they give frames and messages, or BadRequest, and never anything else (I10, I17)."""

from __future__ import annotations

import contextlib
import struct

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.errors import BadRequest, WrongVersion
from holdfast.messages.shapes import Message
from holdfast.wire import codec
from holdfast.wire.codec import FIRST_BYTES, NEWEST, OLDEST, PREAMBLE, FrameBuffer, check_preamble, frame
from tests.wire.strategies import of_struct

DECODERS = {
    "requests": (codec.REQUESTS, codec.decode_request),
    "replies": (codec.REPLIES, codec.decode_reply),
    "data requests": (codec.DATA_REQUESTS, codec.decode_data_request),
    "data replies": (codec.DATA_REPLIES, codec.decode_data_reply),
}

leaves = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary()
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=20
)
tags = st.integers(0, 130)


def decode_or_refuse(decode: codec.Decode, kinds: tuple[type[Message], ...], payload: bytes | memoryview) -> None:
    """Anything but BadRequest goes up and fails the test."""
    with contextlib.suppress(BadRequest):
        message = decode(payload)
        assert type(message) in kinds
        again = codec.encode(decode(codec.encode(message)))
        assert again == codec.encode(message), "as bytes: a number that is none differs from itself"


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=300)
@given(payload=st.binary(max_size=200))
@example(payload=b"")
@example(payload=b"\xc1")
@example(payload=b"\x92\x02" + b"\x91" * 2000)
def test_any_bytes_give_a_message_or_bad_request(name: str, payload: bytes) -> None:
    kinds, decode = DECODERS[name]
    decode_or_refuse(decode, kinds, payload)


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=200)
@given(tag=tags | leaves, fields=st.lists(trees, max_size=10))
def test_any_msgpack_gives_a_message_or_bad_request(name: str, tag: object, fields: list[object]) -> None:
    kinds, decode = DECODERS[name]
    decode_or_refuse(decode, kinds, msgspec.msgpack.encode([tag, *fields]))


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=200)
@given(data=st.data())
def test_a_damaged_message_gives_a_message_or_bad_request(name: str, data: st.DataObject) -> None:
    kinds, decode = DECODERS[name]
    payload = bytearray(codec.encode(data.draw(of_struct(data.draw(st.sampled_from(kinds))))))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(decode, kinds, payload)
    decode_or_refuse(decode, kinds, memoryview(payload))


@settings(max_examples=300)
@given(chunks=st.lists(st.binary(max_size=64), max_size=30), limit=st.sampled_from([0, 16, 1000, 8 << 20]))
def test_any_stream_gives_frames_or_bad_request(chunks: list[bytes], limit: int) -> None:
    buffer = FrameBuffer(limit)
    stream, taken = b"".join(chunks), 0
    with contextlib.suppress(BadRequest):
        for chunk in chunks:
            buffer.space()[: len(chunk)] = chunk
            buffer.filled(len(chunk))
            while (one := buffer.next_frame()) is not None:
                whole = frame(one[0], one[1], bytes(one[2]))
                assert len(one[2]) <= limit
                assert stream[taken : taken + len(whole)] == whole, "a frame is made of the bytes that came"
                taken += len(whole)
    assert len(buffer._bytes) == FIRST_BYTES


@settings(max_examples=200)
@given(data=st.data())
def test_a_stream_of_requests_with_one_bad_byte_never_misleads(data: st.DataObject) -> None:
    messages = data.draw(st.lists(st.sampled_from(codec.REQUESTS).flatmap(of_struct), min_size=1, max_size=5))
    stream = bytearray(b"".join(frame(at, 0, codec.encode(message)) for at, message in enumerate(messages)))
    broken = data.draw(st.integers(0, len(stream) - 1))
    stream[broken] ^= data.draw(st.integers(1, 255))
    buffer = FrameBuffer()
    buffer.space()[: len(stream)] = stream
    buffer.filled(len(stream))
    taken = 0
    with contextlib.suppress(BadRequest):
        while (one := buffer.next_frame()) is not None:
            taken += len(one[2]) + 12
            if taken <= broken:
                assert codec.decode_request(one[2]) == messages[one[0]], "what came before the damage is whole"
            else:
                decode_or_refuse(codec.decode_request, codec.REQUESTS, one[2])


@given(st.binary(min_size=8, max_size=8) | st.binary(min_size=4, max_size=4).map(lambda rest: PREAMBLE[:4] + rest))
def test_any_preamble_but_ours_is_refused(given_bytes: bytes) -> None:
    oldest, more = struct.unpack("<HH", given_bytes[4:])
    if given_bytes[:4] == PREAMBLE[:4] and oldest <= NEWEST and oldest + more >= OLDEST:
        assert OLDEST <= check_preamble(given_bytes) <= NEWEST
    else:
        with pytest.raises((BadRequest, WrongVersion), match="protocol"):
            check_preamble(given_bytes)
