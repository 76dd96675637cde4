"""Numbers in few bytes come back as they were; bytes that are none are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.narrow import count_ids, pack_column, pack_ids, unpack_column, unpack_ids
from holdfast.errors import BadValue
from holdfast.ids import object_id

WORDS = st.integers(0, 2**64 - 1)


@given(st.lists(WORDS))
def test_a_column_comes_back(values: list[int]) -> None:
    assert unpack_column(pack_column(values)).tolist() == values


@given(st.lists(WORDS, unique=True))
def test_ids_come_back_in_order(ids: list[int]) -> None:
    packed = pack_ids(ids)
    assert unpack_ids(packed).tolist() == sorted(ids)
    assert count_ids(packed) == len(ids)


@given(st.binary(max_size=80))
def test_bytes_that_are_no_column_are_refused(packed: bytes) -> None:
    for unpack in (unpack_column, unpack_ids):
        try:
            assert len(unpack(packed)) <= len(packed)
        except BadValue:
            continue


def test_evicted_ids_take_two_bytes_where_they_were_put_together() -> None:
    """8,192 of the oldest of a million objects, in the order of their use, which is none."""
    rng = np.random.default_rng(3)
    ids = object_id(7, 1) + np.sort(rng.choice(100_000, 8_192, replace=False)).astype(np.uint64)
    assert len(pack_ids(ids)) < 8_192 * 2.1


def test_nothing_packs_to_nothing() -> None:
    assert pack_ids([]) == pack_column([]) == b""
    assert len(unpack_ids(b"")) == len(unpack_column(b"")) == count_ids(b"") == 0
    with pytest.raises(BadValue):
        unpack_ids(b"short")
