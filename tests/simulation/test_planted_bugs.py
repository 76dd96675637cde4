"""The simulator finds what it must: bugs planted on purpose break a promise within a number of seeds.

A simulator that finds nothing proves nothing. Those that take long are hunted by `make sim`.
"""

from __future__ import annotations

import pytest

from tests.simulation.planted import PLANTED, Planted, as_parameters, assert_found
from tests.simulation.planted_bounds import PLANTED_IN_BOUNDS
from tests.simulation.planted_bytes import PLANTED_IN_BYTES
from tests.simulation.planted_designs import PLANTED_DESIGNS
from tests.simulation.planted_operators import PLANTED_BY_OPERATORS
from tests.simulation.planted_renewals import PLANTED_IN_RENEWALS
from tests.simulation.planted_sessions import PLANTED_IN_SESSIONS

ALL = [
    *PLANTED.values(),
    *PLANTED_DESIGNS,
    *PLANTED_IN_SESSIONS,
    *PLANTED_IN_BOUNDS,
    *PLANTED_IN_RENEWALS,
    *PLANTED_BY_OPERATORS,
    *PLANTED_IN_BYTES,
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bug", as_parameters(ALL))
def test_a_planted_bug_is_found(bug: Planted) -> None:
    assert_found(bug)
