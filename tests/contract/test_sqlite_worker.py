"""The thread that writes the SQLite file: the loop stays free, order is kept, giving up harms nobody; and the
write-ahead log that has its size before it is needed."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.coordination.interface import CoordinationLost
from holdfast.coordination.opening import open_coordination
from holdfast.coordination.sqlite_file import WAL_READY_BYTES, lay_out_wal
from holdfast.coordination.sqlite_worker import Worker
from tests.contract.stories import append_all, read_log, soon


@pytest_asyncio.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Worker]:
    made = Worker(tmp_path / "file.db", "test", 1.0)
    yield made
    await made.close()


def size_of_wal(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


async def test_the_loop_is_free_while_the_disk_takes_its_time(worker: Worker) -> None:
    """I10: a stalled disk stops what waits for it and nothing else."""
    stalled = threading.Event()
    slow = asyncio.create_task(worker.run(lambda _: stalled.wait(10)))
    turns = 0
    while turns < 100:
        await asyncio.sleep(0)
        turns += 1
    assert not slow.done()
    stalled.set()
    assert await soon(slow)


async def test_what_takes_too_long_is_given_up_and_the_next_call_comes_after_it(worker: Worker) -> None:
    stalled, done = threading.Event(), list[str]()
    with pytest.raises(TimeoutError):
        await worker.run(lambda _: stalled.wait(10) and done.append("first"), wait_s=0.01)
    second = asyncio.create_task(worker.run(lambda _: done.append("second")))
    await asyncio.sleep(0)
    stalled.set()
    await soon(second)
    assert done == ["first", "second"]


async def test_a_call_that_was_cancelled_before_its_turn_is_not_begun(worker: Worker) -> None:
    stalled, done = threading.Event(), list[str]()
    first = asyncio.create_task(worker.run(lambda _: stalled.wait(10)))
    second = asyncio.create_task(worker.run(lambda _: done.append("second")))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    stalled.set()
    await soon(first)
    await soon(worker.run(lambda _: done.append("third")))
    assert done == ["third"]


async def test_a_failed_call_leaves_no_transaction_to_the_next_one(worker: Worker) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("SELECT * FROM nothing")

    with pytest.raises(CoordinationLost, match="nothing was written"):
        await worker.run(fail)
    assert await worker.run(lambda connection: connection.in_transaction) is False


async def test_after_its_end_it_says_so(worker: Worker) -> None:
    await worker.run(lambda _: None)
    await worker.close()
    with pytest.raises(CoordinationLost, match="was closed"):
        await worker.run(lambda _: None)


async def test_the_write_ahead_log_has_its_size_once_a_term_is_won_and_survives_a_crash(tmp_path: Path) -> None:
    """I1: the zeros behind its end are no batches, to whoever opens what a dead process left."""
    path = tmp_path / "live" / "coordination.db"
    path.parent.mkdir()
    coordination = await open_coordination(f"sqlite://{path}?cluster=c", leader_ttl_ms=1500)
    try:
        term = await coordination.campaign("here:7070")
        assert size_of_wal(path) >= WAL_READY_BYTES
        await append_all(term, 1, [b"one", b"two"])
        # What the disk holds now is what a crash would leave.
        shutil.copytree(path.parent, tmp_path / "left")
    finally:
        await coordination.close()
    found = await open_coordination(f"sqlite://{tmp_path}/left/coordination.db?cluster=c", leader_ttl_ms=1500)
    try:
        assert await read_log(found, 0, 2) == [(1, b"one"), (2, b"two")]
        term = await soon(found.campaign("there:7070"))
        await append_all(term, 3, [b"three"])
        assert await read_log(found, 0, 3) == [(1, b"one"), (2, b"two"), (3, b"three")]
    finally:
        await found.close()


def test_while_another_writes_the_log_is_left_as_it_is(tmp_path: Path) -> None:
    """I1: zeros over another's batch would lose it."""
    path = tmp_path / "file.db"
    with sqlite3.connect(path, isolation_level=None) as other, sqlite3.connect(path, timeout=0) as ours:
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("CREATE TABLE t (n INTEGER)")
        size = size_of_wal(path)
        other.execute("BEGIN IMMEDIATE")
        ours.isolation_level = None
        lay_out_wal(ours, path)
        assert size_of_wal(path) == size
        assert not ours.in_transaction
        other.execute("INSERT INTO t VALUES (1)")
        other.execute("COMMIT")
        lay_out_wal(ours, path)
        assert size_of_wal(path) >= WAL_READY_BYTES
        assert ours.execute("SELECT n FROM t").fetchall() == [(1,)]
    other.close()
    ours.close()
