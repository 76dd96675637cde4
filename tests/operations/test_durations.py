"""The histogram of durations: each lands below its bound, and sums are exact."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.operations.durations import BOUNDS_SECONDS, Durations


@given(st.lists(st.integers(0, 10**11), max_size=50))
def test_every_duration_is_counted_below_the_bounds_that_it_is_below(taken: list[int]) -> None:
    durations = Durations()
    for ns in taken:
        durations.add(ns)
    *below, every = durations.cumulative()
    # Bounds are compared in whole microseconds.
    assert below == [sum(ns // 1000 < round(bound * 1e6) for ns in taken) for bound in BOUNDS_SECONDS]
    assert every == len(taken) == durations.count
    assert durations.total_ns == sum(taken)


def test_a_clock_that_went_back_counts_as_no_time() -> None:
    durations = Durations()
    durations.add(-5)
    assert durations.cumulative()[0] == 1
    assert durations.total_ns == 0
