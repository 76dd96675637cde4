"""Drift: a promise ends for the side that relies on it before the side that gave it acts on the end (I2, I4, I12)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.instant import DRIFT_PERCENT, drift_of, lengthened, relied_on, shortened

RATES = (1 - DRIFT_PERCENT / 100, 1.0, 1 + DRIFT_PERCENT / 100)
"""How fast each clock runs: the two may even be twice the allowed drift apart."""

durations = st.integers(1, 86_400_000)
rates = st.sampled_from(RATES)


@given(durations, rates, rates)
def test_both_sides_allow_for_drift(ms: int, giver_runs: float, holder_runs: float) -> None:
    assert shortened(ms) / holder_runs <= lengthened(ms) / giver_runs


@given(durations, rates, rates)
def test_or_the_side_that_relies_on_it_alone(ms: int, giver_runs: float, holder_runs: float) -> None:
    assert relied_on(ms / 1_000) / holder_runs <= ms / 1_000 / giver_runs


@pytest.mark.parametrize(("ms", "drift"), [(0, 0), (1, 1), (100, 1), (101, 2), (12_000, 120)])
def test_drift_is_rounded_up(ms: int, drift: int) -> None:
    assert drift_of(ms) == drift
    assert (shortened(ms), lengthened(ms)) == (ms - drift, ms + drift + 3)
