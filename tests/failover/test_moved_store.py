"""The SQLite file is deleted or replaced under running masters: both say so, and nothing is acknowledged in vain."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client.cache import Cache
from holdfast.coordination.sqlite.file import FILES
from holdfast.errors import HoldfastError
from tests.failover.cluster import Cluster
from tests.failover.load import put_or_error
from tests.waiting import wait_until

SAID_WITHIN_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "store"
    made.mkdir()
    return made


@pytest.fixture
def cluster(folder: Path, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", f"sqlite://{folder}/cluster.db") as cluster:
        yield cluster


def put_until_refused(cache: Cache, acked: dict[str, bytes], most: int = 2_000) -> HoldfastError | None:
    for number in range(len(acked), len(acked) + most):
        error = put_or_error(cache, f"key/{number}", f"value of {number}".encode() * 10, acked)
        if error is not None:
            return error
    return None


def all_say(cluster: Cluster, what: str) -> bool:
    """Every master calls itself a standby that cannot take over, because of its store."""
    found = [master.status() for master in cluster.masters]
    return all(
        one.get("role") == "standby" and not one["promotable"] and what in one["promotable_reason"] for one in found
    )


def test_puts_stop_when_the_file_is_deleted_and_go_on_when_it_is_back(
    cluster: Cluster, folder: Path, tmp_path: Path
) -> None:
    """I1, I19: what was acknowledged before is there after, and no empty history is begun meanwhile."""
    acked: dict[str, bytes] = {}
    away = tmp_path / "away"
    away.mkdir()
    old = cluster.primary()
    epoch = old.status()["epoch"]
    cluster.standby()
    with cluster.connect(timeout=3) as cache:
        assert put_until_refused(cache, acked, 300) is None
        for suffix in FILES:
            shutil.move(folder / f"cluster.db{suffix}", away)
        refused = put_until_refused(cache, acked)
        assert refused is not None, "puts are acknowledged into a file that nobody can read"
    wait_until(lambda: all_say(cluster, "cluster.db"), SAID_WITHIN_S, "both say that their store is gone")
    assert not old.readiness()[0]
    wait_until(lambda: "was deleted while it was in use" in old.said(), 60, "the log says so")
    assert not (folder / "cluster.db").exists(), "no other history is begun"
    for suffix in FILES:
        shutil.move(away / f"cluster.db{suffix}", folder)
    cluster.settle()
    assert cluster.primary().status()["epoch"] > epoch
    cluster.verify(acked, set())


def test_an_older_copy_in_its_place_is_noticed_before_the_next_acknowledgement(cluster: Cluster, folder: Path) -> None:
    """I1: the primary steps down, and says what has happened; the standby says that its log has lost its end."""
    acked: dict[str, bytes] = {}
    old = cluster.primary()
    cluster.standby()
    with cluster.connect(timeout=3) as cache:
        assert put_until_refused(cache, acked, 50) is None
        with sqlite3.connect(folder / "cluster.db") as source, sqlite3.connect(folder / "copy.db") as copy:
            source.backup(copy)
        source.close()
        copy.close()
        assert put_until_refused(cache, acked, 200) is None
        for suffix in FILES[1:]:
            (folder / f"cluster.db{suffix}").unlink()
        (folder / "copy.db").replace(folder / "cluster.db")
        wait_until(lambda: "while it was in use" in old.said(), SAID_WITHIN_S, "the primary says so")
    standby = next(one for one in cluster.masters if one is not old)
    wait_until(lambda: "while it was in use" in standby.said(), SAID_WITHIN_S, "the standby says so too")
    wait_until(lambda: "lost its tail" in standby.said(), SAID_WITHIN_S, "and what that means")
    assert all(one.alive for one in cluster.masters)
