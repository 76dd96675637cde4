"""Rolling upgrade from the release before to this one and back, with clients of both at work (docs/upgrades.md)."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.master.status.clients import handle_of
from holdfast.messages.of_masters import EndClient
from holdfast.messages.requests import Done, Failed
from holdfast.messages.shapes import Message
from tests.failover.cluster import Cluster, Process, call
from tests.failover.conftest import place_for
from tests.failover.releases import THIS, Release, keep, previous_release, release_after
from tests.failover.upgrade_steps import (
    STEP_S,
    ClientAtWork,
    end,
    hand_over,
    replace_master,
    replace_masters,
    replace_nodes,
    with_nodes_of,
)
from tests.waiting import wait_until

KEY_TABLE_CLIENT = str(Path(__file__).parent / "scripts" / "key_table_client.py")


@pytest.fixture(scope="module")
def before() -> Release:
    return previous_release()


@contextlib.contextmanager
def cluster_of(release: Release, folder: Path, url: str) -> Iterator[Cluster]:
    """Two masters and two nodes of that release."""
    cluster = Cluster(folder, url, nodes=0)
    with with_nodes_of(release, cluster):
        yield cluster


@pytest.mark.parametrize("backend", ["sqlite"])
def test_a_rolling_upgrade_and_the_way_back_fail_no_request_of_either_releases_clients(
    backend: str, before: Release, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """I1, I2, I7, I10: 0 errors and nothing lost, with every mix of the two releases on the way."""
    url = place_for(backend, request, tmp_path)
    with cluster_of(before, tmp_path, url) as cluster, contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(ClientAtWork(release, cluster.address, f"{release.version} {shared}", shared))
            for release in (before, THIS)
            for shared in (True, False)
        ]

        def work_on() -> None:
            for client in clients:
                client.goes_on()

        work_on()
        replace_masters(cluster, THIS)
        work_on()
        replace_nodes(cluster, THIS)
        work_on()
        replace_nodes(cluster, before)
        work_on()
        replace_masters(cluster, before)
        work_on()
        verdicts = [client.end() for client in clients]
        assert [verdict["error"] for verdict in verdicts] == ["", "", "", ""]
        assert [verdict["version"] for verdict in verdicts] == [before.version] * 2 + [THIS.version] * 2
        assert all(verdict["removed"] > 100 for verdict in verdicts), "nobody removed anything"
        cluster.verify({}, set())


def first_batch(database: Path) -> int:
    """The oldest batch that the log still has."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        (table,) = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'log %'").fetchone()
        found: int = connection.execute(f'SELECT min(number) FROM "{table}"').fetchone()[0]
    return found


def test_snapshots_that_the_release_before_shared_are_found_after_an_upgrade(before: Release, tmp_path: Path) -> None:
    """I1, I13: it shared them under the name in its settings, though the URL names the cluster otherwise."""
    url, shared = f"sqlite://{tmp_path}/coordination.db?cluster=prod", tmp_path / "shared"
    cluster = Cluster(tmp_path, url, nodes=0, snapshots=f"file://{shared}", snapshot_bytes=20_000)
    for master in cluster.masters:
        master.release = before
    stored: dict[str, bytes] = {}
    with cluster:
        cluster.add_node("node-1")

        def trimmed() -> bool:
            with cluster.connect() as cache:
                some = {f"object {len(stored) + number}": b"x" * 100 for number in range(200)}
                cache.put_many(some)
                stored.update(some)
            return first_batch(tmp_path / "coordination.db") > 1

        wait_until(trimmed, STEP_S, "the log is trimmed")
        assert [place.name for place in shared.iterdir()] == ["holdfast"]
        for number, master in enumerate(cluster.masters):
            master.kill()
            shutil.rmtree(tmp_path / f"master-{number + 1}" / "data")
            master.release = THIS
        earlier = sorted(path.name for path in (shared / "holdfast").iterdir())
        for master in cluster.masters:
            master.start()
        for master in cluster.masters:
            master.wait_until_ready()
        cluster.verify(stored, set())
        wait_until((shared / "prod").is_dir, STEP_S, "the cluster has a place under its own name")
        assert sorted(path.name for path in (shared / "holdfast").iterdir()) == earlier, "a downgrade finds them"


def revoke_somebody(primary: Process) -> Message:
    """Have the primary write the record that the release after this one has changed."""
    with primary.channel() as victim, primary.channel() as operator:
        return call(operator, EndClient(handle_of(victim.welcome.client)))


def test_a_record_of_the_next_release_is_written_when_every_master_reads_it(before: Release, tmp_path: Path) -> None:
    """I13: and a master that joins later with an older release stops there, and says what to do."""
    after = release_after(tmp_path)
    with Cluster(tmp_path, f"sqlite://{tmp_path}/coordination.db?cluster=c", nodes=0) as cluster:
        old = cluster.primary()
        replace_master(next(one for one in cluster.masters if one is not old), after)
        new = hand_over(cluster, old)
        name = old.folder.name
        wait_until(lambda: new.status().get("log_held_back_by") == [f"{name} (reads 3)"], STEP_S, "the new one knows")
        assert new.status()["log_version"] == 3
        refused = revoke_somebody(new)
        assert isinstance(refused, Failed), refused
        assert (refused.code, "nothing was changed" in refused.text) == ("log_held_back", True), refused

        wait_until(lambda: old.status().get("promotable"), STEP_S, "the former primary follows")
        replace_master(old, after)
        wait_until(lambda: new.status().get("log_version") == 4, STEP_S, "both read version 4")
        assert new.status()["log_held_back_by"] == []
        assert isinstance(revoke_somebody(new), Done)
        wait_until(lambda: old.status().get("log_version") == 4, STEP_S, "the standby has read it")
        for release in (THIS, before):
            end(old)
            old.release = release
            old.start()
            old.wait_until_ready()
            wait_until(lambda: "upgrade this master" in str(old.status().get("promotable_reason")), STEP_S)
            assert not old.readiness()[0]


@pytest.mark.parametrize("upgraded", ["master", "client", "both"])
def test_a_client_reads_no_key_table_of_another_layout_but_asks_the_master(
    upgraded: str, before: Release, tmp_path: Path
) -> None:
    """The layout changed after 0.2.0 (ADR 65): the first word tells, and each release refuses the other's."""
    served_by = before if upgraded == "client" else THIS
    asked_by = before if upgraded == "master" else THIS
    cluster = Cluster(tmp_path, "memory://", masters=1, nodes=0)
    cluster.masters[0].release = served_by
    with cluster:
        cluster.nodes.append(cluster.new_process("node", "node-1", "--address", cluster.address, "--size", "16MiB"))
        cluster.nodes[0].release = served_by
        cluster.nodes[0].start()
        cluster.nodes[0].wait_until_ready()
        done = subprocess.run(
            asked_by.command(KEY_TABLE_CLIENT, cluster.address),
            env=asked_by.environment,
            capture_output=True,
            text=True,
            timeout=STEP_S,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {
            "version": asked_by.version,
            "answers": [True, False, False, True],
            "shown": upgraded == "both",
        }


def test_a_release_that_two_processes_build_at_once_is_kept_once(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
        keep(tmp_path / name, tmp_path / "kept")
    assert [found.name for found in (tmp_path / "kept").iterdir()] == ["first"]
    with pytest.raises(OSError, match="gone"):
        keep(tmp_path / "gone", tmp_path / "elsewhere")
