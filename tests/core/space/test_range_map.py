"""A number for every byte, by ranges: against a list with one entry for each byte."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.space.range_map import RangeMap

BYTES = 40


@given(st.lists(st.tuples(st.integers(0, BYTES - 10), st.integers(1, 10), st.integers(0, 2)), max_size=30))
def test_it_is_what_a_list_of_all_bytes_is(puts: list[tuple[int, int, int]]) -> None:
    ranges, model = RangeMap(0), [0] * BYTES
    for offset, length, value in puts:
        ranges.put(offset, length, value)
        model[offset : offset + length] = [value] * length
        assert [ranges.over(at, 1) for at in range(BYTES)] == [[each] for each in model]
        assert set(ranges.over(offset, BYTES - offset)) == set(model[offset:])
        assert len(ranges) == 1 + sum(one != following for one, following in pairwise(model)), "neighbours differ"


@given(st.lists(st.tuples(st.integers(0, BYTES - 10), st.integers(1, 10), st.integers(0, 9)), max_size=30))
def test_coarsened_it_is_nowhere_lower_and_has_half_as_many_ranges(puts: list[tuple[int, int, int]]) -> None:
    ranges = RangeMap(0)
    for put in puts:
        ranges.put(*put)
    coarse = ranges.coarsened()
    assert len(coarse) <= (len(ranges) + 1) // 2
    assert all(coarse.over(at, 1) >= ranges.over(at, 1) for at in range(BYTES))


def test_a_copy_does_not_change_with_its_original() -> None:
    ranges = RangeMap(0)
    copied = ranges.copy()
    ranges.put(10, 10, 1)
    assert (copied.over(10, 10), ranges.over(10, 10)) == ([0], [1])
