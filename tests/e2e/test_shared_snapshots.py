"""Masters that share snapshots: every master dies, every disk is lost, the log was trimmed, and nothing is gone."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.e2e.rig import Rig
from tests.replication.s3_server import ACCESS_KEY, s3_server
from tests.waiting import wait_until


def first_batch(rig: Rig) -> int:
    with sqlite3.connect(f"{rig.folder}/cluster.db") as database:
        (table,) = database.execute("SELECT name FROM sqlite_master WHERE name LIKE 'log %'").fetchone()
        found: int = database.execute(f'SELECT min(number) FROM "{table}"').fetchone()[0]
    database.close()
    return found


@pytest.mark.parametrize("kind", ["directory", "s3"])
def test_all_masters_start_again_from_the_shared_place(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I13."""
    if kind == "s3":
        pytest.importorskip("boto3", reason="snapshots in S3 are an extra")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with s3_server() as server:
        place = f"s3://bucket/snapshots?endpoint={server.endpoint}&region=here"
        url = place if kind == "s3" else f"file://{tmp_path}/shared"
        with Rig("64MiB", masters=2, coordination="sqlite", snapshots=url, snapshot_bytes=20_000) as rig:
            stored: list[str] = []

            def trimmed() -> bool:
                with rig.connect() as cache:
                    keys = [f"object {len(stored) + number}" for number in range(200)]
                    cache.put_many(dict.fromkeys(keys, b"x" * 100))
                    stored.extend(keys)
                return first_batch(rig) > 1

            wait_until(trimmed, 60, "the log is trimmed")
            for name, (process, _) in rig.masters.items():
                rig.kill(process)
                shutil.rmtree(f"{rig.folder}/{name}")
            assert first_batch(rig) > 1
            for name in list(rig.masters):
                rig.start_master(name)
            with rig.connect() as cache:
                assert all(cache.exists_many(stored))
                assert cache.get(stored[0]) == b"x" * 100
