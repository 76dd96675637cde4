"""The disk tier with real processes: objects that leave memory, come back, and outlive their node and their master."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import holdfast
from tests.e2e.rig import Rig
from tests.e2e.test_replicas import KIB, MIB, SHORT, node_of, reading, replicas_of
from tests.waiting import wait_until


@contextmanager
def rig_with_disk(folder: Path, masters: int = 1, size: str = "1GiB", **rules: object) -> Iterator[Rig]:
    """One node of 32 MiB with a disk."""
    coordination = "sqlite" if masters > 1 else ""
    # Grants of the size of an object: a put that takes much at once makes room without waiting for the disk.
    more = {"lease_ttl_ms": 500, "shared_grant_bytes": MIB, **SHORT, **rules}
    with Rig("32MiB", nodes=0, masters=masters, coordination=coordination, **more) as rig:
        start(rig, folder, size)
        yield rig


def start(rig: Rig, folder: Path, size: str = "1GiB") -> None:
    rig.add_node("a", "--disk", str(folder / "disk"), "--disk-size", size)
    with rig.connect() as cache:
        wait_until(lambda: node_of(cache, "a").disk == "mounted", what="the disk is mounted")


def put_slowly(cache: holdfast.Cache, count: int, prefix: str = "k") -> dict[str, bytes]:
    """More than the memory holds, with the disk keeping up."""
    items = {f"{prefix}{i:04}": os.urandom(256 * KIB) for i in range(count)}
    for number, (key, data) in enumerate(items.items()):
        assert cache.put(key, data)
        if number % 4 == 3:
            wait_until(lambda: cache.status().used_bytes < 30 * MIB, what="eviction keeps up")
    return items


def on_disk(cache: holdfast.Cache, items: dict[str, bytes]) -> list[str]:
    return [key for key in items if cache.exists(key) and replicas_of(cache, key) == [("DISK", "a")]]


def in_both(cache: holdfast.Cache, items: dict[str, bytes]) -> list[str]:
    return [key for key in items if {kind for kind, _ in replicas_of(cache, key)} == {"MEMORY", "DISK"}]


def test_what_leaves_memory_is_read_from_disk_and_comes_back_when_read_twice(tmp_path: Path) -> None:
    with rig_with_disk(tmp_path) as rig, rig.connect() as cache:
        items = put_slowly(cache, 240)
        found = cache.get_many(items)
        assert all(found[key] == items[key] for key in found)
        assert len(found) > 140, "the disk holds what memory could not: that is 128 at most"
        first = on_disk(cache, items)[0]
        wait_until(
            lambda: cache.get(first) == items[first] and ("MEMORY", "a") in replicas_of(cache, first),
            what="it is brought back to memory",
        )
        with rig.connect(shared_memory=False) as remote:
            second = on_disk(cache, items)[0]
            assert remote.get(second) == items[second]
            with remote.view(second) as view:
                assert bytes(view) == items[second]


def test_under_a_storm_of_puts_that_need_room_at_once_nothing_is_lost(tmp_path: Path) -> None:
    """Grants of 2 MiB and a watermark that eviction in the background never reaches: every put makes its own room. The
    disk has the time that it needs, and no more."""
    more = {"shared_grant_bytes": 2 * MIB, "high_watermark": 0.99, "eviction_margin": 0.02, "offload_ahead": 0.25}
    with rig_with_disk(tmp_path, **more) as rig, rig.connect() as cache:
        items: dict[str, bytes] = {}
        ahead = 0
        for batch in range(40):
            some = {f"k{batch:02}/{i}": os.urandom(256 * KIB) for i in range(8)}
            assert cache.put_many(some) == len(some)
            items.update(some)
            if len(items) * 256 * KIB > 20 * MIB:
                # The oldest that are still in memory are on disk as well: as many as the next batch drives out.
                wait_until(lambda: len(in_both(cache, items)) >= 12, what="the disk has caught up")
                ahead += 1
        assert ahead > 20
        assert cache.get_many(items) == items
        assert len(on_disk(cache, items)) > 150, "memory holds 128 at most"


def test_a_disk_outlives_its_nodes_restart_and_a_removed_object_does_not_return(tmp_path: Path) -> None:
    """I7: a file is adopted only if the log still holds that object on that disk."""
    with rig_with_disk(tmp_path) as rig, rig.connect() as cache:
        items = put_slowly(cache, 200)
        kept = on_disk(cache, items)
        assert len(kept) > 40
        rig.kill(rig.nodes[0])
        wait_until(lambda: not cache.exists(kept[0]), what="the node is given up, its disk away")
        assert cache.get(kept[0], default=None) is None
        assert cache.remove(kept[1]) == 1
        files = sum(len(names) for _, _, names in os.walk(tmp_path / "disk" / "objects"))
        start(rig, tmp_path)
        assert cache.get_many(kept[2:]) == {key: items[key] for key in kept[2:]}
        assert not cache.exists(kept[1])
        wait_until(
            lambda: sum(len(names) for _, _, names in os.walk(tmp_path / "disk" / "objects")) < files,
            what="the removed object's file is deleted",
        )


def test_a_disk_outlives_a_failover_and_the_death_of_all(tmp_path: Path) -> None:
    with rig_with_disk(tmp_path, masters=2) as rig, rig.connect() as cache:
        items = put_slowly(cache, 200)
        kept = on_disk(cache, items)
        with reading(rig, {key: items[key] for key in kept[:10]}):
            rig.kill(rig.masters[cache.status().name][0])
            assert cache.get_many(kept) == {key: items[key] for key in kept}
        rig.kill(rig.nodes[0])
        wait_until(lambda: not cache.exists(kept[0]), deadline_s=60, what="the disk is away")
        start(rig, tmp_path)
        assert cache.get_many(kept) == {key: items[key] for key in kept}


def test_a_full_file_system_disables_the_tier_and_memory_goes_on(tmp_path: Path) -> None:
    """A quota stands in for a full disk: files may not grow beyond it."""
    with rig_with_disk(tmp_path) as rig, rig.connect() as cache:
        limit = 128 * KIB
        resource.prlimit(rig.nodes[0].pid, resource.RLIMIT_FSIZE, (limit, limit))
        items = {f"k{i:04}": os.urandom(256 * KIB) for i in range(200)}
        for key, data in items.items():
            assert cache.put(key, data), "memory goes on"
        wait_until(lambda: "could not be written" in node_of(cache, "a").disk, what="the reason is said")
        found = cache.get_many(items)
        assert found
        assert all(found[key] == items[key] for key in found)
        assert rig.nodes[0].poll() is None


def test_a_node_that_says_goodbye_keeps_its_disk_for_its_return(tmp_path: Path) -> None:
    with rig_with_disk(tmp_path) as rig, rig.connect() as cache:
        items = put_slowly(cache, 200)
        kept = on_disk(cache, items)
        rig.nodes[0].send_signal(signal.SIGTERM)
        rig.nodes[0].wait(30)
        wait_until(lambda: not cache.exists(kept[0]), what="the disk is away")
        start(rig, tmp_path)
        assert cache.get_many(kept) == {key: items[key] for key in kept}
