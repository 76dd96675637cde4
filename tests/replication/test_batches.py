"""Batches of records: contiguous, chained, and readable only by who knows every record."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.messages.log_versions import LOG_VERSION
from holdfast.messages.records import EpochStarted, RangesFreed
from holdfast.replication.batches import (
    HEAD_BYTES,
    BrokenChain,
    Position,
    UnknownRecord,
    decode_batch,
    encode_batch,
    encode_record,
)

RECORDS = [EpochStarted(7), RangesFreed([1, 2, 3])]


def batch_of(after: Position, *records: object) -> tuple[bytes, Position]:
    return encode_batch(after, [encode_record(record) for record in records])  # type: ignore[arg-type]


def test_a_batch_comes_back_as_it_was_and_the_chain_goes_on() -> None:
    """I13"""
    first, behind = batch_of(Position(), *RECORDS)
    assert decode_batch(Position(), 1, first) == (RECORDS, behind)
    second, end = batch_of(behind, EpochStarted(8))
    assert decode_batch(behind, 2, second) == ([EpochStarted(8)], end)
    assert (end.batch, end.index) == (2, 3)
    assert len(first) == HEAD_BYTES + sum(len(encode_record(record)) for record in RECORDS)


def test_only_the_next_batch_of_the_same_history_is_taken() -> None:
    """I13: a gap, a repetition, and another history are each refused."""
    first, behind = batch_of(Position(), *RECORDS)
    other, elsewhere = batch_of(Position(), EpochStarted(99), RangesFreed([1, 2, 3]))
    second, _ = batch_of(behind, EpochStarted(8))
    for after, number, batch in (
        (Position(), 2, second),
        (behind, 1, first),
        (elsewhere, 2, second),
        (Position(), 1, second),
        (behind, 2, other),
    ):
        with pytest.raises(BrokenChain):
            decode_batch(after, number, batch)


def test_a_record_or_format_of_a_newer_version_stops_the_reader() -> None:
    """I13"""
    unknown, _ = encode_batch(Position(), [msgspec.msgpack.encode([99, 1, 2])])
    with pytest.raises(UnknownRecord):
        decode_batch(Position(), 1, unknown)
    newer = bytearray(batch_of(Position(), *RECORDS)[0])
    newer[2] = LOG_VERSION + 1
    with pytest.raises(UnknownRecord, match="upgrade"):
        decode_batch(Position(), 1, bytes(newer))


@given(st.binary(max_size=200), st.integers(0, 100))
def test_any_bytes_are_a_batch_or_refused(junk: bytes, at: int) -> None:
    batch = batch_of(Position(), *RECORDS)[0]
    for given_bytes in (junk, batch[:at] + junk, batch[:at]):
        if given_bytes != batch:
            with pytest.raises((BrokenChain, UnknownRecord)):
                decode_batch(Position(), 1, given_bytes)
