"""Calls from one loop into another: in turn, within a deadline, and few."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast.dashboard.loop_calls import MOST_WAITING, LoopCalls
from holdfast.errors import Busy


@pytest.fixture
def master() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()


async def test_a_call_runs_in_the_master_s_thread(master: asyncio.AbstractEventLoop) -> None:
    calls = LoopCalls(master, answer_seconds=30)
    assert await calls.ask(threading.get_ident) != threading.get_ident()
    assert await calls.ask(asyncio.get_running_loop) is master


async def test_an_error_comes_back_and_the_next_call_works(master: asyncio.AbstractEventLoop) -> None:
    calls = LoopCalls(master, answer_seconds=30)
    with pytest.raises(ZeroDivisionError):
        await calls.ask(lambda: 1 // 0)
    assert await calls.ask(lambda: 7) == 7


async def test_what_is_answered_later_does_not_keep_others_waiting(master: asyncio.AbstractEventLoop) -> None:
    calls = LoopCalls(master, answer_seconds=30)
    answers: list[Callable[[str], None]] = []
    later = asyncio.create_task(calls.begin(answers.append))
    await asyncio.sleep(0)
    assert await calls.ask(lambda: 7) == 7, "it has had its turn after the other"
    answers[0]("done")
    assert await later == "done"


async def test_a_loop_that_does_not_turn_has_one_call_to_run_however_many_gave_up(
    master: asyncio.AbstractEventLoop,
) -> None:
    turns, ran = threading.Event(), []
    master.call_soon_threadsafe(turns.wait)
    calls = LoopCalls(master, answer_seconds=0.2)

    async def ask() -> None:
        with pytest.raises(Busy, match="did not answer"):
            await calls.ask(lambda: ran.append(1))

    await asyncio.gather(*[ask() for _ in range(5)])
    await asyncio.gather(*[ask() for _ in range(5)])
    turns.set()
    patient = LoopCalls(master, answer_seconds=30)
    await patient.ask(lambda: None)
    assert ran == [], "nobody waited for it any more"
    while True:
        try:
            assert await calls.ask(lambda: 7) == 7
            break
        except Busy:  # The turn of the call that was given up is not over yet.
            continue


async def test_when_many_wait_the_next_is_refused_at_once(master: asyncio.AbstractEventLoop) -> None:
    turns = threading.Event()
    master.call_soon_threadsafe(turns.wait)
    calls = LoopCalls(master, answer_seconds=60)
    waiting = [asyncio.create_task(calls.ask(lambda: 7)) for _ in range(MOST_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(Busy, match="wait for the master already"):
        await calls.ask(lambda: 7)
    turns.set()
    assert await asyncio.gather(*waiting) == [7] * MOST_WAITING


async def test_many_who_ask_for_the_same_share_one_call(master: asyncio.AbstractEventLoop) -> None:
    asked = []

    def ready() -> int:
        asked.append(1)
        return 7

    calls = LoopCalls(master, answer_seconds=30)
    assert await asyncio.gather(*[calls.recent(ready) for _ in range(200)]) == [7] * 200
    assert len(asked) == 1


def test_a_server_that_was_restarted_asks_from_its_new_loop(master: asyncio.AbstractEventLoop) -> None:
    turns = threading.Event()
    calls = LoopCalls(master, answer_seconds=0.1)
    master.call_soon_threadsafe(turns.wait)

    async def give_up() -> None:
        with pytest.raises(Busy):
            await calls.ask(lambda: 7)
        with pytest.raises(Busy):
            await calls.recent(lambda: 7)

    asyncio.run(give_up())
    turns.set()
    again = LoopCalls.ask(calls, lambda: 7)
    calls._answer_seconds = 30
    assert asyncio.run(again) == 7
