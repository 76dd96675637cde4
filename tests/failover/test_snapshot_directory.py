"""The directory of a standby's snapshots is deleted, replaced or made read-only under it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.failover.cluster import Cluster, Process
from tests.waiting import wait_until

SAYS_WITHIN_S = 40.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, f"sqlite://{tmp_path}/coordination.db") as cluster:
        yield cluster


def snapshots_of(master: Process) -> Path:
    return master.folder / "data" / "snapshots"


def says_it_is_down(master: Process, what: str) -> bool:
    status, (ready, reason) = master.status(), master.readiness()
    if status["promotable"] or ready:
        return False
    assert "'snapshots' is down" in status["promotable_reason"]
    assert what in status["promotable_reason"]
    assert "'snapshots' is down" in reason
    return True


def take_over(cluster: Cluster, standby: Process) -> None:
    """The failover that a standby is there for, and a put after it."""
    with cluster.connect() as cache:
        assert cache.put("before", b"b" * 1_000)
        cluster.primary().kill()
        assert cluster.primary() is standby
        assert cache.get("before") == b"b" * 1_000
        assert cache.put("after", b"a" * 1_000)
    assert standby.alive


def test_a_deleted_directory_is_made_again_and_the_standby_takes_over(cluster: Cluster) -> None:
    """I15, I18: it costs the snapshots in it, not the standby that is needed."""
    standby = cluster.standby()
    shutil.rmtree(snapshots_of(standby))
    wait_until(lambda: snapshots_of(standby).is_dir(), SAYS_WITHIN_S, "it is made again")
    wait_until(lambda: "was deleted" in standby.said(), SAYS_WITHIN_S, "and it says so")
    take_over(cluster, standby)
    cluster.heal()
    cluster.verify({"before": b"b" * 1_000, "after": b"a" * 1_000}, set())


def test_a_file_in_its_place_makes_it_not_promotable_by_name_and_it_takes_over_all_the_same(cluster: Cluster) -> None:
    """I15, I18."""
    standby = cluster.standby()
    folder = snapshots_of(standby)
    shutil.rmtree(folder)
    # The standby may make the directory again in between.
    wait_until(lambda: in_the_way(folder), what="a file is there instead")
    wait_until(lambda: says_it_is_down(standby, str(folder)), SAYS_WITHIN_S, "it says what is wrong")
    take_over(cluster, standby)
    folder.unlink()
    wait_until(lambda: standby.readiness()[0], SAYS_WITHIN_S, "all is well again, without a restart")
    assert standby.said().count("snapshots failed and is tried again") <= 2, "once as a standby, once as the primary"


def in_the_way(folder: Path) -> bool:
    if folder.is_dir():
        shutil.rmtree(folder)
    try:
        folder.write_text("in the way")
    except OSError:
        return False
    return folder.is_file()


def test_a_read_only_directory_is_said_before_a_snapshot_is_due(cluster: Cluster) -> None:
    """I13, I18."""
    standby = cluster.standby()
    folder = str(snapshots_of(standby))
    mounting = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", folder]
    if os.geteuid() != 0 or subprocess.run(mounting, capture_output=True).returncode != 0:
        pytest.skip("a read-only file system can be mounted by root only")
    try:
        wait_until(lambda: says_it_is_down(standby, "read-only"), SAYS_WITHIN_S, "it says what is wrong")
        take_over(cluster, standby)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
    wait_until(lambda: standby.readiness()[0], SAYS_WITHIN_S, "all is well again, without a restart")
