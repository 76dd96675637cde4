"""Every message travels unchanged, and nothing that is not one of the expected messages is taken for one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import errors
from holdfast.errors import BadRequest
from holdfast.ids import GrantId, SegmentName
from holdfast.messages import of_nodes, records, requests
from holdfast.messages.shapes import Message, Record
from holdfast.wire import codec
from holdfast.wire.mac import range_mac, same_mac
from tests.wire.strategies import of_struct

DECODERS: list[tuple[tuple[type[Message], ...], codec.Decode]] = [
    (codec.REQUESTS, codec.decode_request),
    (codec.REPLIES, codec.decode_reply),
    (codec.DATA_REQUESTS, codec.decode_data_request),
    (codec.DATA_REPLIES, codec.decode_data_reply),
]
KINDS = [pytest.param(kind, decode, id=kind.__name__) for kinds, decode in DECODERS for kind in kinds]
RECORDS = [kind for kind in vars(records).values() if isinstance(kind, type) and Record in kind.__bases__]

pack = msgspec.msgpack.encode


@pytest.mark.parametrize(("kind", "decode"), KINDS)
@settings(max_examples=25)
@given(data=st.data())
def test_every_message_comes_back_as_it_was_sent(
    kind: type[Message], decode: codec.Decode, data: st.DataObject
) -> None:
    message = data.draw(of_struct(kind))
    payload = codec.encode(message)
    again = decode(payload)
    assert type(again) is kind
    assert again == message
    assert decode(memoryview(bytearray(payload))) == message, "a payload is a view of a receive buffer"


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_every_record_comes_back_as_it_was_logged_i5(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(of_struct(kind))
    assert msgspec.msgpack.decode(pack(record), type=kind) == record


@pytest.mark.parametrize(("kind", "decode"), KINDS)
@settings(max_examples=5)
@given(data=st.data())
def test_a_message_cut_off_anywhere_is_refused(kind: type[Message], decode: codec.Decode, data: st.DataObject) -> None:
    payload = codec.encode(data.draw(of_struct(kind)))
    for length in range(len(payload)):
        with pytest.raises(BadRequest, match="nothing was changed"):
            decode(payload[:length])


def test_every_message_kind_is_decoded_somewhere() -> None:
    decoded = {kind for kinds, _ in DECODERS for kind in kinds}
    parts = {requests.Replica, requests.ObjectStat, requests.NodeInfo}
    assert set(Message.__subclasses__()) == decoded | parts


def test_no_two_kinds_share_a_tag() -> None:
    for family in (Message.__subclasses__(), RECORDS):
        assert len(family) > 10
        tags = [kind.__struct_config__.tag for kind in family]
        assert len(tags) == len(set(tags))


@pytest.mark.parametrize(
    ("what", "payload"),
    [
        ("nothing", b""),
        ("no msgpack", b"\xc1"),
        ("not an array", pack({"t": 2, "keys": []})),
        ("an empty array", pack([])),
        ("an unknown tag", pack([63, []])),
        ("a tag of a reply", pack([96, 1, 2, "n", 1, 1, 1, 1, 1])),
        ("a negative tag", pack([-1, []])),
        ("a tag that is a string", pack(["Exists", []])),
        ("too few fields", pack([9, ["k"]])),
        ("a wrong type", pack([2, "k"])),
        ("a number for a key", pack([2, [1]])),
        ("bytes for a key", pack([2, [b"k"]])),
        ("a string for columns", pack([4, "rows"])),
        ("a float for a number", pack([9, ["k"], 1.5])),
        ("a number over 64 bits", pack([9, ["k"]])[:-1] + b"\xc7\x09\x01" + bytes(9)),
        ("nil for a list", pack([2, None])),
        ("a grant of one number", pack([8, [[1]]])),
        ("bytes after the message", pack([2, []]) + b"\x00"),
    ],
)
def test_what_is_no_request_is_refused(what: str, payload: bytes) -> None:
    with pytest.raises(BadRequest, match="nothing was changed"):
        codec.decode_request(payload)


@pytest.mark.parametrize("text", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"ab\x80", b"\xc0\xaf"])
def test_a_key_that_is_no_utf8_is_refused(text: bytes) -> None:
    payload = b"\x92\x02\x91" + bytes([0xA0 | len(text)]) + text
    with pytest.raises(BadRequest):
        codec.decode_request(payload)


@pytest.mark.parametrize("depth", [10, 1_000, 100_000, 5_000_000])
@pytest.mark.parametrize("level", [b"\x91", b"\x81\x00", b"\xdd\x00\x00\x00\x01"], ids=["arrays", "maps", "array32"])
def test_nesting_made_to_exhaust_the_stack_is_refused(level: bytes, depth: int) -> None:
    nested = level * depth + b"\xc0"
    for payload in (nested, b"\x92\x02" + nested, b"\x92\x02\x91" + nested, b"\x93\x02\x90" + nested):
        with pytest.raises(BadRequest):
            codec.decode_request(payload)


def test_nesting_in_a_field_of_a_newer_peer_is_refused_or_ignored() -> None:
    # Fields beyond those known are skipped, which is where nesting would meet a decoder that recurses.
    payload = b"\x94\x02\x90\xc2" + b"\x91" * 5_000_000 + b"\xc0"
    with pytest.raises(BadRequest):
        codec.decode_request(payload)


@pytest.mark.parametrize("head", [b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff"], ids=["array32", "array16"])
def test_a_list_that_claims_more_than_was_sent_is_refused(head: bytes) -> None:
    with pytest.raises(BadRequest):
        codec.decode_request(b"\x92\x02" + head + b"\xa1k")


@pytest.mark.parametrize("head", [b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"], ids=["str32", "bin32"])
def test_a_string_that_claims_more_than_was_sent_is_refused(head: bytes) -> None:
    with pytest.raises(BadRequest):
        codec.decode_request(b"\x92\x04" + head + b"abc")


def test_fields_with_defaults_may_be_left_out_by_an_older_peer() -> None:
    assert codec.decode_request(pack([2, ["k"]])) == requests.Exists(["k"], touch=False)
    assert codec.decode_reply(pack([103, 3])) == requests.Removed(3)


def test_fields_of_a_newer_peer_are_ignored() -> None:
    assert codec.decode_request(pack([2, ["k"], True, False, [], "new", [1]])) == requests.Exists(["k"], touch=True)


def test_a_request_is_not_taken_for_a_data_request_or_a_reply() -> None:
    payload = codec.encode(requests.Exists(["k"]))
    for decode in (codec.decode_reply, codec.decode_data_request, codec.decode_data_reply):
        with pytest.raises(BadRequest):
            decode(payload)


@pytest.mark.parametrize("kind", errors.BY_CODE.values(), ids=lambda kind: kind.__name__)
def test_every_error_is_raised_again_with_its_type_and_text(kind: type[errors.HoldfastError]) -> None:
    reply = codec.decode_reply(codec.encode(codec.failed(kind("what happened; what to do"))))
    with pytest.raises(kind) as raised:
        codec.expect(reply, requests.Presence)
    assert type(raised.value) is kind
    assert str(raised.value) == "what happened; what to do"


def test_an_error_code_of_a_newer_peer_is_still_an_error() -> None:
    with pytest.raises(errors.HoldfastError, match="too new"):
        codec.expect(requests.Failed("invented_later", "too new"), requests.Presence)


def test_a_reply_of_another_kind_than_asked_for_is_refused() -> None:
    assert codec.expect(requests.Presence(b"\1"), requests.Presence).found == b"\1"
    with pytest.raises(BadRequest, match="Done where Presence"):
        codec.expect(requests.Done(), requests.Presence)


def test_a_mac_vouches_for_one_range_of_one_grant_only() -> None:
    segment, grant = SegmentName("n", 7, 0), GrantId(1, 2)
    right = range_mac(b"s" * 32, segment, grant, 4096, 64)
    assert len(right) == 16
    assert same_mac(right, range_mac(b"s" * 32, segment, grant, 4096, 64))
    others = [
        range_mac(b"t" * 32, segment, grant, 4096, 64),
        range_mac(b"s" * 32, SegmentName("n", 8, 0), grant, 4096, 64),
        range_mac(b"s" * 32, segment, GrantId(1, 3), 4096, 64),
        range_mac(b"s" * 32, segment, grant, 0, 64),
        range_mac(b"s" * 32, segment, grant, 4096, 128),
    ]
    assert not any(same_mac(right, other) for other in others)
    assert len(set(others)) == len(others)


def test_a_data_request_names_its_segment_in_full_i14() -> None:
    message = of_nodes.CheckFile(SegmentName("n", 1 << 63, 3), 0)
    again = codec.decode_data_request(codec.encode(message))
    assert isinstance(again, of_nodes.CheckFile)
    assert again.segment == ("n", 1 << 63, 3)
    with pytest.raises(BadRequest):
        codec.decode_data_request(pack([82, ["n", 1], 0, 1]))
