"""The simulator finds what it must: bugs planted on purpose break a promise within a number of seeds.

A simulator that finds nothing proves nothing. Those that take long are hunted by `make sim`.
"""

from __future__ import annotations

import pytest

from simulation.planted import PLANTED, Planted, hunt
from simulation.planted_bounds import PLANTED_IN_BOUNDS
from simulation.planted_bytes import PLANTED_IN_BYTES
from simulation.planted_designs import PLANTED_DESIGNS
from simulation.planted_disks import PLANTED_ON_DISKS
from simulation.planted_histories import PLANTED_IN_HISTORIES
from simulation.planted_operators import PLANTED_BY_OPERATORS
from simulation.planted_puts import PLANTED_IN_PUTS
from simulation.planted_renewals import PLANTED_IN_RENEWALS
from simulation.planted_room import PLANTED_IN_ROOM
from simulation.planted_sessions import PLANTED_IN_SESSIONS
from simulation.planted_testimony import PLANTED_IN_TESTIMONY

ALL = [
    *PLANTED.values(),
    *PLANTED_DESIGNS,
    *PLANTED_IN_SESSIONS,
    *PLANTED_IN_BOUNDS,
    *PLANTED_IN_RENEWALS,
    *PLANTED_BY_OPERATORS,
    *PLANTED_IN_BYTES,
    *PLANTED_IN_ROOM,
    *PLANTED_ON_DISKS,
    *PLANTED_IN_TESTIMONY,
    *PLANTED_IN_PUTS,
    *PLANTED_IN_HISTORIES,
]
QUICK = 60


def bugs() -> list[object]:
    return [pytest.param(bug, id=bug.name, marks=[] if bug.seeds <= QUICK else [pytest.mark.thorough]) for bug in ALL]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bug", bugs())
def test_a_planted_bug_is_found(bug: Planted) -> None:
    found = hunt(bug)
    assert found is not None, f"{bug.name} was not found in {bug.seeds} seeds: a hole in faults or checkers"
