"""The faults that the memory backend can be told to have, under a clock that only moves when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from holdfast.coordination.interface import Deposed, Term
from holdfast.coordination.memory import MemoryCoordination, MemoryStore
from holdfast.errors import ReplyLost
from tests.contract.stories import append_all, read_log, soon


class HandClock:
    """Time that stands still between calls of `pass_time`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._sleeping: list[tuple[float, asyncio.Future[None]]] = []

    def read(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        waking: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeping.append((self.now + seconds, waking))
        await waking

    async def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            for _ in range(20):
                await asyncio.sleep(0)
            self._sleeping = [(at, waking) for at, waking in self._sleeping if not waking.done()]
            due = min((at for at, _ in self._sleeping), default=until + 1)
            if due > until:
                self.now = until
                return
            self.now = max(self.now, due)
            for at, waking in self._sleeping:
                if at <= self.now and not waking.done():
                    waking.set_result(None)


def world(leader_ttl_ms: int = 5000) -> tuple[HandClock, MemoryStore, MemoryCoordination, MemoryCoordination]:
    clock = HandClock()
    store = MemoryStore(clock.read)
    one, two = (MemoryCoordination(store, "c", leader_ttl_ms, clock.read, clock.sleep) for _ in range(2))
    return clock, store, one, two


@contextlib.asynccontextmanager
async def contest(
    leader_ttl_ms: int = 5000,
) -> AsyncIterator[tuple[HandClock, MemoryStore, Term, asyncio.Task[Term]]]:
    """One leads, and another one campaigns."""
    clock, store, one, two = world(leader_ttl_ms)
    term = await soon(one.campaign("one"))
    waiting = asyncio.ensure_future(two.campaign("two"))
    yield clock, store, term, waiting
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await one.close()
    await two.close()


async def test_an_append_whose_answer_was_lost_is_found_when_it_is_sent_again() -> None:
    """I1."""
    _, store, one, _ = world()
    term = await soon(one.campaign("one"))
    store.faults.appends.extend(["written_unanswered", "lost"])
    with pytest.raises(ReplyLost):
        await term.append(1, b"a")
    assert await one.last_index() == 1
    with pytest.raises(ReplyLost):
        await term.append(1, b"a")
    await append_all(term, 1, [b"a", b"b"])
    assert await read_log(one, 0, 2) == [(1, b"a"), (2, b"b")]
    await one.close()


async def test_an_append_that_was_lost_on_the_way_is_written_when_it_is_sent_again() -> None:
    _, store, one, _ = world()
    term = await soon(one.campaign("one"))
    store.faults.appends.append("lost")
    with pytest.raises(ReplyLost):
        await term.append(1, b"a")
    assert await one.last_index() == 0
    await append_all(term, 1, [b"a"])
    await one.close()


async def test_a_silent_leader_is_replaced_only_after_it_must_have_stopped_answering() -> None:
    """I12, under a clock that shows it exactly."""
    async with contest() as (clock, store, old, waiting):
        await clock.pass_time(10)
        assert not waiting.done()
        store.expire_leader("c")
        await clock.pass_time(0)
        assert await soon(old.ended())
        deadline = clock.now + 5
        while not waiting.done():
            await clock.pass_time(0.1)
            assert clock.now < deadline + 1
        new = waiting.result()
        assert new.proof == "silence"
        assert clock.now >= deadline - 1.1  # The last renewal that was seen is at most a second old.
        with pytest.raises(Deposed):
            await old.append(1, b"late")


async def test_validity_ends_without_an_answer_and_before_a_watcher_may_call_it_silence() -> None:
    """I12."""
    async with contest() as (clock, store, term, waiting):
        await clock.pass_time(3)
        store.faults.outage = True
        renewed_until = term.valid_until
        await clock.pass_time(60)
        assert term.valid_until == renewed_until < clock.now
        assert not waiting.done()
        store.faults.outage = False
        await clock.pass_time(2)
        assert term.valid_until > clock.now
        assert not waiting.done()


async def test_a_leader_allows_for_clock_drift_alone() -> None:
    """I12: a campaigner counts the plain time, on a clock that may run 1% faster than the leader's. The leader allows
    for twice that, like every side that relies on a promise alone."""
    clock, _, one, _ = world()
    term = await soon(one.campaign("one"))
    assert clock.now + 4.5 < term.valid_until < clock.now + 5.0 * 0.98
    await one.close()


async def test_a_short_leader_ttl_does_not_keep_a_watcher_from_seeing_silence() -> None:
    """A watcher that looks less often than it believes itself to be away would begin to count anew for ever."""
    async with contest(leader_ttl_ms=1000) as (clock, store, old, waiting):
        await clock.pass_time(0.5)
        store.faults.outage = True
        await clock.pass_time(2)
        assert old.valid_until < clock.now
        store.faults.outage = False
        store.expire_leader("c")
        await clock.pass_time(5)
        assert waiting.done(), "the leader has been silent for several times its time to live"
        assert waiting.result().proof == "silence"


async def test_a_leader_that_was_dropped_may_have_been_renewed_a_moment_before() -> None:
    """I12, found by simulation: it does not hear of the drop, and answers for as long as its last renewal lets it."""
    async with contest() as (clock, store, old, waiting):
        await clock.pass_time(2.5)
        seen_until = old.valid_until
        # Its renewal and its drop lie between two looks.
        store.cluster("c").beat = 1_000
        store.expire_leader("c")
        await clock.pass_time(seen_until - clock.now + 0.2)
        assert not waiting.done(), "it counts from the drop, not from the last renewal that it saw"
        await clock.pass_time(3)
        assert waiting.result().proof == "silence"
