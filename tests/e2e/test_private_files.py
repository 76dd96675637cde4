"""Everything that the processes of a cluster write is for their user alone, whatever the umask that they start with."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.messages.of_masters import TakeSnapshot
from holdfast.messages.requests import Done
from tests.failover.cluster import Cluster, call
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("private")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    loose = folder / "master-1" / "data"
    loose.mkdir(parents=True)
    loose.chmod(0o755)
    url, snapshots = f"sqlite://{folder}/c.db", f"file://{folder}/shared"
    rules = {"offload_ahead": 1, "high_watermark": 0.3, "shared_grant_bytes": 1 << 20, "lease_ttl_ms": 500}
    with Cluster(folder, url, masters=1, nodes=0, size="16MiB", snapshots=snapshots, **rules) as made:
        made.add_node("node-1", "--disk", str(folder / "disk"), "--disk-size", "64MiB")
        yield made


def paths_under(*places: Path) -> Iterator[Path]:
    for place in places:
        yield place
        yield from place.rglob("*")


def test_files_are_0600_and_directories_0700(cluster: Cluster, folder: Path) -> None:
    with cluster.connect() as cache:
        for number in range(40):
            cache.put(f"key {number}", bytes(200_000))
    master = cluster.masters[0]
    with master.channel() as channel:
        assert isinstance(call(channel, TakeSnapshot(), 30), Done)
    wait_until(lambda: len(list((folder / "disk").rglob("*"))) > 3, what="an object is on the disk")
    wait_until(lambda: list((folder / "shared").rglob("*.hfs")), what="the snapshot is shared")
    node = json.loads(cluster.nodes[0].ready_file.read_text())
    socket = Path(node["socket_path"])
    made = [master.ready_file, cluster.nodes[0].ready_file, socket, socket.parent]
    made += [Path(f"{folder}/c.db{suffix}") for suffix in ("", "-wal", "-shm")]
    made += paths_under(folder / "disk", folder / "shared", folder / "master-1" / "data")
    seen = {path: stat.S_IMODE(path.stat().st_mode) for path in made if path.exists()}
    assert len(seen) > 15
    assert {path: oct(mode) for path, mode in seen.items() if mode & 0o077} == {}


def test_a_data_directory_that_others_could_enter_is_closed_and_the_log_says_so(cluster: Cluster, folder: Path) -> None:
    said = cluster.masters[0].said()
    assert said.count(f"other users could look into {folder}/master-1/data; it is closed to them now") == 1
