"""The load of `demo` and its verdict: a demo that could not find a loss would prove nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast.cli.load import Load, longest_gap_s, value_of, verify
from holdfast.errors import Unreachable
from tests.cli.fake_cache import FakeCache
from tests.waiting import wait_until

KEYS = ["a", "b", "c"]


def filled() -> FakeCache:
    return FakeCache(stored={key: value_of(key, 100) for key in KEYS})


def test_a_value_follows_from_its_key_alone() -> None:
    assert value_of("a", 100) == value_of("a", 100)
    assert value_of("a", 100) != value_of("b", 100)
    assert len(value_of("a", 100)) == 100


def test_verification_finds_what_is_lost_and_what_is_wrong() -> None:
    """I1 and I2, as the demo checks them."""
    cache: Any = filled()
    assert verify(cache, KEYS, 100, threading.Event()).ok
    del cache.stored["a"]
    cache.stored["b"] = cache.stored["c"]
    found = verify(cache, KEYS, 100, threading.Event())
    assert (found.ok, found.right, found.lost, found.wrong) == (False, 1, ["a"], ["b"])


def test_verification_ends_when_it_is_told_to_stop() -> None:
    cache: Any = filled()
    stop = threading.Event()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        verify(cache, KEYS, 100, stop)


@pytest.mark.parametrize(
    ("times", "after", "gap"),
    [([1, 2, 5, 6], 3, 3), ([1, 4, 4.5, 5], 4.2, 0.5), ([1, 2], 3, None), ([], 0, None), ([6, 1, 5, 2], 0, 3)],
)
def test_the_outage_is_the_longest_silence_that_ended_after_the_kill(
    times: list[float], after: float, gap: float | None
) -> None:
    assert longest_gap_s(times, after) == gap


def test_the_writers_share_the_work_and_remember_what_was_acknowledged() -> None:
    cache: Any = FakeCache()
    load = Load(lambda: cache, objects=7, value_size=10, clients=2, seconds=0.01)
    load.start()
    wait_until(lambda: not load.running, what="the end of the load")
    assert {key for _, key in load.acknowledged} == set(cache.stored)
    assert len(cache.stored) == 7
    assert load.failed == 0


def test_a_put_that_fails_is_counted_and_not_taken_for_acknowledged() -> None:
    cache: Any = FakeCache(failure=Unreachable("away"))
    load = Load(lambda: cache, objects=3, value_size=10, clients=1, seconds=0.01)
    load.start()
    wait_until(lambda: not load.running, what="the end of the load")
    assert (load.acknowledged, load.failed) == ([], 3)
    assert "away" in load.faults[0]


def test_a_load_that_is_stopped_ends_early() -> None:
    cache: Any = FakeCache()
    load = Load(lambda: cache, objects=10, value_size=10, clients=1, seconds=3_600)
    load.start()
    assert load.stop(within_s=20)
    assert len(load.acknowledged) < 10
