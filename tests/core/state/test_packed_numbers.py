"""Numbers in few bytes come back as they were; bytes that are none are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.state.packed_numbers import (
    pack_column,
    pack_sorted_ids,
    unpack_column,
    unpack_sorted_ids,
)
from holdfast.errors import BadValue
from holdfast.ids import object_id

WORDS = st.integers(0, 2**64 - 1)


@given(st.lists(WORDS))
def test_a_column_comes_back(values: list[int]) -> None:
    assert unpack_column(pack_column(values)).tolist() == values


@given(st.lists(WORDS, unique=True))
def test_ids_come_back_in_order(ids: list[int]) -> None:
    packed = pack_sorted_ids(ids)
    assert unpack_sorted_ids(packed).tolist() == sorted(ids)


@given(st.lists(WORDS, min_size=2, unique=True), st.data())
def test_bytes_that_are_no_column_are_refused(values: list[int], data: st.DataObject) -> None:
    """Cut short anywhere, longer than they say, or of a width that no column has."""
    for whole, unpack, head in (
        (pack_column(values), unpack_column, 0),
        (pack_sorted_ids(values), unpack_sorted_ids, 8),
    ):
        # The first id alone is whole in its eight bytes.
        cut = data.draw(st.integers(1, len(whole) - 1).filter(lambda cut, head=head: cut != head))
        width = data.draw(st.integers(0, 255).filter(lambda width: width not in (1, 2, 4, 8)))
        spoiled = [whole[:cut], whole + data.draw(st.binary(min_size=1, max_size=80))]
        count = int.from_bytes(whole[head + 1 : head + 5], "little")
        spoiled.append(whole[:head] + bytes([width]) + whole[head + 1 : head + 13] + bytes(width * count))
        for packed in spoiled:
            with pytest.raises(BadValue):
                unpack(packed)


def test_nothing_is_allocated_by_a_length_that_the_bytes_name() -> None:
    """A head that promises four billion numbers of eight bytes, and one of them."""
    packed = b"\x08" + b"\xff" * 4 + bytes(8) + bytes(8)
    for unpack, head in ((unpack_column, b""), (unpack_sorted_ids, bytes(8))):
        with pytest.raises(BadValue):
            unpack(head + packed)


def test_evicted_ids_take_two_bytes_where_they_were_put_together() -> None:
    """8,192 of the oldest of a million objects, in the order of their use, which is none."""
    rng = np.random.default_rng(3)
    ids = object_id(7, 1) + np.sort(rng.choice(100_000, 8_192, replace=False)).astype(np.uint64)
    assert len(pack_sorted_ids(ids)) < 8_192 * 2.1


def test_nothing_packs_to_nothing() -> None:
    assert pack_sorted_ids([]) == pack_column([]) == b""
    assert len(unpack_sorted_ids(b"")) == len(unpack_column(b"")) == 0
    with pytest.raises(BadValue):
        unpack_sorted_ids(b"short")
