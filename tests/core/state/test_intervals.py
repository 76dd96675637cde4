"""Intervals against the plainest model there is: a set of integers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.state.grants import IntervalSet

LENGTH = 60

pairs = st.tuples(st.integers(-2, LENGTH), st.integers(-2, LENGTH))


def build(*taken: tuple[int, int]) -> IntervalSet:
    intervals = IntervalSet()
    for start, end in taken:
        intervals.add(start, end)
    return intervals


@given(st.lists(pairs, max_size=40), st.integers(0, LENGTH + 5))
def test_intervals_hold_exactly_what_was_added_i9(wanted: list[tuple[int, int]], length: int) -> None:
    intervals, model = IntervalSet(), set[int]()
    for start, end in wanted:
        new = set(range(start, end))
        if start < 0 or not new or new & model:
            with pytest.raises(ValueError):
                intervals.add(start, end)
        else:
            assert not intervals.overlaps(start, end)
            intervals.add(start, end)
            model |= new
        assert intervals.total == len(model)
    assert {number for start, end in intervals for number in range(start, end)} == model
    gaps = intervals.gaps(length)
    assert {number for start, end in gaps for number in range(start, end)} == set(range(length)) - model
    assert all(left[1] < right[0] for left, right in itertools.pairwise(gaps))


@given(st.lists(pairs, max_size=20), pairs)
def test_overlap_is_seen_wherever_it_is(wanted: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    intervals, model = IntervalSet(), set[int]()
    for start, end in wanted:
        if 0 <= start < end and not model & set(range(start, end)):
            intervals.add(start, end)
            model |= set(range(start, end))
    assert intervals.overlaps(*asked) == bool(model & set(range(*asked)))


def test_filling_from_the_front_stays_one_interval() -> None:
    intervals = IntervalSet()
    for start in range(0, 6400, 64):
        intervals.add(start, start + 64)
    assert list(intervals) == [(0, 6400)]
    assert intervals.total == 6400
    assert intervals.gaps(8192) == [(6400, 8192)]


def test_an_interval_between_two_others_joins_them() -> None:
    assert list(build((0, 10), (20, 30), (10, 20))) == [(0, 30)]


def test_an_interval_that_touches_its_right_neighbour_joins_it() -> None:
    assert list(build((20, 30), (10, 20))) == [(10, 30)]


@pytest.mark.parametrize("wrong", [(5, 15), (15, 25), (0, 40), (12, 18), (10, 20), (19, 20)])
def test_a_refused_interval_changes_nothing(wrong: tuple[int, int]) -> None:
    intervals = build((10, 20), (30, 35))
    with pytest.raises(ValueError, match=f"\\[{wrong[0]}, {wrong[1]}\\)"):
        intervals.add(*wrong)
    assert list(intervals) == [(10, 20), (30, 35)]
    assert intervals.total == 15


def test_gaps_end_at_the_length_asked_for() -> None:
    intervals = build((10, 20), (30, 40))
    assert intervals.gaps(35) == [(0, 10), (20, 30)]
    assert intervals.gaps(15) == [(0, 10)]
    assert intervals.gaps(50) == [(0, 10), (20, 30), (40, 50)]
    assert IntervalSet().gaps(7) == [(0, 7)]
    assert intervals.gaps(0) == []
