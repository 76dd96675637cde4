"""A short run of what `make fuzz` runs for minutes, and every input that once was handled wrongly."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.coordination import codec as entries
from holdfast.errors import BadRequest
from holdfast.messages import records as r
from holdfast.messages.commands import Clean, decode_body
from holdfast.replication.batches import AlteredRecord, Position, UnknownRecord, decode_batch, encode_batch
from holdfast.replication.renewals import BadRenewals, RenewalValue, decode_value
from holdfast.replication.snapshots import CorruptSnapshot, Head, load
from holdfast.replication.standby import Standby
from tests.fuzz.live import PORTS, LiveCluster, fuzz_port, live_cluster
from tests.fuzz.mutation import Mutator
from tests.fuzz.targets import MAGIC, NOW, SECTION, TARGETS, history, renewal_seeds, sealed
from tests.fuzz.web import fuzz_http

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*-*"))
INPUTS = 120
LIVE_S = 2.0


@pytest.mark.parametrize("name", TARGETS)
def test_altered_bytes_give_a_value_or_a_typed_error(name: str) -> None:
    """I10, I13, I17"""
    target, mutator = TARGETS[name], Mutator(7)
    good = target.seeds()
    for data in good:
        target.run(data)
    for _ in range(INPUTS):
        target.run(target.alter(mutator, mutator.random.choice(good)))


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_an_input_that_was_once_handled_wrongly_is_not_again(path: Path) -> None:
    TARGETS[path.name.rpartition("-")[0]].run(path.read_bytes())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with live_cluster(tmp_path_factory.mktemp("live")) as cluster:
        yield cluster


@pytest.mark.parametrize("port", PORTS)
def test_altered_bytes_at_a_port_harm_nobody(cluster: LiveCluster, port: str) -> None:
    """I17: the processes live in bounded memory, a good client is served, and no log tells of a surprise."""
    assert fuzz_port(cluster, port, Mutator(7), LIVE_S, 10_000) > 0


def test_requests_made_from_the_description_of_the_api_are_answered(cluster: LiveCluster) -> None:
    assert fuzz_http(cluster, 7, LIVE_S, 1_000) > 0


# What altered bytes did before they gave typed errors.


def batch_with(body: bytes, count: int = 1) -> bytes:
    head = encode_batch(Position(), [])[0][:32]
    return head[:4] + struct.pack("<I", count) + head[8:] + body


@pytest.mark.parametrize(
    "body",
    [
        b"\x91" + msgspec.msgpack.encode([1, 5]) + b"\x93\x02\xa2\xff\xfe\xc4\x00",
        msgspec.msgpack.encode([r.LogStarted(1, "ok", b"")]).replace(b"\xa2ok", b"\xa2\xff\xfe"),
        b"\x91" * 5_000,
        b"\xdd\xff\xff\xff\xff",
    ],
    ids=["bytes behind the end", "text that is not UTF-8", "deep nesting", "a told length"],
)
def test_a_batch_whose_records_cannot_be_decoded_is_refused(body: bytes) -> None:
    """I13"""
    with pytest.raises(UnknownRecord):
        decode_batch(Position(), 1, batch_with(body))


@pytest.mark.parametrize(
    "record",
    [
        r.GrantEnded((1, 2), []),
        r.SegmentUnmounted(99),
        r.ObjectsRemoved(b"odd", b"", r.Cause.REMOVE),
        r.RangesFreed([1 << 63]),
    ],  # type: ignore[arg-type]
    ids=lambda record: type(record).__name__,
)
def test_a_record_that_contradicts_the_catalogue_ends_the_following_and_leaves_nothing(record: r.Record) -> None:
    """I13, I15: the copy that it was applied to in part is given up. A KeyError or struct.error went up, with which a
    standby failed and began again."""
    batches, _, _ = history()
    standby = Standby()
    standby.take(1, batches[0], NOW)
    batch, _ = encode_batch(
        standby.position, [msgspec.msgpack.encode(r.EpochStarted(9)), msgspec.msgpack.encode(record)]
    )
    with pytest.raises(AlteredRecord, match="altered"):
        standby.take(2, batch, NOW)
    assert standby.position == Position()
    assert standby.state.log_id == standby.state.index == 0


def section_replaced(wanted: bytes, content: bytes) -> bytes:
    whole = history()[2]
    at = len(MAGIC)
    while True:
        name, length, _ = SECTION.unpack_from(whole, at)
        if name.rstrip(b"\0") == wanted:
            end = at + SECTION.size + length
            return sealed(whole[:at] + SECTION.pack(wanted, len(content), 0) + content + whole[end:])
        at += SECTION.size + length


def with_handle(handle: int) -> bytes:
    """The snapshot, its first segment with another handle."""
    whole = history()[2]
    length = SECTION.unpack_from(whole, len(MAGIC))[1]
    at = len(MAGIC) + SECTION.size
    head = msgspec.msgpack.decode(whole[at : at + length])
    head[14][0]["handle"] = handle
    return section_replaced(b"head", msgspec.msgpack.encode(head))


def test_a_snapshot_with_an_impossible_handle_is_refused_and_allocates_nothing() -> None:
    """I18. The capacity of segments was an array as long as the largest handle: 8 TiB for this one."""
    assert load(with_handle(1 << 40), NOW).faults, "objects on a segment that is not there are left out, and told of"
    with pytest.raises(CorruptSnapshot, match="contradicts"):
        load(with_handle(1 << 63), NOW)


@pytest.mark.parametrize("field", ["lease_ttl_ms", "session_lease_ms", "epoch"])
def test_a_snapshot_with_an_impossible_number_is_refused(field: str) -> None:
    """I15, I18. It was loaded, and the promotion of whoever had it ended in an OverflowError."""
    whole = history()[2]
    length = SECTION.unpack_from(whole, len(MAGIC))[1]
    at = len(MAGIC) + SECTION.size
    head = msgspec.msgpack.decode(whole[at : at + length], type=Head)
    setattr(head, field, (1 << 64) - 1)
    with pytest.raises(CorruptSnapshot, match="impossible"):
        load(section_replaced(b"head", msgspec.msgpack.encode(head)), NOW)


def test_a_snapshot_head_that_is_not_utf8_or_too_deep_is_refused() -> None:
    for content in (b"\x91" * 5_000, b"\x92\x01\xa2\xff\xfe", b""):
        with pytest.raises(CorruptSnapshot, match="head"):
            load(section_replaced(b"head", content), NOW)


def test_renewals_beyond_their_columns_are_passed_over() -> None:
    """Numbers above 2^63 became negative: a row from the end was pinned, or IndexError went up."""
    good = msgspec.msgpack.decode(renewal_seeds()[0], type=RenewalValue)
    column = struct.pack("<BIQ", 8, 1, 0) + struct.pack("<Q", (1 << 64) - 2)
    for altered in (
        msgspec.structs.replace(good, soft_pinned=column, soft_pin_left_ms=struct.pack("<BIQ", 1, 1, 5) + b"\0"),
        msgspec.structs.replace(good, written_ms=1 << 63),
        msgspec.structs.replace(good, written_ms=-1),
    ):
        with pytest.raises(BadRenewals):
            decode_value(msgspec.msgpack.encode(altered))
    with pytest.raises(BadRenewals):
        decode_value(b"\x98\x01\x01\x01\xa2\xff\xfe")


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x92\x01\xa2\xff\xfe", b"\x91" * 5_000, bytes(7)])
def test_an_altered_entry_of_the_store_is_told_as_such(value: bytes) -> None:
    for decode in (entries.decode_record, entries.decode_leader, entries.decode_process_name):
        with pytest.raises(entries.AlteredEntry, match="altered"):
            decode(value)
    for decode in (entries.decode_batch, lambda value: entries.decode_tail(value, 1)):
        with pytest.raises(entries.AlteredEntry, match="bytes"):
            decode(value[:15])


def test_an_altered_body_of_a_command_is_refused() -> None:
    for body in (b"\xc1", b"\x91\xdd\xff\xff\xff\xff", b"\x91" * 5_000):
        with pytest.raises(BadRequest):
            decode_body(Clean, body)
