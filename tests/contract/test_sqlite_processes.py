"""SQLite, where death can be proven: killed and stopped leaders, a locked database, a full disk (I3, I12)."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.coordination.backends import open_coordination
from holdfast.coordination.interface import Coordination, CoordinationLost, Leader
from holdfast.coordination.sqlite import process_proof
from holdfast.coordination.sqlite.backend import SqliteCoordination
from holdfast.errors import BadValue, WrongVersion
from holdfast.ids import ProcessName
from holdfast.instant import now_seconds
from holdfast.witness import this_process
from tests.contract.servers import leader_process
from tests.contract.stories import append_all, read_log, soon, until


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/coordination.db?cluster=c"


@pytest_asyncio.fixture
async def coordination(url: str) -> AsyncIterator[Coordination]:
    opened = await open_coordination(url, leader_ttl_ms=1500)
    yield opened
    await opened.close()


async def test_a_killed_leader_is_known_to_be_dead_at_once(url: str, coordination: Coordination) -> None:
    with leader_process(url) as process:
        assert await coordination.leader() == Leader(1, "process:7070")
        waiting = asyncio.create_task(coordination.campaign("here:7070"))
        process.send_signal(signal.SIGKILL)
        killed_at = now_seconds()
        term = await soon(waiting)
    assert (term.epoch, term.previous_address) == (2, "process:7070")
    assert term.proof in ("flock", "gone"), "the kernel ends the process and its lock one after the other"
    # Its silence alone would have taken leader_ttl, 1.5 s.
    assert now_seconds() - killed_at < 1.4
    await append_all(term, 2, [b"after"])
    assert await read_log(coordination, 0, 2) == [(1, b"from the process"), (2, b"after")]


async def test_a_stopped_leader_is_replaced_by_silence_and_writes_nothing_when_it_goes_on(
    url: str, coordination: Coordination
) -> None:
    """I3, I12."""
    with leader_process(url) as process:
        process.send_signal(signal.SIGSTOP)
        term = await soon(coordination.campaign("here:7070"))
        assert (term.epoch, term.proof) == (2, "silence")
        process.send_signal(signal.SIGCONT)
        # It learns that it was deposed, and ends by itself.
        await until(lambda: asyncio.to_thread(lambda: process.poll() is not None), "the deposed process ends")
    assert await coordination.leader() == Leader(2, "here:7070")


async def test_a_stopped_leader_that_keeps_the_database_locked_is_ended_for_sure(
    url: str, coordination: Coordination
) -> None:
    with leader_process(url, "lock") as process:
        process.send_signal(signal.SIGSTOP)
        term = await soon(coordination.campaign("here:7070"))
        assert (term.epoch, term.proof) == (2, "flock")
        assert process.wait(20) == -signal.SIGKILL
        await append_all(term, 2, [b"after"])


async def test_another_process_that_keeps_the_database_locked_is_named_and_spares_the_leader(
    tmp_path: Path, coordination: Coordination
) -> None:
    term = await soon(coordination.campaign("here:7070"))
    locked = sqlite3.connect(tmp_path / "coordination.db", isolation_level=None)
    locked.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(CoordinationLost, match=f"process {os.getpid()} keeps"):
            await soon(term.append(1, b"a"))
    finally:
        locked.close()
    await append_all(term, 1, [b"a"])


async def test_a_full_disk_is_said_and_nothing_is_written(coordination: Coordination) -> None:
    assert isinstance(coordination, SqliteCoordination)
    term = await soon(coordination.campaign("here:7070"))
    await append_all(term, 1, [b"a"])

    async def limit(pages: int) -> None:
        await coordination._writer.run(lambda connection: connection.execute(f"PRAGMA max_page_count={pages}"))

    await limit(12)
    with pytest.raises(CoordinationLost, match="full"):
        await soon(term.append(2, bytes(500_000)))
    assert await coordination.last_index() == 1
    await limit(1_000_000)
    await append_all(term, 2, [bytes(500_000)])


async def test_the_write_ahead_log_stays_bounded(tmp_path: Path, coordination: Coordination) -> None:
    """I17."""
    term = await soon(coordination.campaign("here:7070"))
    for index in range(1, 200):
        await soon(term.append(index, bytes(200_000)))
        if index % 20 == 0:
            await coordination.trim(index - 5)
    assert (tmp_path / "coordination.db-wal").stat().st_size < 32 << 20
    assert (tmp_path / "coordination.db").stat().st_size < 32 << 20


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_bytes(b"this is no database at all " * 100)
    with pytest.raises(BadValue, match="not a sound database"):
        await open_coordination(f"sqlite://{tmp_path}/text.db")


async def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    newer = sqlite3.connect(tmp_path / "newer.db")
    newer.execute("PRAGMA user_version=99")
    newer.close()
    with pytest.raises(WrongVersion):
        await open_coordination(f"sqlite://{tmp_path}/newer.db")


def test_the_lock_of_a_leader_is_not_kept_by_its_forked_child(tmp_path: Path) -> None:
    lock = process_proof.LeaderLock(tmp_path / "x.lock")
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b".")
        os.read(done[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        assert not process_proof.is_free(tmp_path / "x.lock")
        lock.drop()
        assert process_proof.is_free(tmp_path / "x.lock")
    finally:
        os.write(done[1], b".")
        os.waitpid(child, 0)
        for descriptor in (*ready, *done):
            os.close(descriptor)


def test_a_process_whose_number_was_given_to_another_is_not_killed() -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        here = this_process()
        name = ProcessName(sleeper.pid, 1, here.machine)
        assert process_proof.kill_for_sure(name, 1)  # The one that was meant is gone.
        assert sleeper.poll() is None
        elsewhere = ProcessName(sleeper.pid, 1, "another boot")
        assert not process_proof.kill_for_sure(elsewhere, 1)
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait(20)
