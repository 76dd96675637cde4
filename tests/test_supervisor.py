"""Supervised work: it cannot die unseen, it is logged once an outage, and whoever asks is told what is down and why."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest

from holdfast import supervisor
from holdfast.errors import TryAgain
from holdfast.supervisor import LONGEST_PAUSE_SECONDS, STEADY_SECONDS, Supervisor
from tests.contract.stories import soon, until_true
from tests.process_clock import ProcessClock
from tests.waiting import wait_until


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", 0.001)


def fails(times: int, error: Exception, then: Callable[[], None]) -> Callable[[], None]:
    left = [error] * times

    def work() -> None:
        if left:
            raise left.pop()
        then()

    return work


async def test_work_that_fails_is_down_with_its_reason_and_runs_again(quick: None) -> None:
    supervisor, runs, goes_on = Supervisor(), asyncio.Event(), asyncio.Event()
    failing = fails(3, OSError(2, "No such file or directory"), runs.set)

    async def work() -> None:
        failing()
        await goes_on.wait()

    keeping = asyncio.create_task(supervisor.keep("snapshots", work))
    await soon(runs.wait())
    assert supervisor.down() == {"snapshots": "[Errno 2] No such file or directory"}
    supervisor.well("snapshots")
    assert supervisor.down() == {}
    goes_on.set()
    await soon(keeping)
    assert supervisor.down() == {}


async def test_several_failures_in_a_row_are_logged_once_with_the_name(
    quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor, runs = Supervisor(), asyncio.Event()
    failing = fails(5, TryAgain("not now"), runs.set)

    async def work() -> None:
        failing()

    with caplog.at_level(logging.WARNING):
        await soon(supervisor.keep("snapshots", work))
    said = [record.getMessage() for record in caplog.records]
    assert said == ["snapshots failed and is tried again until it works: not now"]
    assert caplog.records[0].exc_info is None, "what was foreseen needs no traceback"


async def test_a_defect_is_logged_with_its_traceback(quick: None, caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor()
    failing = fails(1, KeyError("session"), lambda: None)

    async def work() -> None:
        failing()

    await soon(supervisor.keep("upkeep", work))
    [record] = caplog.records
    assert "upkeep" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is KeyError


def test_the_pause_grows_and_is_bounded(clock: ProcessClock) -> None:
    """I17: what fails for hours costs a try every few seconds."""
    supervisor = Supervisor()
    pauses = [supervisor.failed("watch", TryAgain("not now")) for _ in range(10)]
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS


def test_work_that_runs_long_enough_is_well_and_its_next_failure_is_a_new_one(
    clock: ProcessClock, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor, down_at = Supervisor(), []

    def runs_for(seconds: float) -> Callable[[], None]:
        def run() -> None:
            clock.pass_seconds(seconds)
            down_at.append(bool(supervisor.down()))
            raise TryAgain("not now")

        return run

    steps = iter([runs_for(0), runs_for(STEADY_SECONDS - 1), runs_for(STEADY_SECONDS), lambda: None])
    pauses: list[float] = []

    def in_turn() -> None:
        next(steps)()

    def stops(pause: float) -> bool:
        pauses.append(pause)
        return False

    supervisor.keep_thread("watch", in_turn, stops)
    assert down_at == [False, True, False]
    assert pauses == [0.1, 0.2, 0.1]
    assert len(caplog.records) == 2


async def test_cancelling_ends_the_work_and_nothing_of_it_is_down(quick: None) -> None:
    supervisor = Supervisor()

    async def work() -> None:
        raise TryAgain("not now")

    keeping = asyncio.create_task(supervisor.keep("snapshots", work))
    await until_true(supervisor.down, "it has failed")
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(keeping)
    assert supervisor.down() == {}


async def test_a_group_of_failures_is_known_by_the_first() -> None:
    supervisor = Supervisor()
    supervisor.failed("renewals", ExceptionGroup("both", [ExceptionGroup("one", [TryAgain("etcd is away")])]))
    assert supervisor.down() == {"renewals": "etcd is away"}


def test_a_thread_that_fails_goes_on_until_it_is_stopped(quick: None) -> None:
    supervisor, stopping, tries = Supervisor(), threading.Event(), []

    def work() -> None:
        tries.append(1)
        raise KeyError("defect")

    thread = threading.Thread(target=supervisor.keep_thread, args=("attach server", work, stopping.wait))
    thread.start()
    try:
        wait_until(lambda: len(tries) > 2, what="it was started again")
        assert supervisor.down() == {"attach server": "KeyError('defect')"}
    finally:
        stopping.set()
        thread.join(20)
    assert not thread.is_alive()
    assert supervisor.down() == {}


async def test_how_a_task_ends_that_nobody_awaits_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise KeyError("defect")

    task = asyncio.create_task(work())
    Supervisor().watch("a snapshot that was asked for", task)
    await asyncio.wait([task])
    await until_true(lambda: caplog.records, "it is logged")
    assert "a snapshot that was asked for failed: KeyError('defect')" in caplog.records[0].getMessage()
