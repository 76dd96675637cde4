"""Bugs for which much must come together: scripts written by hand bring it about at once, where seeds need scenes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.simulation.runs import run
from holdfast.simulation.script import Fault, Operation, Script, Shape
from simulation.planted import PLANTED, Planted

SEEDS = range(4)


def a_wrong_guess(seed: int, leader: int) -> Script:
    """The primary is cut off from the store, and refused to the standby and to a client, which removes an object at the
    new one; another client still asks the old one, which may answer for a while."""
    asks = tuple(Operation(3_020 + 40 * i, 0, "exists", 10 + i, ("key/0",)) for i in range(28))
    put = Operation(1_000, 0, "put", 1, ("key/0",), 1_001)
    takes = Operation(3_150, 1, "force_remove", 40, ("key/0",))
    refuse = Fault(3_000, "refuse", 2_500, f"master-{leader}", "client-1")
    return Script(seed, Shape(2, 1, 2), tuple(sorted((put, takes, *asks), key=lambda one: one.at_ms)), (refuse,))


def a_writer_that_comes_late(seed: int, leader: int) -> Script:
    """A client on another machine is stopped between its grant and its copy, until the range is somebody else's."""
    late = Operation(1_000, 2, "put", 1, ("key/0",), 262_145)
    puts = [Operation(6_500 + 100 * i, 0, "put", 10 + i, (f"key/{i + 1}",), 262_154 + i) for i in range(6)]
    gets = [Operation(12_000 + 50 * i, 1, "get", 30 + i, (f"key/{i + 1}",)) for i in range(6)]
    faults = (
        Fault(900, "slow_threads", 2_000, "client-2", share=0.1),
        Fault(1_100, "pause_client", 9_000, "client-2"),
    )
    return Script(seed, Shape(2, 1, 3, segment_bytes=1 << 20), (late, *puts, *gets), faults)


DIRECTED = (
    (PLANTED["take away right after a guess"], a_wrong_guess),
    (PLANTED["write over TCP after clean"], a_writer_that_comes_late),
)


@pytest.mark.parametrize(("bug", "script"), DIRECTED)
def test_a_script_by_hand_finds_at_once_what_is_rare(bug: Planted, script: Callable[[int, int], Script]) -> None:
    """I2, I7: found with the bug, and kept without it."""
    scripts = [script(seed, leader) for seed in SEEDS for leader in (0, 1)]
    for one in scripts:
        found = run(one)
        assert found.violation is None, found.violation
    with bug.plant():
        broken = [run(one).violation for one in scripts]
    assert {violation.promise for violation in broken if violation is not None} & {*bug.promises}
