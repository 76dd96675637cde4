"""The coordination store, the masters' disks or both are lost, and the cache is brought back: the runbook, played.

Real etcd that is killed, emptied and started again on its port; real masters and nodes. Promises: no wrong bytes (I2),
nothing removed comes back from a running master's state (I7), nothing of one history is used under another (I19).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.cache import Cache
from holdfast.coordination.sqlite.file import FILES
from holdfast.errors import HoldfastError, ObjectNotFound
from holdfast.instant import now_seconds
from tests import prefork
from tests.contract.servers import OwnEtcd, start_zookeeper
from tests.failover.cluster import Cluster, Process
from tests.waiting import wait_until

WAITS_S = 60.0


def holdfast_says(*arguments: str, within_s: float = 120.0) -> dict[str, Any]:
    done = prefork.holdfast(*arguments, "--json", timeout=within_s)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def restore(cluster: Cluster, *more: str) -> dict[str, Any]:
    return holdfast_says("restore", "--address", cluster.address, "--timeout", "60", *more)


def wait_for_waiting(cluster: Cluster) -> None:
    """Until every master waits for the operator, or cannot go on, and none serves."""

    def waits() -> bool:
        found = [one.status() for one in cluster.masters if one.alive]
        return all(one and one["role"] == "standby" and not one["promotable"] for one in found)

    wait_until(waits, WAITS_S, "no master serves, and none would")


def value_of(key: str, size: int = 2_000) -> bytes:
    return (key.encode() + b"/") * (size // (len(key) + 1))


def put_all(cache: Cache, keys: list[str], size: int = 2_000) -> dict[str, bytes]:
    values = {key: value_of(key, size) for key in keys}
    assert cache.put_many(values) == len(keys)
    return values


def put_at_last(cluster: Cluster, key: str) -> None:
    """Memory is granted again once old writers and old leases are gone."""

    def stored() -> bool:
        with cluster.connect(timeout=5) as cache:
            try:
                return cache.put(key, value_of(key)) or cache.exists(key)
            except HoldfastError:
                return False

    wait_until(stored, WAITS_S, "a put finds memory")


def snapshot_files(master: Process) -> list[Path]:
    return sorted((master.folder / "data" / "snapshots").glob("*.hfs"))


def test_etcd_lost_under_a_running_cluster(etcd: OwnEtcd, tmp_path: Path) -> None:
    with Cluster(tmp_path, etcd.url("restored"), masters=2) as cluster:
        cluster.settle()
        with cluster.connect() as cache, cluster.connect() as idle:
            values = put_all(cache, [f"k{i}" for i in range(2_000)])
            assert idle.put("of the idle one", b"bytes")
            values["of the idle one"] = b"bytes"
            removed = {f"k{i}" for i in range(50)}
            for key in removed:
                cache.remove(key, force=True)
                del values[key]
            etcd.wipe()
            wait_for_waiting(cluster)
            said = restore(cluster)
            assert said["restored_objects"] == len(values)
            assert said["verified_objects"] == len(values)
            assert (said["mismatched_objects"], said["lost_objects"]) == (0, 0)
            # The client of before finds the restored cluster by itself, and may look at objects in place again.
            with cache.view("k100") as view:
                assert bytes(view) == values["k100"]
            # The client that asks no master any more is told by the node, so it keeps no memory from others.
            put_at_last(cluster, "after")
        values["after"] = value_of("after")
        cluster.verify(values, removed)
        # The new history is complete by itself: whoever takes over has it from the log alone.
        old = cluster.primary()
        cluster.standby()
        old.kill()
        cluster.primary(but=old)
        cluster.heal()
        cluster.verify(values, removed)


def test_zookeeper_lost_under_a_running_cluster(tmp_path: Path) -> None:
    """A server that was emptied refuses clients who have seen more than it has: the masters are let in all the same."""
    zookeeper = start_zookeeper(tmp_path / "zookeeper")
    try:
        zookeeper.wait_until_it_serves()
        with Cluster(tmp_path, f"zookeeper://127.0.0.1:{zookeeper.port}/restored", masters=2) as cluster:
            cluster.settle()
            with cluster.connect() as cache:
                values = put_all(cache, [f"k{i}" for i in range(300)])
            zookeeper.end()
            shutil.rmtree(tmp_path / "zookeeper" / "data")
            zookeeper = start_zookeeper(tmp_path / "zookeeper", zookeeper.port)
            zookeeper.wait_until_it_serves()
            wait_until(lambda: all(one.status()["waits"] for one in cluster.masters), WAITS_S, "they wait to be told")
            said = restore(cluster)
            assert said["from"]["where"] == "memory"
            assert (said["restored_objects"], said["verified_objects"]) == (300, 300)
            cluster.verify(values, set())
    finally:
        zookeeper.end()


def test_a_deleted_sqlite_file_and_a_snapshot_that_is_left(tmp_path: Path) -> None:
    """Masters make no deleted file anew while they run: they are started again, and know what the snapshot knows."""
    (tmp_path / "store").mkdir()
    with Cluster(tmp_path, f"sqlite://{tmp_path}/store/cluster.db", masters=1) as cluster:
        with cluster.connect() as cache:
            values = put_all(cache, [f"k{i}" for i in range(300)])
        holdfast_says("snapshot", "--address", cluster.address)
        (master,) = cluster.masters
        master.kill()
        for suffix in FILES:
            (tmp_path / "store" / f"cluster.db{suffix}").unlink(missing_ok=True)
        cluster.revive()
        wait_for_waiting(cluster)
        said = restore(cluster)
        assert said["from"]["where"] != "memory"
        assert (said["restored_objects"], said["verified_objects"]) == (300, 300)
        cluster.verify(values, set())


def test_a_primary_that_alone_knew_the_last_puts_is_the_one_that_restores_them(etcd: OwnEtcd, tmp_path: Path) -> None:
    """One master, whose own state is all there is: nothing that was acknowledged is dropped."""
    with Cluster(tmp_path, etcd.url("restored"), masters=1) as cluster:
        with cluster.connect() as cache:
            values = put_all(cache, [f"k{i}" for i in range(300)])
        etcd.wipe()
        wait_for_waiting(cluster)
        said = restore(cluster)
        assert said["from"]["where"] == "memory"
        assert (said["restored_objects"], said["verified_objects"]) == (300, 300)
        cluster.verify(values, set())


def test_all_disks_of_the_masters_lost_and_the_log_trimmed(etcd: OwnEtcd, tmp_path: Path) -> None:
    """The store is whole, but its log begins behind the only snapshot that is left: a copy that somebody took."""
    with Cluster(tmp_path, etcd.url("restored"), masters=1) as cluster:
        master = cluster.masters[0]
        with cluster.connect() as cache:
            values = put_all(cache, [f"early{i}" for i in range(200)])
            holdfast_says("snapshot", "--address", master.address)
            copy = tmp_path / "copy.hfs"
            shutil.copy(snapshot_files(master)[-1], copy)
            for number in range(2):
                put_all(cache, [f"late{number}-{i}" for i in range(20)])
                holdfast_says("snapshot", "--address", master.address)
        wait_until(lambda: "the log was trimmed" in master.said(), WAITS_S, "the log is trimmed")
        master.kill()
        shutil.rmtree(master.folder / "data")
        master.start()
        master.wait_until_ready()
        wait_for_waiting(cluster)
        said = restore(cluster, "--from", str(copy), "--yes")
        assert said["restored_objects"] == said["verified_objects"] == 200
        with cluster.connect() as cache:
            assert cache.get_many(list(values)) == values
            assert not cache.exists("late0-0"), "it was put after the snapshot"


def test_the_store_and_the_masters_disks_lost(etcd: OwnEtcd, tmp_path: Path) -> None:
    """What is left: a copy of a snapshot, and the nodes. Memory that was used again since then is dropped, and said."""
    with Cluster(tmp_path, etcd.url("restored"), masters=2, size="16MiB") as cluster:
        cluster.settle()
        master = cluster.primary()
        with cluster.connect() as cache:
            kept = put_all(cache, [f"kept{i}" for i in range(100)], size=20_000)
            reused = put_all(cache, [f"reused{i}" for i in range(300)], size=20_000)
            holdfast_says("snapshot", "--address", master.address)
            copy = tmp_path / "copy.hfs"
            shutil.copy(snapshot_files(master)[-1], copy)
            for key in reused:
                cache.remove(key, force=True)
            # Of 16 MiB 2 are kept and 8 were never used: 10 more lie partly where the removed ones were.
            put_all(cache, [f"later{i}" for i in range(500)], size=20_000)
        for one in cluster.masters:
            one.kill()
            shutil.rmtree(one.folder / "data")
            (one.folder / "data" / "snapshots").mkdir(parents=True)
            shutil.copy(copy, one.folder / "data" / "snapshots" / snapshot_name(copy))
        etcd.wipe()
        for one in cluster.masters:
            one.start()
        for one in cluster.masters:
            one.wait_until_ready()
        wait_for_waiting(cluster)
        said = restore(cluster)
        assert said["restored_objects"] == 400
        assert 0 < said["mismatched_objects"] <= 300
        assert said["verified_objects"] == 400 - said["mismatched_objects"]
        with cluster.connect() as cache:
            assert cache.get_many(list(kept)) == kept
            found = cache.get_many(list(reused))
            assert len(found) == 300 - said["mismatched_objects"]
            assert all(reused[key] == value for key, value in found.items()), "wrong bytes (I2)"
            gone = next(key for key in reused if key not in found)
            with pytest.raises(ObjectNotFound):
                cache.get(gone)
        put_at_last(cluster, "after")


def test_the_newest_sound_snapshot_of_the_shared_place_is_restored(etcd: OwnEtcd, tmp_path: Path) -> None:
    """The store and the master's disk are lost: the command fetches the catalogue from the shared place itself."""
    shared = tmp_path / "shared"
    url = f"file://{shared}"
    with Cluster(tmp_path, etcd.url("restored"), masters=1, snapshots=url, cluster="other") as cluster:
        master = cluster.masters[0]

        def share_snapshot() -> Path:
            before = set(shared.rglob("*.hfs"))
            holdfast_says("snapshot", "--address", master.address)
            (found,) = wait_until(lambda: set(shared.rglob("*.hfs")) - before, WAITS_S, "it is shared")
            return found

        with cluster.connect() as cache:
            values = put_all(cache, [f"k{i}" for i in range(300)])
            sound = share_snapshot()
            put_all(cache, ["late"])
            spoiled = share_snapshot()
        content = bytearray(spoiled.read_bytes())
        content[len(content) // 2] ^= 1
        spoiled.write_bytes(content)
        master.kill()
        shutil.rmtree(master.folder / "data")
        etcd.wipe()
        cluster.revive()
        wait_for_waiting(cluster)
        assert sound.parent.name == "restored", "the cluster's name is the URL's"
        with pytest.raises(AssertionError, match="has no sound snapshot"):
            restore(cluster, "--from", url, "--cluster", "other")
        said = restore(cluster, "--from", url)
        assert said["from"]["where"] == sound.name
        assert said["restored_objects"] == said["verified_objects"] == 300
        cluster.verify(values, {"late"})


def snapshot_name(copy: Path) -> str:
    from holdfast.replication.snapshot_store import file_name
    from holdfast.replication.snapshots import head_of

    head = head_of(copy.read_bytes())
    return file_name(head.log_id, head.batch)


def test_everything_restored_elsewhere_keeps_what_is_on_disks(etcd: OwnEtcd, tmp_path: Path) -> None:
    """New masters, a new store and new nodes, one of which has the disk of an old one."""
    flags = ["--disk", str(tmp_path / "disk"), "--disk-size", "256MiB"]
    with Cluster(tmp_path / "here", etcd.url("restored"), masters=1, nodes=0, **WITH_DISK) as cluster:
        add_node(cluster, "node-1", flags)
        with cluster.connect() as cache:
            values = put_more_than_memory(cache)
            stored, kept = on_disk(cache, values) | in_memory(cache, values), on_disk(cache, values)
        holdfast_says("snapshot", "--address", cluster.masters[0].address)
        copy = tmp_path / "copy.hfs"
        shutil.copy(snapshot_files(cluster.masters[0])[-1], copy)
    etcd.wipe()
    with Cluster(tmp_path / "there", etcd.url("restored"), masters=1, nodes=0, **WITH_DISK) as cluster:
        said = restore(cluster, "--from", str(copy), "--no-wait")
        assert len(kept) <= said["restored_objects"] <= len(stored)
        add_node(cluster, "node-1", flags)
        with cluster.connect() as cache:

            def back() -> bool:
                return cache.get_many(sorted(kept)) == {key: values[key] for key in kept}

            wait_until(back, WAITS_S, "what was on the disk can be read")


def test_files_of_a_restored_history_are_compared_and_spoiled_ones_dropped(etcd: OwnEtcd, tmp_path: Path) -> None:
    """I2, I18: a file counts as restored once its node has read it, and the disk does not stay unverified for ever."""
    with Cluster(tmp_path, etcd.url("restored"), masters=1, nodes=0, **WITH_DISK) as cluster:
        add_node(cluster, "node-1", ["--disk", str(tmp_path / "disk"), "--disk-size", "256MiB"])
        (master,) = cluster.masters
        with cluster.connect() as cache:
            values = put_more_than_memory(cache)
            there = in_memory(cache, values)
            kept = sorted(on_disk(cache, values) - there)
            gone, spoiled, *others = kept
            paths = {key: file_of(cache, key, tmp_path / "disk") for key in (gone, spoiled)}
        etcd.wipe()
        wait_for_waiting(cluster)
        paths[gone].unlink()
        content = bytearray(paths[spoiled].read_bytes())
        content[-100] ^= 1
        paths[spoiled].write_bytes(content)
        said = restore(cluster)
        assert said["restored_objects"] >= len(kept)
        assert said["unverified_nodes"] == [], "the command waits for memory"
        assert said["unverified_disks"] in ([], ["node-1"])
        wait_until(lambda: master.metric("holdfast_unverified_objects") == 0, WAITS_S, "every file was compared")
        assert master.metric('holdfast_restore_dropped_objects{cause="file_lost"}') == 2
        assert master.metric('holdfast_restore_dropped_objects{cause="mismatch"}') == 0
        with cluster.connect(verify=False) as cache:
            assert cache.get_many(kept) == {key: values[key] for key in others}
            assert not cache.exists(spoiled)
            assert "spoiled" in cache.explain(spoiled).reasons[0]
        wait_until(lambda: "all files of the disk were compared" in cluster.nodes[0].said(), 60, "the log says so")


WITH_DISK = {"lease_ttl_ms": 500, "shared_grant_bytes": 1 << 20}


def put_more_than_memory(cache: Cache) -> dict[str, bytes]:
    """40 MiB, of which some go to the disk of a node that lends 32."""
    values: dict[str, bytes] = {}
    for number in range(160):
        values.update(put_all(cache, [f"k{number}"], size=256 << 10))
        if number % 4 == 3:
            wait_until(lambda: cache.status().used_bytes < 30 << 20, WAITS_S, "eviction keeps up")
    wait_until(lambda: len(on_disk(cache, values) - in_memory(cache, values)) >= 10, WAITS_S, "some are on the disk")
    return values


def file_of(cache: Cache, key: str, disk: Path) -> Path:
    (replica,) = cache.stat(key).replicas
    return disk / "objects" / f"{(replica.offset >> 12) % 256:02x}" / f"{replica.offset:x}"


def places_of(cache: Cache, keys: dict[str, bytes], kind: str) -> set[str]:
    found: set[str] = set()
    for key in keys:
        with contextlib.suppress(ObjectNotFound):  # It was evicted altogether.
            if any(replica.kind == kind for replica in cache.stat(key).replicas):
                found.add(key)
    return found


def on_disk(cache: Cache, keys: dict[str, bytes]) -> set[str]:
    return places_of(cache, keys, "DISK")


def in_memory(cache: Cache, keys: dict[str, bytes]) -> set[str]:
    return places_of(cache, keys, "MEMORY")


def add_node(cluster: Cluster, name: str, flags: list[str]) -> None:
    node = Process(
        "node", cluster._folder / name, "--address", cluster.address, "--size", "32MiB", "--name", name, *flags
    )
    cluster.nodes.append(node)
    node.start()
    node.wait_until_ready()


def test_two_histories_are_named_and_none_is_chosen(etcd: OwnEtcd, tmp_path: Path) -> None:
    """I19: the operator says which."""
    with Cluster(tmp_path, etcd.url("restored"), masters=1) as cluster:
        with cluster.connect() as cache:
            put_all(cache, ["old"])
        holdfast_says("snapshot", "--address", cluster.masters[0].address)
        etcd.wipe()
        wait_for_waiting(cluster)
        first = restore(cluster)
        holdfast_says("snapshot", "--address", cluster.masters[0].address)
        etcd.wipe()
        wait_for_waiting(cluster)
        done = prefork.holdfast("restore", "--address", cluster.address, "--json")
        assert json.loads(done.stdout)["error"]["code"] == "ambiguous"
        said = restore(cluster, "--history", first["history"])
        assert said["restored_objects"] == 1


def test_a_hundred_thousand_objects_are_back_in_ten_seconds(etcd: OwnEtcd, tmp_path: Path) -> None:
    """The figure is printed; what is asserted is that none is lost and none is wrong."""
    count = int(os.environ.get("RESTORE_OBJECTS", "20000"))
    with Cluster(tmp_path, etcd.url("restored"), masters=2, size="1GiB") as cluster:
        cluster.settle()
        keys = [f"object/{i:06}" for i in range(count)]
        with cluster.connect(timeout=120) as cache:
            for start in range(0, count, 5_000):
                put_all(cache, keys[start : start + 5_000], size=1_000)
            etcd.wipe()
            wait_for_waiting(cluster)
            began = now_seconds()
            said = restore(cluster)
            ordered = now_seconds()
            for start in range(0, count, 5_000):
                some = keys[start : start + 5_000]
                assert cache.get_many(some) == {key: value_of(key, 1_000) for key in some}
            read = now_seconds()
        assert said["verified_objects"] == count
        print(f"{count:,} objects: {ordered - began:.1f} s for the command, {read - began:.1f} s until all were read")
