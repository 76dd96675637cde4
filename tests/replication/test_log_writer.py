"""Group commit: those who come back are waited for, others are not, and nobody waits long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from holdfast.coordination.interface import Term
from holdfast.messages.records import EpochStarted
from holdfast.replication import log_writer
from holdfast.replication.batches import Position
from holdfast.replication.log_writer import LogWriter
from holdfast.replication.pending import PendingLog
from tests.contract.stories import soon

ROUNDS = 20


class SlowTerm:
    """Appends take some milliseconds."""

    seconds = 0.005

    async def append(self, index: int, batch: bytes) -> None:
        await asyncio.sleep(self.seconds)


class World:
    def __init__(self, term: SlowTerm) -> None:
        self.pending = PendingLog(Position())
        self.writer = LogWriter(_as_term(term), self.pending, 1 << 20, lambda: None)
        self.task = asyncio.create_task(self.writer.run())

    async def put(self) -> None:
        durable = asyncio.Event()
        index = self.pending.add(EpochStarted(1), [])
        self.writer.rouse()
        self.pending.when_durable(index, durable.set)
        await durable.wait()

    async def puts(self, count: int) -> None:
        for _ in range(count):
            await self.put()


def _as_term(term: object) -> Term:
    return term  # type: ignore[return-value]


@pytest_asyncio.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    # Long enough for a crowded machine: whoever comes back ends the wait.
    monkeypatch.setattr(log_writer, "GATHER_SECONDS", 1.0)
    made = World(SlowTerm())
    made.writer.append_ms = 20_000.0
    made.writer.batches = 1
    yield made
    made.task.cancel()
    await asyncio.wait([made.task])


async def _two_halves(world: World) -> None:
    """Half of a crowd begins; the other half while the first append is under way."""
    first = [asyncio.create_task(world.puts(ROUNDS)) for _ in range(4)]
    await soon(_is_cut(world))
    second = [asyncio.create_task(world.puts(ROUNDS)) for _ in range(4)]
    await soon(asyncio.gather(*first, *second))


async def _is_cut(world: World) -> None:
    while world.pending.has_more or not world.pending.index:  # noqa: ASYNC110 - Nobody tells.
        await asyncio.sleep(0)


async def test_those_who_come_back_share_the_next_batch_with_those_who_waited(world: World) -> None:
    await _two_halves(world)
    # One each round, one for the half that was first, and those of the end, where fewer and fewer come back.
    assert world.writer.batches - 1 <= ROUNDS + 3


async def test_nobody_who_does_not_come_back_is_waited_for_longer_than_a_moment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10."""
    monkeypatch.setattr(log_writer, "GATHER_SECONDS", 0.002)
    await soon(asyncio.gather(*(world.put() for _ in range(8))))
    await soon(world.put())


@pytest.mark.parametrize("append_ms", [0.3, 1.4])
async def test_a_log_that_is_quick_is_not_held_up(world: World, append_ms: float) -> None:
    world.writer.append_ms = append_ms
    await soon(asyncio.wait_for(world.writer._gather(8), 1))
    await soon(world.put())


async def test_the_end_of_writing_waits_for_nobody(world: World) -> None:
    await soon(asyncio.gather(*(world.put() for _ in range(8))))
    # It waits for eight now.
    world.writer.finish()
    await soon(world.task)
