"""Large puts one after another, by real processes: what comes ahead is written to, survives, and is given back."""

from __future__ import annotations

import os

import pytest

from tests.e2e.rig import Rig
from tests.waiting import wait_until

MIB = 1 << 20
LARGE = 2 * MIB


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "tcp"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_row_is_stored_whole_and_gives_back_what_it_did_not_use(mapped: bool, replicas: int) -> None:
    """I9, I11"""
    values = {f"row/{i}": os.urandom(LARGE + i) for i in range(9)}
    with Rig("64MiB", nodes=2) as rig, rig.connect(shared_memory=mapped) as cache:
        for key, value in values.items():
            assert cache.put(key, value, replicas=replicas) is True
        with rig.connect() as other:
            assert other.get_many(values) == values
        extents = sum(-(-len(value) // 4096) * 4096 for value in values.values())
        wait_until(lambda: cache.status().used_bytes == extents * replicas, what="only the objects are left")


def test_a_row_goes_on_over_the_death_of_the_primary() -> None:
    """I1, I11: the memory that came ahead is in the log."""
    with Rig("64MiB", masters=2, coordination="sqlite") as rig, rig.connect() as cache:
        values = {f"row/{i}": os.urandom(LARGE) for i in range(12)}
        for number, (key, value) in enumerate(values.items()):
            if number in (4, 5, 9):
                leader = cache.status().name
                rig.kill(rig.masters[leader][0])
                rig.start_master(leader)
            assert cache.put(key, value) is True
        assert all(cache.get(key) == value for key, value in values.items())


def test_a_put_as_large_as_the_window_does_not_wait_until_other_grants_are_idle() -> None:
    with Rig("64MiB", write_window_bytes="16MiB") as rig, rig.connect(timeout=4) as cache:
        for number in range(6):
            assert cache.put(f"row/{number}", bytes(LARGE)) is True
        assert cache.put("small", b"x") is True
        # Small puts' memory is idle for five seconds before it is given back by itself.
        assert cache.put("large", bytes(16 * MIB - 4096)) is True
