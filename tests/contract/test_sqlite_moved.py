"""The SQLite file is deleted or replaced under a connection: nothing is acknowledged that others cannot read (I1)."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.coordination.backends import open_coordination
from holdfast.coordination.interface import Coordination, CoordinationLost, Deposed
from holdfast.coordination.sqlite.file import FILES, StoreMoved
from tests.contract.stories import append_all, read_log, soon, until

SUFFIXES = pytest.mark.parametrize("suffix", FILES, ids=["database", "log", "index"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "coordination.db"


@pytest_asyncio.fixture
async def store(path: Path) -> AsyncIterator[Coordination]:
    made = await open_coordination(f"sqlite://{path}?cluster=c", leader_ttl_ms=1500)
    yield made
    await made.close()


@SUFFIXES
@pytest.mark.parametrize("quick", [False, True], ids=["thread", "at once"])
async def test_a_batch_in_a_file_without_a_name_is_not_acknowledged(
    store: Coordination, path: Path, suffix: str, quick: bool
) -> None:
    """I1: the leader steps down in that very append, and says which file it was."""
    term = await soon(store.campaign("here:7070"))
    await append_all(term, 1, [b"one", b"two"])
    os.unlink(f"{path}{suffix}")
    with pytest.raises(Deposed, match=f"{path}{suffix} was deleted"):
        if quick:
            term.append_at_once(3, b"three")
        else:
            await soon(term.append(3, b"three"))
    assert "was deleted" in await soon(term.ended())


@SUFFIXES
async def test_a_leader_that_writes_nothing_steps_down_as_well(store: Coordination, path: Path, suffix: str) -> None:
    """I12: by its next renewal."""
    term = await soon(store.campaign("here:7070"))
    await append_all(term, 1, [b"one"])
    shutil.copy(f"{path}{suffix}", f"{path}.copy")
    os.replace(f"{path}.copy", f"{path}{suffix}")
    assert "was replaced by another file" in await soon(term.ended())


async def test_a_deleted_database_is_not_begun_anew_and_is_used_again_when_it_is_back(
    store: Coordination, path: Path, tmp_path: Path
) -> None:
    """I19: an empty file in its place would be another history."""
    term = await soon(store.campaign("here:7070"))
    await append_all(term, 1, [b"one"])
    away = tmp_path / "away"
    away.mkdir()
    for suffix in FILES:
        shutil.move(f"{path}{suffix}", away)
    assert "was deleted" in await soon(term.ended())

    async def fails() -> bool:
        try:
            await store.last_index()
        except StoreMoved as error:
            return "is gone" in str(error)
        return False

    await until(fails, "it says that the file is gone")
    with pytest.raises(CoordinationLost):
        await store.publish("name", b"value", None)
    assert path.name not in os.listdir(tmp_path), "it made none"
    for suffix in FILES:
        shutil.move(away / f"{path.name}{suffix}", f"{path}{suffix}")
    assert await read_log(store, 0, 1) == [(1, b"one")]
    again = await soon(store.campaign("here:7070"))
    await append_all(again, 2, [b"two"])
    assert again.epoch == 2


async def test_what_is_closed_late_leaves_the_new_databases_files_alone(path: Path) -> None:
    """I1: SQLite removes its log and index by their names when it is closed."""
    old = await open_coordination(f"sqlite://{path}?cluster=c", leader_ttl_ms=1500)
    term = await soon(old.campaign("old:7070"))
    await append_all(term, 1, [b"one"])
    for suffix in FILES:
        os.unlink(f"{path}{suffix}")
    new = await open_coordination(f"sqlite://{path}?cluster=c", leader_ttl_ms=1500)
    try:
        led = await soon(new.campaign("new:7070"))
        await append_all(led, 1, [b"other"])
        there = [os.stat(f"{path}{suffix}").st_ino for suffix in FILES]
        await soon(term.ended())
        await old.close()
        assert [os.stat(f"{path}{suffix}").st_ino for suffix in FILES] == there
        await append_all(led, 2, [b"more"])
        with sqlite3.connect(path) as reader:
            assert [row[0] for row in reader.execute('SELECT batch FROM "log c" ORDER BY number')] == [
                b"other",
                b"more",
            ]
        reader.close()
    finally:
        await new.close()


async def test_a_follower_says_that_its_file_is_gone_instead_of_waiting_at_it(
    store: Coordination, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    term = await soon(store.campaign("here:7070"))
    await append_all(term, 1, [b"one"])
    follower = await open_coordination(f"sqlite://{path}?cluster=c", leader_ttl_ms=1500)
    try:
        following = follower.follow(0)
        assert await soon(anext(following)) == [(1, b"one")]
        for suffix in FILES:
            os.unlink(f"{path}{suffix}")

        async def said() -> bool:
            return any("was deleted" in one.getMessage() for one in caplog.records if "followed" in one.getMessage())

        waiting = asyncio.create_task(anext(following))
        await until(said, "it says so")
        waiting.cancel()
        await asyncio.wait([waiting])
        await following.aclose()
    finally:
        await follower.close()
