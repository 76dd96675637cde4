"""The simulator finds bugs that would lose, poison or empty a cache: of other histories, room for puts, files on disks,
dead nodes and testimony; and those that would show one tenant's objects to another. A file of its own, so that it is
hunted beside the others.
"""

from __future__ import annotations

import pytest

from tests.simulation.planted import Planted, as_parameters, assert_found
from tests.simulation.planted_disks import PLANTED_ON_DISKS
from tests.simulation.planted_histories import PLANTED_IN_HISTORIES
from tests.simulation.planted_puts import PLANTED_IN_PUTS
from tests.simulation.planted_restores import PLANTED_IN_RESTORES
from tests.simulation.planted_room import PLANTED_IN_ROOM
from tests.simulation.planted_tenants import PLANTED_IN_TENANTS
from tests.simulation.planted_testimony import PLANTED_IN_TESTIMONY

ALL = [
    *PLANTED_IN_ROOM,
    *PLANTED_ON_DISKS,
    *PLANTED_IN_TESTIMONY,
    *PLANTED_IN_PUTS,
    *PLANTED_IN_HISTORIES,
    *PLANTED_IN_RESTORES,
    *PLANTED_IN_TENANTS,
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bug", as_parameters(ALL))
def test_a_planted_bug_is_found(bug: Planted) -> None:
    assert_found(bug)
