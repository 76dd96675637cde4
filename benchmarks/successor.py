"""What a put costs that a standby vouches for (durability `standby`, ADR 70), beside one that waits for the log in etcd
and one that waits for nothing. Whether such puts survive their primary: `python -m benchmarks.successor --kills 100`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import holdfast
from benchmarks.failover import coordination_on
from benchmarks.measure import Row, Scale, interleaved, rate_over, ratio_row
from benchmarks.processes import Cluster, wait_until_mapped
from holdfast.client.cache import Cache
from tests.failover.cluster import Cluster as Processes
from tests.waiting import wait_until

VALUE = os.urandom(1024)
COROUTINES = 64
WAYS = ("durable", "standby", "memory")
SURVIVES = "survives any one process or machine"
SETTLE_SECONDS = 30.0
WRITERS = 3


def run(scale: Scale) -> list[Row]:
    with coordination_on("etcd") as url, Cluster("1GiB", masters=2, coordination=url) as cluster:
        cache = cluster.connect_warm()
        try:
            wait_for_successor(cache)
            sequential = interleaved(scale.rounds, {way: _sequential(scale, cache, way) for way in WAYS})
            crowd = interleaved(scale.rounds, {way: _crowd(scale, cluster, way) for way in WAYS})
        finally:
            cache.close()
    return [
        *_rows("put 1 KiB, one sequential client", sequential, 5.0),
        *_rows(f"put 1 KiB, {COROUTINES} coroutines at once", crowd, None),
    ]


def wait_for_successor(cache: Cache) -> None:
    """Put until the primary has found one."""
    numbers = iter(range(1_000_000))

    def found() -> bool:
        cache.put(f"warm/{next(numbers)}", VALUE, durability="standby")
        return bool(cache.status().successor)

    wait_until(found, SETTLE_SECONDS, "a standby is named successor")


def _rows(what: str, figures: dict[str, list[float]], at_least: float | None) -> list[Row]:
    base = figures["durable"]
    return [
        Row(name=f"etcd: {what}, durable", figure=statistics.median(base), unit="puts/s"),
        ratio_row(f"etcd: {what}, standby", figures["standby"], "puts/s", base, "durable", at_least or 1.0, SURVIVES),
        Row(name=f"etcd: {what}, memory", figure=statistics.median(figures["memory"]), unit="puts/s"),
    ]


def _sequential(scale: Scale, cache: Cache, way: str) -> Callable[[int], float]:
    count = scale.of(1_000 if way == "durable" else 4_000, 50)
    return lambda number: rate_over(
        lambda key: cache.put(key, VALUE, durability=way), [f"{way}/{number}/{each}" for each in range(count)]
    )


def _crowd(scale: Scale, cluster: Cluster, way: str) -> Callable[[int], float]:
    each = scale.of(60, 10)

    async def puts(number: int) -> float:
        async with holdfast.connect_async(cluster.address, timeout=60) as cache:
            await cache.put(f"warm/{way}/{number}", VALUE, durability=way)
            await asyncio.to_thread(wait_until_mapped)

            async def work(who: int) -> None:
                for one in range(each):
                    await cache.put(f"crowd/{way}/{number}/{who}/{one}", VALUE, durability=way)

            began = time.perf_counter()
            await asyncio.gather(*(work(who) for who in range(COROUTINES)))
            return COROUTINES * each / (time.perf_counter() - began)

    return lambda number: asyncio.run(puts(number))


# Kills.


class Writer:
    """Puts on a successor's word until it is told to stop; what was acknowledged is in `acked`."""

    def __init__(self, cluster: Processes, number: int) -> None:
        self.acked: list[str] = []
        self.error = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, args=(cluster, number))
        self._thread.start()

    def _write(self, cluster: Processes, number: int) -> None:
        try:
            with cluster.connect() as cache:
                while not self._stopping.is_set():
                    key = f"kills/{number}/{len(self.acked)}"
                    assert cache.put(key, key.encode(), durability="standby")
                    self.acked.append(key)
        except Exception as error:  # noqa: BLE001 - Whatever it is, the run must tell.
            self.error = f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)


def kill_primaries(kills: int) -> int:
    """Kill the primary so often under load, each time once it has a successor. Returns how many puts were lost."""
    with (
        tempfile.TemporaryDirectory() as folder,
        coordination_on("etcd") as url,
        Processes(Path(folder), url) as cluster,
    ):
        writers = [Writer(cluster, number) for number in range(WRITERS)]
        try:
            for number in range(kills):
                primary = cluster.primary()
                wait_until(lambda p=primary: p.status().get("successor"), SETTLE_SECONDS, "it has a successor")
                acked = sum(len(writer.acked) for writer in writers)
                wait_until(
                    lambda before=acked: sum(len(writer.acked) for writer in writers) >= before + 50,
                    SETTLE_SECONDS,
                    "puts are acknowledged",
                )
                primary.kill()
                cluster.primary(but=primary)
                primary.start()
                primary.wait_until_ready()
                cluster.standby()
                print(f"kill {number + 1}, {acked:,} puts acknowledged before", flush=True)
        finally:
            for writer in writers:
                writer.stop()
        errors = [writer.error for writer in writers if writer.error]
        assert not errors, errors
        return _lost(cluster, [key for writer in writers for key in writer.acked])


def _lost(cluster: Processes, keys: list[str]) -> int:
    lost = 0
    with cluster.connect() as cache:
        for start in range(0, len(keys), 1_000):
            some = keys[start : start + 1_000]
            found = cache.get_many(some)
            lost += sum(found.get(key) != key.encode() for key in some)
    print(f"{len(keys):,} puts acknowledged, {lost} lost")
    return lost


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.successor", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how often the primary is killed")
    return 1 if kill_primaries(parser.parse_args().kills) else 0


if __name__ == "__main__":
    sys.exit(main())
