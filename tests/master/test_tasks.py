"""Ending tasks: all of them end, and whoever ends them can still be told to end itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.errors import TryAgain
from holdfast.master.tasks import RoleTasks, until_ended
from holdfast.supervisor import Supervisor
from tests.contract.stories import soon


async def test_whoever_is_cancelled_while_it_ends_others_hears_of_it_when_they_have_ended() -> None:
    """I10: a master that is told to stop in the middle of a change of roles stops."""
    may_end, ended = asyncio.Event(), []

    async def slow_to_end(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            while not may_end.is_set():
                try:
                    await may_end.wait()
                except asyncio.CancelledError:
                    continue
            ended.append(name)

    tasks = [asyncio.create_task(slow_to_end(name)) for name in ("one", "two")]
    await asyncio.sleep(0)

    async def end_them() -> None:
        await until_ended(*tasks)
        await asyncio.Event().wait()

    ending = asyncio.create_task(end_them())
    await asyncio.sleep(0)
    ending.cancel()
    await asyncio.sleep(0)
    assert not ended
    assert not ending.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await soon(ending)
    assert ended == ["one", "two"]


async def test_in_the_clean_up_of_a_cancelled_task_all_of_them_are_ended() -> None:
    tasks = [asyncio.create_task(asyncio.Event().wait()) for _ in range(3)]

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await until_ended(*tasks)

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(working)
    assert all(task.cancelled() for task in tasks)


async def test_a_failure_that_is_expected_is_not_raised_and_any_other_is() -> None:
    async def fail(error: Exception) -> None:
        raise error

    expected, defect = asyncio.create_task(fail(TryAgain("later"))), asyncio.create_task(fail(KeyError("defect")))
    await asyncio.wait([expected, defect])
    await until_ended(expected)
    with pytest.raises(KeyError):
        await until_ended(expected, defect)


async def test_no_task_of_a_role_outlives_it_however_it_ends() -> None:
    """I10: and one that fails ends no other."""
    supervisor, running = Supervisor(), 0

    async def run() -> None:
        nonlocal running
        running += 1
        try:
            await asyncio.Event().wait()
        finally:
            running -= 1

    async def fail() -> None:
        raise TryAgain("later")

    async def role(end: Callable[[], Awaitable[None]]) -> None:
        async with RoleTasks(supervisor) as tasks:
            tasks.keep("kept", run)
            tasks.keep("failing", fail)
            failed = tasks.start(fail())
            tasks.start(run())
            await asyncio.wait([failed])
            await asyncio.sleep(0)
            assert running == 2
            assert supervisor.down() == {"failing": "later"}
            await end()

    async def return_() -> None:
        pass

    async def raise_() -> None:
        raise KeyError("defect")

    await soon(role(return_))
    assert (running, supervisor.down()) == (0, {})
    with pytest.raises(KeyError):
        await soon(role(raise_))
    assert (running, supervisor.down()) == (0, {})
    cancelled = asyncio.create_task(role(asyncio.Event().wait))  # type: ignore[arg-type]
    for _ in range(10):
        await asyncio.sleep(0)
    assert running == 2
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(cancelled)
    assert (running, supervisor.down()) == (0, {})
