"""Snapshots in the background: what goes wrong with one costs that one, never the log's writer or the next (I13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.coordination.interface import Landmark
from holdfast.coordination.memory import MemoryCoordination, MemoryStore
from holdfast.core.state.state import State
from holdfast.errors import ReplyLost
from holdfast.master.histories import snapshot_upkeep
from holdfast.master.histories.snapshot_upkeep import PREFIX, Offer, Snapshots
from holdfast.messages.records import EpochStarted
from holdfast.replication.batches import Position
from holdfast.replication.chain import first_batch
from holdfast.replication.log_writer import LogWriter, PendingLog
from holdfast.replication.snapshot_store import SnapshotFailed, SnapshotStore
from holdfast.replication.snapshots import dump
from holdfast.replication.standby import Standby
from holdfast.supervisor import Supervisor
from tests.contract.stories import soon, until_true

HISTORY = 0xA11CE


class LosesAnswers(MemoryCoordination):
    """The first so many values are published, and nobody hears of it."""

    losing = 1

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.published: list[bytes] = []

    async def publish(self, name: str, value: bytes, ttl_ms: int | None) -> None:
        await super().publish(name, value, ttl_ms)
        self.published.append(value)
        if self.losing:
            self.losing -= 1
            raise ReplyLost("no answer came; it may have been written")


def made(coordination: MemoryCoordination, folder: Path) -> Snapshots:
    return Snapshots(SnapshotStore(folder), coordination, "here", "here:7070", "", every_bytes=1)


def at_once(store: SnapshotStore, state: State, position: Position) -> Callable[[], int]:
    """In place of a forked child."""
    store.write(position.batch, b"".join(dump(state, position, 0)), proven=False)
    return lambda: 0


@asynccontextmanager
async def writing(coordination: MemoryCoordination) -> AsyncIterator[tuple[LogWriter, PendingLog, asyncio.Task[None]]]:
    term = await soon(coordination.campaign("here:7070"))
    pending = PendingLog(Position())
    writer = LogWriter(term, pending, 1 << 20, lambda: None)
    task = asyncio.create_task(writer.run())
    try:
        yield writer, pending, task
    finally:
        task.cancel()
        await asyncio.wait([task])
        await coordination.close()


async def is_written(writer: LogWriter, pending: PendingLog, epoch: int) -> None:
    """The writer takes another record to the log."""
    durable = asyncio.Event()
    pending.when_durable(pending.add(EpochStarted(epoch), []), durable.set)
    writer.rouse()
    await soon(durable.wait())


async def test_a_standby_goes_on_writing_snapshots_after_a_lost_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I13, I17: otherwise the log would grow for as long as it follows."""
    monkeypatch.setattr(snapshot_upkeep, "LOOK_SECONDS", 0.01)
    coordination = LosesAnswers(MemoryStore())
    snapshots = made(coordination, tmp_path)
    standby = Standby(State(log_id=HISTORY), Position(batch=1, index=1))
    snapshots.log_bytes = 1
    keeping = asyncio.create_task(snapshots.keep_for_standby(lambda: standby))
    try:
        await until_true(lambda: not coordination.losing, "the first one was offered")
        standby.position = Position(batch=2, index=2)
        snapshots.log_bytes = 1
        kept = snapshots.store.kept
        await until_true(
            lambda: keeping.done() or [one.batch for one in kept(HISTORY)] == [2, 1], "the next one was written"
        )
        assert not keeping.done(), "it goes on"
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        await coordination.close()


async def test_a_child_that_cannot_be_made_costs_the_snapshot_and_not_the_term(tmp_path: Path) -> None:
    """I10: a machine without memory for a fork goes on storing objects."""
    coordination = MemoryCoordination(MemoryStore())
    snapshots = made(coordination, tmp_path)

    def no_memory(store: SnapshotStore, state: State, position: Position) -> Callable[[], int]:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    snapshots.in_child = no_memory
    async with writing(coordination) as (writer, pending, task):
        with pytest.raises(SnapshotFailed, match="temporarily unavailable"):
            await soon(snapshots.write_by_child(State(log_id=HISTORY), writer, pending))
        await is_written(writer, pending, 1)
        assert not task.done()


async def test_whoever_gives_up_waiting_for_a_snapshot_leaves_the_log_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: neither the boundary that it waited for nor the durability finds anybody, which is no error."""
    store = MemoryStore()
    coordination = MemoryCoordination(store)
    snapshots = made(coordination, tmp_path)
    forks: list[Position] = []

    def in_child(kept: SnapshotStore, state: State, position: Position) -> Callable[[], int]:
        forks.append(position)
        return lambda: 0

    snapshots.in_child = in_child
    async with writing(coordination) as (writer, pending, task):
        await is_written(writer, pending, 1)
        asked = asyncio.create_task(snapshots.write_by_child(State(log_id=HISTORY), writer, pending))
        await asyncio.sleep(0)
        asked.cancel()  # Before the writer has come to a boundary.
        await asyncio.wait([asked])
        await is_written(writer, pending, 2)
        assert not forks
        store.faults.delay_s = 0.5
        pending.add(EpochStarted(3), [])
        waits_for_the_log, when_durable = asyncio.Event(), pending.when_durable

        def noted(index: int, then: Callable[[], None]) -> None:
            when_durable(index, then)
            waits_for_the_log.set()

        monkeypatch.setattr(pending, "when_durable", noted)
        asked = asyncio.create_task(snapshots.write_by_child(State(log_id=HISTORY), writer, pending))
        await soon(waits_for_the_log.wait())
        assert forks
        asked.cancel()
        await asyncio.wait([asked])
        store.faults.delay_s = 0.0
        await is_written(writer, pending, 4)
        assert not task.done()


async def test_a_primary_offers_what_it_keeps_and_says_so_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I13, found by simulation: the log is trimmed behind its snapshots, so a standby that starts with nothing needs
    one, and nobody else may have any. What it said as a standby may never have arrived, and is forgotten in time."""
    monkeypatch.setattr(snapshot_upkeep, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(snapshot_upkeep, "OFFER_AGAIN_SECONDS", 0.05)
    coordination = LosesAnswers(MemoryStore())
    snapshots = made(coordination, tmp_path)
    snapshots.store.write(*snapshots.store.take(Standby(State(log_id=HISTORY), Position(batch=7, index=9))))
    async with writing(coordination) as (writer, pending, _):
        keeping = asyncio.create_task(snapshots.keep_for_primary(State(log_id=HISTORY), writer, pending))
        try:
            await until_true(lambda: len(coordination.published) > 2, "it was offered, and again")
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
    assert msgspec.msgpack.decode(coordination.published[-1], type=Offer) == Offer("here", "here:7070", 7, 0, HISTORY)


async def test_a_newest_snapshot_that_is_damaged_where_it_is_kept_is_passed_over_for_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I13, I18, found by simulation: the log reaches back to the older one, so a new standby can follow from there."""
    coordination = MemoryCoordination(MemoryStore())
    theirs = Snapshots(SnapshotStore(tmp_path / "theirs"), coordination, "there", "there:7070", "", every_bytes=1)
    for batch in (7, 9):
        theirs.store.write(*theirs.store.take(Standby(State(log_id=HISTORY), Position(batch=batch, index=batch))))
        await theirs._offer(HISTORY, batch)
    newest = theirs.store.kept(HISTORY)[0].path
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    ours = made(coordination, tmp_path / "ours")

    async def fetch(_: Snapshots, offer: Offer, batch: int) -> None:
        assert offer.name == "there"
        kept = next(one for one in theirs.store.kept(HISTORY) if one.batch == batch)
        ours.store.write(batch, kept.path.read_bytes())

    monkeypatch.setattr(Snapshots, "fetch", fetch)
    await ours.fetch_newest(HISTORY)
    assert [one.batch for one in ours.store.kept(HISTORY)] == [7]
    await coordination.close()


async def test_the_log_is_not_trimmed_behind_a_snapshot_that_was_spoiled_since_and_another_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I13, found by simulation: it counted as one of two, and when the other was spoiled as well nobody could lead."""
    monkeypatch.setattr(snapshot_upkeep, "LOOK_SECONDS", 0.01)
    store = MemoryStore()
    coordination = MemoryCoordination(store)
    supervisor = Supervisor()
    snapshots = Snapshots(SnapshotStore(tmp_path), coordination, "here", "here:7070", "", every_bytes=1 << 20)
    snapshots.in_child = at_once
    trims: list[tuple[int, list[int]]] = []
    trim = coordination.trim

    async def noted_trim(through: int, landmark: Landmark) -> bool:
        trims.append((through, [one.batch for one in snapshots.store.kept(HISTORY)]))
        return await trim(through, landmark)

    monkeypatch.setattr(coordination, "trim", noted_trim)
    async with writing(coordination) as (writer, pending, _):
        for batch in (1, 2, 3):
            await is_written(writer, pending, batch)
        for batch in (1, 2):
            standby = Standby(State(log_id=HISTORY), Position(batch=batch, index=batch))
            path = snapshots.store.write(*snapshots.store.take(standby)).path
            if batch == 1:
                path.write_bytes(path.read_bytes()[:-1] + b"?")
        keep = partial(snapshots.keep_for_primary, State(log_id=HISTORY), writer, pending)
        keeping = asyncio.create_task(supervisor.keep("snapshots", keep))
        try:
            await until_true(lambda: trims, "it is trimmed in the end")
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
    assert trims[0] == (2, [3, 2])


async def test_a_log_that_another_history_has_begun_is_not_trimmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I13, I19, found by simulation: the store was emptied and a history restored in it while a primary of the old one
    was about to trim. The batches that went were in no snapshot of the new one."""
    monkeypatch.setattr(snapshot_upkeep, "LOOK_SECONDS", 0.01)
    coordination = MemoryCoordination(MemoryStore())
    supervisor = Supervisor()
    snapshots = Snapshots(SnapshotStore(tmp_path), coordination, "here", "here:7070", "", every_bytes=1 << 20)
    async with writing(coordination) as (writer, pending, _):
        for batch in (1, 2, 3):
            await is_written(writer, pending, batch)
        for batch in (1, 2):
            standby = Standby(State(log_id=HISTORY), Position(batch, batch, b"of other batches"))
            snapshots.store.write(*snapshots.store.take(standby))
        keep = partial(snapshots.keep_for_primary, State(log_id=HISTORY), writer, pending)
        keeping = asyncio.create_task(supervisor.keep("snapshots", keep))
        try:
            await until_true(lambda: any("another log" in why for why in supervisor.down().values()), "it says so")
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
    assert await first_batch(coordination) == 1
    await coordination.close()


async def test_an_offer_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    """I18."""
    coordination = MemoryCoordination(MemoryStore())
    snapshots = made(coordination, tmp_path)
    await coordination.publish(f"{PREFIX}bad", b"\xc1 no offer", None)
    await coordination.publish(f"{PREFIX}good", msgspec.msgpack.encode(Offer("good", "there:7070", 7)), None)
    assert [offer.batch for offer in await snapshots.offers(HISTORY)] == [7]
    await coordination.close()


async def test_a_snapshot_that_failed_is_tried_again_with_back_off_and_stays_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I13: it does not wait until the log has grown by as much again; meanwhile the reason is known."""
    monkeypatch.setattr(snapshot_upkeep, "LOOK_SECONDS", 0.01)
    coordination = MemoryCoordination(MemoryStore())
    supervisor = Supervisor()
    snapshots = Snapshots(
        SnapshotStore(tmp_path), coordination, "here", "here:7070", "", 1_000, lambda: supervisor.well("snapshots")
    )
    standby = Standby(State(log_id=HISTORY), Position(batch=1, index=1))
    real, tries = SnapshotStore.write, []

    def full(store: SnapshotStore, *args: Any) -> Any:
        tries.append(supervisor.down())
        if len(tries) < 4:
            raise SnapshotFailed("the disk is full")
        return real(store, *args)

    monkeypatch.setattr(SnapshotStore, "write", full)
    snapshots.log_bytes = 1_000
    keeping = asyncio.create_task(supervisor.keep("snapshots", lambda: snapshots.keep_for_standby(lambda: standby)))
    try:
        await until_true(
            lambda: [one.batch for one in snapshots.store.kept(HISTORY)] == [1], "it is written in the end"
        )
        assert tries[1:] == [{"snapshots": "the disk is full"}] * 3
        await until_true(lambda: not supervisor.down(), "and all is well")
        assert snapshots.log_bytes == 0
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        await coordination.close()
