"""What the log costs a put: nothing if the put does not wait for it, and little more than the log itself if it does.

Puts with durability `memory` are compared to a master without a log. Durable puts are compared to a client that writes
values of the same size straight to the same etcd: one value per put for the sequential client, one value with the
records of 64 puts for 64 coroutines. That client is grpc's own, with one connection and nothing else to do. It is not
the least that Python can do: bytes of HTTP/2 over a plain socket are 1.5 to 1.7 times as fast (docs/performance.md).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

import grpc

import holdfast
from benchmarks.failover import ETCD, SQLITE, coordination_on
from benchmarks.measure import Row, Scale, interleaved, least_row, rate, rate_over, ratio_row
from benchmarks.processes import Cluster, wait_until_mapped
from holdfast.client.async_cache import AsyncCache
from holdfast.client.cache import Cache
from holdfast.coordination.etcd import rpc

VALUE = os.urandom(1024)
COROUTINES = 64
RECORD_BYTES = 150
"""A batch with the record of one put, and its frame: about this long in the log."""
MEMORY = "not waiting for the log"


def run(scale: Scale) -> list[Row]:
    with ExitStack() as stack:
        url = stack.enter_context(coordination_on("etcd"))
        clusters = {
            "none": stack.enter_context(Cluster("1GiB")),
            "sqlite": stack.enter_context(Cluster("1GiB", masters=2, coordination="sqlite")),
            "etcd": stack.enter_context(Cluster("1GiB", masters=2, coordination=url)),
        }
        clients = {name: stack.enter_context(cluster.connect_warm()) for name, cluster in clusters.items()}
        raw = stack.enter_context(RawEtcd(url))
        return [
            *_not_waiting(scale, clients),
            *_sequential(scale, clients, raw),
            *_crowd(scale, clusters, raw),
        ]


def _keys(what: str, number: int, count: int) -> list[str]:
    return [f"{what}/{number}/{each}" for each in range(count)]


def _not_waiting(scale: Scale, clients: dict[str, Cache]) -> list[Row]:
    count = scale.of(2_000, 100)

    def puts(cache: Cache) -> Callable[[int], float]:
        return lambda number: rate_over(
            lambda key: cache.put(key, VALUE, durability="memory"), _keys("memory", number, count)
        )

    figures = interleaved(scale.rounds, {name: puts(cache) for name, cache in clients.items()})
    base = figures["none"]
    return [
        Row(name="put 1 KiB, one sequential client, no log", figure=statistics.median(base), unit="puts/s"),
        *(
            ratio_row(f"{name}: put 1 KiB, durability memory", figures[name], "puts/s", base, "no log", 0.8, MEMORY)
            for name in ("sqlite", "etcd")
        ),
    ]


def _sequential(scale: Scale, clients: dict[str, Cache], raw: RawEtcd) -> list[Row]:
    count = scale.of(500, 50)
    figures = interleaved(
        scale.rounds,
        {
            "raw": lambda _: rate(lambda: raw.put(RECORD_BYTES), count),
            "etcd": lambda number: rate_over(lambda key: clients["etcd"].put(key, VALUE), _keys("one", number, count)),
            "sqlite": lambda number: rate_over(
                lambda key: clients["sqlite"].put(key, VALUE), _keys("one", number, count)
            ),
        },
    )
    raws = figures["raw"]
    return [
        Row(
            name=f"etcd itself: puts of {RECORD_BYTES} bytes, sequential", figure=statistics.median(raws), unit="puts/s"
        ),
        ratio_row("etcd: put 1 KiB, one sequential client", figures["etcd"], "puts/s", raws, "etcd itself", 0.8, ETCD),
        least_row(
            "sqlite: put 1 KiB, one sequential client", statistics.median(figures["sqlite"]), "puts/s", 2_400, SQLITE
        ),
    ]


def _crowd(scale: Scale, clusters: dict[str, Cluster], raw: RawEtcd) -> list[Row]:
    rounds, each, values = scale.rounds, scale.of(40, 5), scale.of(100, 10)
    figures: dict[str, list[float]] = {}

    async def puts(cache: AsyncCache, number: int) -> float:
        async def work(who: int) -> None:
            for key in _keys(f"many/{who}", number, each):
                await cache.put(key, VALUE)

        started = time.perf_counter()
        await asyncio.gather(*(work(who) for who in range(COROUTINES)))
        return COROUTINES * each / (time.perf_counter() - started)

    async def measure() -> None:
        async with (
            holdfast.connect_async(clusters["etcd"].address, timeout=60) as etcd,
            holdfast.connect_async(clusters["sqlite"].address, timeout=60) as sqlite,
        ):
            for cache in (etcd, sqlite):
                await cache.put("warm/many", VALUE)
            await asyncio.to_thread(wait_until_mapped)
            for number in range(rounds + 1):
                batched = COROUTINES * rate(lambda: raw.put(COROUTINES * RECORD_BYTES), values)
                for name, figure in (
                    ("raw", batched),
                    ("etcd", await puts(etcd, number)),
                    ("sqlite", await puts(sqlite, number)),
                ):
                    if number:
                        figures.setdefault(name, []).append(figure)

    asyncio.run(measure())
    raws, at_once = figures["raw"], f"put 1 KiB, {COROUTINES} coroutines at once"
    return [
        Row(
            name=f"etcd itself: values with {COROUTINES} puts each, sequential",
            figure=statistics.median(raws),
            unit="puts/s",
        ),
        ratio_row(f"etcd: {at_once}", figures["etcd"], "puts/s", raws, "etcd itself", 0.8, ETCD),
        least_row(f"sqlite: {at_once}", statistics.median(figures["sqlite"]), "puts/s", None, SQLITE),
    ]


class RawEtcd:
    """A client of etcd that puts values and does nothing else."""

    def __init__(self, url: str) -> None:
        host = url.removeprefix("etcd://").partition("/")[0]
        self._channel = grpc.insecure_channel(host)
        self._put = rpc.stub(self._channel, "KV").Put
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def put(self, size: int) -> None:
        self._put(rpc.PutRequest(key=b"raw/%020d" % next(self._numbers), value=bytes(size)), timeout=30)
