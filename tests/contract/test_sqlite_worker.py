"""The thread that writes the SQLite file: the loop stays free, order is kept, giving up harms nobody; and the
write-ahead log that has its size before it is needed."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.coordination.backends import open_coordination
from holdfast.coordination.interface import CoordinationLost, Deposed
from holdfast.coordination.sqlite.file import CHECKPOINT_PAGES, WAL_READY_BYTES, lay_out_wal
from holdfast.coordination.sqlite.worker import AT_ONCE_IN_A_ROW, Worker
from holdfast.errors import BadValue
from tests.contract.stories import append_all, read_log, soon, until


@pytest_asyncio.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Worker]:
    made = Worker(tmp_path / "file.db", "test", 1.0)
    made.creates = True
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


async def test_a_write_at_once_is_made_by_the_caller_unless_the_thread_is_at_something(worker: Worker) -> None:
    threads: list[threading.Thread] = []
    assert not worker.at_once(lambda _: threads.append(threading.current_thread())), "nothing is open yet"
    await worker.run(lambda _: None)
    assert worker.at_once(lambda _: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]
    stalled = threading.Event()
    slow = asyncio.create_task(worker.run(lambda _: stalled.wait(10)))
    await asyncio.sleep(0)
    assert not worker.at_once(lambda _: threads.append(threading.current_thread()))
    stalled.set()
    await soon(slow)
    assert worker.at_once(lambda _: threads.append(threading.current_thread()))
    assert len(threads) == 2


async def test_one_that_was_given_up_keeps_the_connection_until_it_has_ended(worker: Worker) -> None:
    stalled = threading.Event()
    with pytest.raises(TimeoutError):
        await worker.run(lambda _: stalled.wait(10), wait_s=0.01)
    assert not worker.at_once(lambda _: None)
    stalled.set()
    await soon(worker.run(lambda _: None))
    assert worker.at_once(lambda _: None)


async def test_a_write_at_once_waits_for_no_other_writer_and_the_thread_does(worker: Worker) -> None:
    def write(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO t VALUES (1)")

    await worker.run(lambda connection: connection.execute("PRAGMA journal_mode=WAL"))
    await worker.run(lambda connection: connection.execute("CREATE TABLE t (n INTEGER)"))
    with contextlib.closing(sqlite3.connect(worker.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert not worker.at_once(write)
        waiting = asyncio.create_task(worker.run(write))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        other.execute("COMMIT")
        await soon(waiting)
        assert worker.at_once(write)
        assert other.execute("SELECT count(*) FROM t").fetchone() == (2,)


async def test_the_thread_has_its_turn_after_many_writes_at_once_and_shortens_the_log_of_sqlite(
    worker: Worker,
) -> None:
    """I17."""

    def write(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO t VALUES (zeroblob(40000))")

    await worker.run(lambda connection: connection.execute("PRAGMA journal_mode=WAL"))
    await worker.run(lambda connection: connection.execute("CREATE TABLE t (b BLOB)"))
    in_a_row = 0
    while worker.at_once(write):
        in_a_row += 1
    assert in_a_row == AT_ONCE_IN_A_ROW
    grown = size_of_wal(worker.path)
    assert grown > CHECKPOINT_PAGES * 4096
    for _ in range(3):  # The first writes it back, the second begins it anew.
        await worker.run(write)
    for _ in range(AT_ONCE_IN_A_ROW - 10):
        assert worker.at_once(write)
    assert size_of_wal(worker.path) < 1.1 * grown


async def test_a_term_writes_at_once_what_others_then_read_and_nothing_once_it_is_deposed(tmp_path: Path) -> None:
    """I1, I13."""
    url = f"sqlite://{tmp_path}/coordination.db?cluster=c"
    one, two = [await open_coordination(url, leader_ttl_ms=1500) for _ in range(2)]
    try:
        old = await soon(one.campaign("one:7070"))
        await append_all(old, 1, [b"a"])

        async def at_once(index: int, batch: bytes) -> bool:
            return old.append_at_once(index, batch)

        await until(lambda: at_once(2, b"b"), "no heartbeat is under way")
        with pytest.raises(BadValue):
            await until(lambda: at_once(4, b"d"), "no heartbeat is under way")
        await until(lambda: at_once(2, b"b"), "found in the log, it is written once")
        assert await read_log(two, 0, 2) == [(1, b"a"), (2, b"b")]
        new = await soon(two.campaign("two:7070", replacing=old.epoch))
        await append_all(new, 3, [b"of the new one"])
        with contextlib.suppress(Deposed):
            assert not old.append_at_once(3, b"c")
        assert await read_log(two, 0, 3) == [(1, b"a"), (2, b"b"), (3, b"of the new one")]
    finally:
        await one.close()
        await two.close()


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
