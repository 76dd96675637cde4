"""Group commit: those who come back are waited for, others are not, and nobody waits long; where an append takes long
the next is sent before it is answered, and where it takes a moment it is made at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable

import pytest
import pytest_asyncio

from holdfast.coordination.interface import CoordinationLost, Deposed, StoreFullInDoubt, Term
from holdfast.coordination.terms import append_unknown, out_of_order
from holdfast.errors import ReplyLost
from holdfast.messages.records import EpochStarted
from holdfast.replication import log_writer
from holdfast.replication.batches import Position, decode_batch
from holdfast.replication.log_writer import LogWriter, PendingLog, PendingReply
from tests.contract.stories import soon, until_true

ROUNDS = 20
HOUR_MS = 3_600_000.0


class SlowTerm:
    """Appends take some milliseconds."""

    seconds = 0.005

    async def append(self, index: int, batch: bytes) -> None:
        await asyncio.sleep(self.seconds)

    def append_at_once(self, index: int, batch: bytes) -> bool:
        return False


class World:
    def __init__(self, term: SlowTerm, most_under_way: int = 1) -> None:
        self.pending = PendingLog(Position())
        self.writer = LogWriter(_as_term(term), self.pending, 1 << 20, lambda: None, most_under_way)
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
    """I10. Half of an append's time would be half an hour."""
    monkeypatch.setattr(log_writer, "GATHER_SECONDS", 0.002)
    await soon(asyncio.gather(*(world.put() for _ in range(8))))
    world.writer.append_ms = HOUR_MS
    await soon(asyncio.gather(*(world.put() for _ in range(8))))
    await soon(world.put())


@pytest.mark.parametrize("append_ms", [0.3, 1.4])
async def test_a_log_that_is_quick_is_not_held_up(world: World, append_ms: float) -> None:
    world.writer.append_ms = append_ms
    assert not waits(world.writer._gather(8))
    await soon(world.put())


async def test_a_log_that_is_not_quick_waits_for_those_who_come_back(world: World) -> None:
    world.writer.append_ms = log_writer.LEAST_APPEND_MS
    assert waits(world.writer._gather(8))


def waits(gathering: Coroutine[object, None, None]) -> bool:
    """Whether it gives the loop back at least once before it ends."""
    try:
        gathering.send(None)
    except StopIteration:
        return False
    gathering.close()
    return True


async def test_the_end_of_writing_waits_for_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "GATHER_SECONDS", HOUR_MS / 1000)
    world.writer.append_ms = HOUR_MS
    await soon(asyncio.gather(*(world.put() for _ in range(8))))
    # It waits for eight now, and would for half an hour.
    world.writer.finish()
    await soon(world.task)


class LoggingTerm(SlowTerm):
    """A log that takes batches in order only, and loses what it is told to."""

    def __init__(self, lost: Iterable[int] = (), unanswered: Iterable[int] = ()) -> None:
        self.log: list[bytes] = []
        self.lost, self.unanswered = set(lost), set(unanswered)
        self.begun: list[int] = []
        self.under_way = self.most_under_way = 0

    async def append(self, index: int, batch: bytes) -> None:
        self.begun.append(index)
        self.under_way += 1
        self.most_under_way = max(self.under_way, self.most_under_way)
        try:
            await asyncio.sleep(self.seconds)
            self._take(index, batch)
            await asyncio.sleep(self.seconds)
        finally:
            self.under_way -= 1
        if index in self.unanswered:
            self.unanswered.remove(index)
            raise ReplyLost("its answer was lost")

    def _take(self, index: int, batch: bytes) -> None:
        if self.log[index - 1 : index] == [batch]:
            return
        if index in self.lost:
            self.lost.remove(index)
            raise CoordinationLost("it was lost")
        if index != len(self.log) + 1:
            raise out_of_order(index, len(self.log))
        self.log.append(batch)


@contextlib.asynccontextmanager
async def overlapping(term: SlowTerm) -> AsyncIterator[World]:
    made = World(term, most_under_way=3)
    made.writer.append_ms = 10.0
    made.writer.batches = 1
    try:
        yield made
    finally:
        made.task.cancel()
        await asyncio.wait([made.task])


def records_in(log: list[bytes]) -> int:
    position, count = Position(), 0
    for number, batch in enumerate(log, 1):
        records, position = decode_batch(position, number, batch)
        count += len(records)
    return count


async def test_the_next_batch_is_sent_before_the_answer_to_this_one() -> None:
    term = LoggingTerm()
    async with overlapping(term) as world:
        await _two_halves(world)
    assert 2 <= term.most_under_way <= 3
    assert term.begun == list(range(1, len(term.log) + 1))
    assert records_in(term.log) == 8 * ROUNDS


@pytest.mark.parametrize("number", [1, 2, 3, 8])
@pytest.mark.parametrize("how", ["lost", "unanswered", "both"])
async def test_what_was_sent_behind_a_batch_that_failed_is_written_behind_it_and_nobody_is_told_before(
    number: int, how: str
) -> None:
    """I1, I13."""
    unanswered = () if how == "lost" else (number, number + 1)
    term = LoggingTerm(() if how == "unanswered" else (number,), unanswered)
    async with overlapping(term) as world:
        told_early: list[int] = []

        async def puts() -> None:
            for _ in range(ROUNDS):
                index = world.pending.index + 1
                await world.put()
                if records_in(term.log) < index:
                    told_early.append(index)

        first = [asyncio.create_task(puts()) for _ in range(4)]
        await soon(_is_cut(world))
        second = [asyncio.create_task(puts()) for _ in range(4)]
        await soon(asyncio.gather(*first, *second))
    assert not told_early
    assert not term.lost | term.unanswered, "it was met"
    assert records_in(term.log) == 8 * ROUNDS


async def test_a_refusal_ends_the_writing_and_what_was_sent_behind_it() -> None:
    class Deposing(LoggingTerm):
        def _take(self, index: int, batch: bytes) -> None:
            if index >= 4:
                raise Deposed("another one leads")
            super()._take(index, batch)

    term = Deposing()
    async with overlapping(term) as world:
        crowd = [asyncio.create_task(world.puts(ROUNDS)) for _ in range(8)]
        with pytest.raises(Deposed):
            await soon(world.task)
        assert term.under_way == 0
        for one in crowd:
            one.cancel()
        await asyncio.wait(crowd)
    assert len(term.log) == 3


async def test_a_log_that_answers_in_a_moment_is_written_at_once_until_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(log_writer, "now_seconds", lambda: now)

    class Quick(SlowTerm):
        seconds = 0.0
        at_once = 0

        def append_at_once(self, index: int, batch: bytes) -> bool:
            nonlocal now
            self.at_once += 1
            if self.at_once == 5:
                now += 2 * log_writer.QUICK_MS / 1000  # A disk that has to think.
            return True

    term = Quick()
    world = World(term)
    await soon(world.puts(log_writer.QUICK_IN_A_ROW))
    assert term.at_once == 0
    await soon(world.puts(5))
    assert term.at_once == 5
    await soon(world.puts(1))
    assert term.at_once == 5
    world.writer.finish()
    await soon(world.task)


def add_alone(world: World, count: int) -> None:
    """Add records that nobody waits for."""
    for _ in range(count):
        world.pending.add(EpochStarted(1), [])
        world.writer.rouse()


async def idle(world: World) -> None:
    """Let the writer take all the turns of the loop that it wants."""
    for _ in range(20):
        await asyncio.sleep(0)


class InLoop(LoggingTerm):
    """Counts the batches that the event loop itself writes."""

    seconds = 0.0
    in_loop = 0

    def append_at_once(self, index: int, batch: bytes) -> bool:
        self.in_loop += 1
        self._take(index, batch)
        return True


@pytest_asyncio.fixture(params=[1, 3], ids=["one append at a time", "overlapping"])
async def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Records that nobody waits for may gather for an hour."""
    monkeypatch.setattr(log_writer, "LINGER_SECONDS", HOUR_MS / 1000)
    made = World(InLoop(), most_under_way=request.param)
    made.writer.append_ms = 10.0 if request.param > 1 else 0.1
    made.writer.batches = 1
    await idle(made)
    yield made
    made.task.cancel()
    await asyncio.wait([made.task])


def log_of(world: World) -> list[bytes]:
    term: object = world.writer._term
    assert isinstance(term, LoggingTerm)
    return term.log


async def test_records_that_nobody_waits_for_gather_until_somebody_waits_for_one(patient: World) -> None:
    """I10: a reader of the first of them does not wait for the others' moment to pass."""
    add_alone(patient, 5)
    await idle(patient)
    assert log_of(patient) == []
    durable = asyncio.Event()
    patient.pending.when_durable(1, durable.set)
    await soon(durable.wait())
    assert (len(log_of(patient)), records_in(log_of(patient))) == (1, 5)


async def test_behind_an_append_under_way_they_are_sent_as_soon_as_somebody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_writer, "LINGER_SECONDS", HOUR_MS / 1000)
    async with overlapping(LoggingTerm()) as world:
        for _ in range(3):
            first = asyncio.create_task(world.put())
            await soon(_is_cut(world))
            add_alone(world, 5)
            await soon(world.put())
            await soon(first)
        assert records_in(log_of(world)) == 3 * 7


async def test_records_that_nobody_waits_for_are_written_after_a_moment() -> None:
    """I17: without anybody who asks for it."""
    world = World(InLoop())
    add_alone(world, 5)
    await until_true(lambda: world.pending.durable == 5, "they are written")
    assert len(log_of(world)) == 1
    world.writer.finish()
    await soon(world.task)


async def test_a_hand_over_writes_what_nobody_waits_for_at_once(patient: World) -> None:
    add_alone(patient, 5)
    await idle(patient)
    patient.writer.finish()
    await soon(patient.task)
    assert records_in(log_of(patient)) == 5


async def test_a_snapshot_has_the_records_cut_that_nobody_waits_for(patient: World) -> None:
    add_alone(patient, 5)
    await idle(patient)
    reached: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
    patient.writer.at_boundary(reached.set_result)
    assert (await soon(reached)).index == 5


async def test_enough_records_for_a_whole_batch_do_not_gather(patient: World) -> None:
    patient.writer._most_bytes = 20
    add_alone(patient, 20)
    await until_true(lambda: records_in(log_of(patient)) >= 10, "most of them are written")


async def test_the_loop_writes_no_batch_itself_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "LINGER_SECONDS", 0.0)
    term = InLoop()
    world = World(term)
    await soon(world.puts(log_writer.QUICK_IN_A_ROW + 3))
    assert term.in_loop == 3
    for _ in range(3):
        add_alone(world, 1)
        await until_true(lambda: world.pending.durable == world.pending.index, "it is written")
    assert term.in_loop == 3
    await soon(world.put())
    assert term.in_loop == 4
    world.writer.finish()
    await soon(world.task)


class Late(PendingReply):
    def __init__(self, deadline: int) -> None:
        super().__init__(deadline)
        self.said: list[str] = []

    def __call__(self) -> None:
        self.said.append("durable")

    def refuse(self, why: str) -> None:
        self.said.append(why)


class FullTerm(SlowTerm):
    """Has no room while `full`."""

    full = True

    async def append(self, index: int, batch: bytes) -> None:
        if self.full:
            raise append_unknown(index, "no room") from StoreFullInDoubt("the store is full; make room")


async def test_while_the_store_is_full_the_log_says_so_and_those_whose_time_is_over_are_told() -> None:
    """I10: by the reason, not by a deadline; whoever has time left is answered when there is room again."""
    term, pending = FullTerm(), PendingLog(Position())
    writer = LogWriter(term, pending, 1 << 20, lambda: None)  # type: ignore[arg-type]
    index = pending.add(EpochStarted(1), [])
    early, late = Late(deadline=1_000), Late(deadline=9_000)
    pending.when_durable(index, early)
    pending.when_durable(index, late)
    writing = asyncio.create_task(writer.run())
    try:
        await until_true(lambda: pending.full, "the log is known to be full")
        pending.refuse_late(999)
        assert not early.said
        pending.refuse_late(1_000)
        assert (early.said, late.said) == (["the store is full; make room"], [])
        term.full = False
        await until_true(lambda: late.said == ["durable"], "it is written")
        assert early.said == ["the store is full; make room"]
        assert not pending.full
    finally:
        writing.cancel()
        await asyncio.wait([writing])
