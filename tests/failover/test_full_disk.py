"""The disk of an SQLite coordination runs full: nothing acknowledged is lost, and all goes on when there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import LogFull, LogFullInDoubt
from tests.failover.cluster import Cluster
from tests.failover.load import content_of, put_or_error
from tests.waiting import wait_until


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mounting, capture_output=True).returncode != 0:
        pytest.skip("a small file system can be mounted by root only")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_costs_time_and_nothing_else(small_disk: Path, tmp_path: Path) -> None:
    """I1, I10, I17."""
    acked: dict[str, bytes] = {}
    filler = small_disk / "filler"
    with Cluster(tmp_path / "cluster", f"sqlite://{small_disk}/coordination.db", lease_ttl_ms=500) as cluster:
        with cluster.connect(timeout=4) as cache:
            for number in range(200):
                key = f"before/{number}"
                assert cache.put(key, content_of(key))
                acked[key] = content_of(key)
            fill(filler)
            keys = (f"full/{number}" for number in range(2_000))
            tries = (put_or_error(cache, key, content_of(key) * 10, acked) for key in keys)
            refused = next((error for error in tries if error is not None), None)
            assert refused is not None, "the disk is full, and puts are acknowledged without end"
            again = put_or_error(cache, "full/later", content_of("full/later") * 10, acked)
            for error in (refused, again):
                assert isinstance(error, LogFull | LogFullInDoubt), repr(error)
                assert "is full" in str(error)
                assert "free some space there" in str(error)
            filler.unlink()
        with cluster.connect() as cache:
            wait_until(lambda: cache.put("after", b"x", upsert=True), what="it goes on")
        cluster.verify({**acked, "after": b"x"}, set())


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
