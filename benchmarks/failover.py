"""What the death of a primary costs, and what durability costs while it lives.

A primary is killed with SIGKILL; the outage is the time until the same client's next answer. Promotion is what the new
primary says of itself: from winning the term to serving.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import holdfast
from benchmarks.measure import Row, Scale, least_row, most_row
from benchmarks.processes import Cluster, wait_until_mapped
from holdfast.client.cache import Cache
from tests.contract.servers import start_etcd
from tests.waiting import wait_until

SQLITE = "durable (sqlite, synchronous=FULL)"
ETCD = "durable (etcd, one member)"
PAUSE_S = 8.0
"""Between two takeovers by guess: the second within leader_ttl of the first would wait for silence."""


def run(scale: Scale) -> list[Row]:
    rows: list[Row] = []
    for name, durability in (("sqlite", SQLITE), ("etcd", ETCD)):
        with (
            coordination_on(name) as url,
            Cluster("1GiB", masters=2, coordination=url) as cluster,
            cluster.connect_warm() as cache,
        ):
            rows += _puts(scale, name, durability, cluster, cache)
            fill(cache, 10_000)
            rows += _kills(name, cluster, cache, scale.of(10, 2), "10,000", 1.0)
    return rows


def run_million(scale: Scale) -> list[Row]:
    """Of a million objects: promotion, outage, a fresh standby, bytes of the log."""
    objects = scale.of(1_000_000, 50_000)
    with Cluster("1GiB", masters=2, coordination="sqlite") as cluster, cluster.connect_warm() as cache:
        fill(cache, objects)
        rows = [_log_row(cluster, objects)]
        wait_for_snapshot(cluster, cache)
        rows += _kills("sqlite", cluster, cache, scale.of(3, 1), f"{objects:,}", 1.5)
        promotions = [_status(cluster, name)["promotion_ms"] for name in cluster.masters]
        slowest = max(value for value in promotions if value is not None)
        rows.append(most_row(f"promotion at {objects:,} objects, winning to serving", slowest, "ms", 1_000))
        rows.append(_fresh_standby(cluster, objects))
    return rows


@contextmanager
def coordination_on(name: str) -> Iterator[str]:
    if name == "sqlite":
        yield "sqlite"
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        server = start_etcd(Path(folder))
        try:
            server.wait_until_it_serves()
            yield f"etcd://127.0.0.1:{server.port}/bench"
        finally:
            server.end()


def _status(cluster: Cluster, name: str) -> dict[str, object]:
    with urllib.request.urlopen(f"http://{cluster.masters[name][1]['http']}/api/v1/status", timeout=30) as answer:
        found: dict[str, object] = json.loads(answer.read())
        return found


def fill(cache: Cache, objects: int) -> None:
    for start in range(0, objects, 4096):
        cache.put_many({f"{number:048d}": bytes(64) for number in range(start, min(objects, start + 4096))})


def _puts(scale: Scale, name: str, durability: str, cluster: Cluster, cache: Cache) -> list[Row]:
    value = os.urandom(1024)
    batch_seconds = []
    for number in range(scale.of(60, 5)):
        items = {f"batch/{number}/{each}": value for each in range(512)}
        started = time.perf_counter()
        cache.put_many(items)
        batch_seconds.append(time.perf_counter() - started)
    rows = [
        least_row(
            f"{name}: put_many, 512 x 1 KiB, one client", 512 / statistics.median(batch_seconds), "keys/s",
            100_000 if name == "etcd" else None, durability,
        ),
        _sequential(scale, name, durability, cache, value),
        _concurrent(scale, name, durability, cluster, value),
    ]  # fmt: skip
    cache.remove_all(force=True)
    return rows


def _sequential(scale: Scale, name: str, durability: str, cache: Cache, value: bytes) -> Row:
    seconds = []
    for number in range(scale.of(3_000, 100)):
        started = time.perf_counter()
        cache.put(f"one/{number}", value)
        seconds.append(time.perf_counter() - started)
    target = 2_000 if name == "sqlite" else None
    return least_row(
        f"{name}: put 1 KiB, one sequential client", 1 / statistics.median(seconds), "puts/s", target, durability
    )


def _concurrent(scale: Scale, name: str, durability: str, cluster: Cluster, value: bytes) -> Row:
    each = scale.of(150, 10)

    async def all_of_them() -> float:
        async with holdfast.connect_async(cluster.address, timeout=60) as cache:
            await cache.put("warm", value)
            await asyncio.to_thread(wait_until_mapped)

            async def work(who: int) -> None:
                for number in range(each):
                    await cache.put(f"many/{who}/{number}", value)

            started = time.perf_counter()
            await asyncio.gather(*(work(who) for who in range(64)))
            return time.perf_counter() - started

    rate = 64 * each / asyncio.run(all_of_them())
    target = 8_000 if name == "etcd" else None
    return least_row(f"{name}: put 1 KiB, 64 coroutines at once", rate, "puts/s", target, durability)


def _kills(name: str, cluster: Cluster, cache: Cache, times: int, objects: str, most_seconds: float) -> list[Row]:
    outages = []
    for _ in range(times):
        leader = cache.status().name
        process, _ = cluster.masters[leader]
        started = time.perf_counter()
        process.kill()
        cache.exists("anything", touch=True)  # Which only a master can answer.
        outages.append(time.perf_counter() - started)
        process.wait()
        cluster.start_master(leader)
        wait_until(lambda who=leader: _status(cluster, who)["promotable"], 60, "the old primary is a standby again")
        time.sleep(PAUSE_S if name != "sqlite" else 0.5)
    return [
        most_row(
            f"{name}: kill -9 of the primary at {objects} objects", statistics.median(outages) * 1000, "ms",
            most_seconds * 1000, note=f"{times} kills, until the client's next answer; worst {max(outages):.3f} s",
        )
    ]  # fmt: skip


def _log_row(cluster: Cluster, objects: int) -> Row:
    written = _status(cluster, "master-0")["log_bytes"]
    assert isinstance(written, int)
    return most_row("log bytes an object, 48-byte keys", written / objects, "bytes", 148)


def wait_for_snapshot(cluster: Cluster, cache: Cache) -> None:
    """So that what follows starts from one, as it would in a cluster that has run for a while."""
    folders = [Path(cluster.folder) / name / "snapshots" for name in cluster.masters]
    wait_until(lambda: all(list(folder.glob("*.hfs")) for folder in folders), 60, "every master keeps a snapshot")


def _fresh_standby(cluster: Cluster, objects: int) -> Row:
    started = time.perf_counter()
    cluster.start_master("fresh")
    wait_until(lambda: _status(cluster, "fresh")["promotable"], 60, "the fresh standby has caught up")
    seconds = time.perf_counter() - started
    return most_row(
        f"fresh standby ready at {objects:,} objects", seconds, "s", 5, note="process start and snapshot included"
    )
