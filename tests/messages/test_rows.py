"""Packed rows: the bytes that earlier versions wrote into logs and onto the wire, and ways to read them that agree."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.state.packed_numbers import pack_sorted_ids, unpack_sorted_ids
from holdfast.core.state.row_tables import LISTED_FILE_TABLE, LOCATED_TABLE, PUT_TABLE, Table, new_table, table_of
from holdfast.messages import records as r
from holdfast.messages import rows as packed_rows
from holdfast.messages.rows import (
    AddedRow,
    CopiedRow,
    CopyRow,
    FileRow,
    ListedFileRow,
    LocatedRow,
    LostFileRow,
    MismatchRow,
    PlaceRow,
    PutRow,
    RemovedRow,
    RowLayout,
    SeenRow,
    TicketRow,
    VerifyRow,
    pack_ids,
    pack_sizes,
    unpack_ids,
    unpack_sizes,
)
from holdfast.replication.batches import encode_record

WORDS = (0x1122_3344_5566_7788, 1, 4_096, 0, (1 << 64) - 1, 7)
AS_BYTES = bytes.fromhex(
    "8877665544332211 0100000000000000 0010000000000000 0000000000000000 ffffffffffffffff 0700000000000000"
)
LAYOUTS: dict[RowLayout[Any], tuple[str, ...]] = {
    PutRow: ("offset", "size", "checksum"),
    LocatedRow: ("id", "segment", "offset", "size", "checksum"),
    SeenRow: ("id", "segment", "offset"),
    RemovedRow: ("removed", "leased", "lease_left_ms", "cursor", "missing", "pinned"),
    TicketRow: ("offset", "length"),
    CopyRow: ("id", "offset", "size", "checksum", "source", "source_offset"),
    CopiedRow: ("id", "offset", "source_segment", "source_offset", "checksum"),
    AddedRow: ("id", "offset"),
    PlaceRow: ("id", "segment", "offset"),
    FileRow: ("id", "offset"),
    ListedFileRow: ("id", "offset", "size", "checksum"),
    LostFileRow: ("id", "offset", "damage"),
    VerifyRow: ("id", "segment_number", "offset", "size", "checksum"),
    MismatchRow: ("id", "segment_number", "offset"),
}
"""Written down a second time: a field that moves or changes its meaning breaks logs and older peers."""
TABLES = [(PutRow, PUT_TABLE), (LocatedRow, LOCATED_TABLE), (ListedFileRow, LISTED_FILE_TABLE)]

each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(layout.fields))
a_word = st.integers(0, (1 << 64) - 1)


def test_every_layout_is_written_down_here() -> None:
    assert {each for each in vars(packed_rows).values() if isinstance(each, RowLayout)} == LAYOUTS.keys()


@each_layout
def test_a_row_is_its_fields_as_words_in_their_order(layout: RowLayout[Any]) -> None:
    width = len(layout.fields)
    assert layout.fields == LAYOUTS[layout]
    assert layout.pack(*WORDS[:width]) == AS_BYTES[: 8 * width]
    assert layout.size_bytes == 8 * width
    assert layout.unpack_one(AS_BYTES[: 8 * width]) == WORDS[:width]


@each_layout
@given(data=st.data())
def test_every_way_to_pack_and_unpack_agrees(layout: RowLayout[Any], data: st.DataObject) -> None:
    width = len(layout.fields)
    rows = data.draw(st.lists(st.tuples(*[a_word] * width), max_size=30))
    packed = layout.pack_rows(rows)
    assert packed == b"".join(layout.pack(*row) for row in rows)
    assert list(layout.iter_unpack(packed)) == rows == layout.unpack_whole(packed)
    assert layout.count(packed) == len(rows)
    columns = layout.columns(packed)
    assert list(zip(*columns, strict=True)) == rows
    assert layout.pack_columns(*columns) == packed
    chosen = data.draw(st.lists(st.integers(0, max(0, len(rows) - 1)), max_size=5)) if rows else []
    assert list(layout.iter_unpack(layout.select(packed, chosen))) == [rows[index] for index in chosen]


@each_layout
def test_a_row_that_lacks_its_end_is_noticed_or_left_out(layout: RowLayout[Any]) -> None:
    row = WORDS[: len(layout.fields)]
    cut = layout.pack(*row) * 2 + bytes(8 * len(row) - 1)
    assert layout.is_whole(cut[: 2 * layout.size_bytes])
    assert not layout.is_whole(cut)
    assert layout.unpack_whole(cut) == [row, row]
    for unpack in (layout.columns, layout.unpack_one, lambda packed: list(layout.iter_unpack(packed))):
        with pytest.raises(struct.error):
            unpack(cut)


@pytest.mark.parametrize(("layout", "kind"), TABLES)
@given(data=st.data())
def test_a_table_has_the_bytes_and_the_columns_of_its_rows(
    layout: RowLayout[Any], kind: Any, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.tuples(*[a_word] * len(layout.fields)), min_size=1, max_size=30))
    packed = layout.pack_rows(rows)
    found: Table = table_of(kind, packed)
    made: Table = new_table(kind, len(rows))
    for field, column in zip(layout.fields, layout.columns(packed), strict=True):
        assert found[field].tolist() == list(column)
        made[field] = found[field]
    assert made.tobytes() == packed
    with pytest.raises(ValueError, match="multiple"):
        table_of(kind, packed + b"x")


def test_ids_are_packed_in_two_ways() -> None:
    assert pack_ids([3, 1, 1 << 63]).hex(" ", 8) == "0300000000000000 0100000000000000 0000000000000080"
    assert unpack_ids(pack_ids([3, 1, 1 << 63])) == [3, 1, 1 << 63]
    close = [1 << 40 | 9, 1 << 40 | 2, 1 << 40 | 700]
    assert pack_sorted_ids(close).hex() == "0200000000010000020200000007000000000000000000ac02"
    assert unpack_sorted_ids(pack_sorted_ids(close)).tolist() == sorted(close)
    assert pack_sizes([64, 4_096]) == pack_ids([64, 4_096])
    assert unpack_sizes(pack_sizes([64, 4_096])) == (64, 4_096)


def test_records_have_the_bytes_that_earlier_versions_wrote() -> None:
    first, held = 1 << 40 | 14, 1 << 40 | 3
    commit = r.ObjectsCommitted((7, 5), first, ["k01"], PutRow.pack(0, 100, 7), False, False, pack_ids([held]))  # type: ignore[arg-type]
    assert encode_record(commit).hex() == (
        "9909920705cf000001000000000e91a36b3031c418000000000000000064000000000000000700000000000000c2c2c4080300000000010000c400"
    )
    removal = r.ObjectsRemoved(pack_ids([1 << 40 | 2]), b"", r.Cause.REMOVE)
    assert encode_record(removal).hex() == "940ac4080200000000010000c40001"
    answer = r.RemovalAnswered(7, 3, RemovedRow.pack(1, 0, 0, 0, 0, 0))
    assert encode_record(answer).hex() == "940c0703c4300100000000000000" + "00" * 40
