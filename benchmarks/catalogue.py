"""One master from empty to a million objects: what each costs, how batches hold up, and the longest pause."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Self

import holdfast
from benchmarks.baselines import ANSWER_WITHIN_S, Dialled, ServerProcess, echo, spawned
from benchmarks.measure import DURABLE, Row, Scale, least_row, most_row, rate, rate_over
from benchmarks.processes import Cluster
from benchmarks.tenants import TenantCluster
from holdfast.client.cache import Cache

BATCH = 4096
ASKED = 512
KEY_BYTES = 48
VALUE = b"v" * 64


def key(number: int) -> str:
    return f"tenant-07/model-large/layer-013/{number:016x}"


@dataclass(frozen=True, slots=True)
class Stage:
    """What was seen when the catalogue had reached a size."""

    objects: int
    puts: float
    exists: float
    exists_many: float
    rss: int
    pause_ms: float
    echo_ms: float


def run(scale: Scale) -> list[Row]:
    assert len(key(0)) == KEY_BYTES
    sizes = [2_000, 10_000, 50_000] if scale.quick else [10_000, 100_000, 1_000_000]
    with Cluster("1GiB") as cluster, ServerProcess(echo) as server, cluster.connect_warm() as cache:
        cache.exists("there")
        empty = cluster.master_rss()
        with Pinger(cluster.address, server.port) as pinger:
            begins = [0, *sizes[:-1]]
            stages = [
                _reach(scale, cluster, cache, pinger, begin, end) for begin, end in zip(begins, sizes, strict=True)
            ]
        started = time.perf_counter()
        removed = cache.remove_all(force=True)
        seconds = time.perf_counter() - started
    if removed != sizes[-1]:
        raise SystemExit(f"{removed:,} objects were removed, not {sizes[-1]:,}")
    worst = max(stages, key=lambda stage: stage.pause_ms)
    note = f"the echo's longest in the same stretch was {worst.echo_ms:.1f} ms"
    return [
        *(row for stage in stages for row in _rows_of(stage, empty)),
        most_row(f"longest pause while growing to {sizes[-1]:,}", worst.pause_ms, "ms", 100, note=note),
        most_row(f"remove_all of {sizes[-1]:,}", seconds, "s", 2),
        _of_a_tenant(sizes[-1]),
    ]


def _of_a_tenant(objects: int) -> Row:
    """The same keys, of a tenant."""
    with TenantCluster("1GiB") as cluster, cluster.connect_warm() as cache:
        empty = cluster.master_rss()
        for at in range(0, objects, BATCH):
            cache.put_many(dict.fromkeys(map(key, range(at, min(at + BATCH, objects))), VALUE))
        each = (cluster.master_rss() - empty) / objects
    return most_row(f"master memory an object of a tenant, at {objects:,} objects", each, "bytes", 290)


def _reach(scale: Scale, cluster: Cluster, cache: Cache, pinger: Pinger, begin: int, end: int) -> Stage:
    """Grow to this many objects under the pinger's eyes, then ask in peace."""
    pinger.start()
    started = time.perf_counter()
    for at in range(begin, end, BATCH):
        cache.put_many(dict.fromkeys(map(key, range(at, min(at + BATCH, end))), VALUE))
    puts = (end - begin) / (time.perf_counter() - started)
    pause_ms, echo_ms = pinger.longest_ms()
    rng = random.Random(end)
    ones = [key(rng.randrange(end)) for _ in range(scale.of(3000, 300))]
    tries = [_exists_many(cache, rng, end) for _ in range(scale.rounds)]
    rss = cluster.master_rss()
    return Stage(end, puts, rate_over(cache.exists, ones), statistics.median(tries), rss, pause_ms, echo_ms)


def _exists_many(cache: Cache, rng: random.Random, objects: int) -> float:
    batches = iter([[key(rng.randrange(objects)) for _ in range(ASKED)] for _ in range(40)])

    def ask() -> None:
        if not all(cache.exists_many(next(batches))):
            raise SystemExit("an object that was put is not there")

    return ASKED * rate(ask, 40)


def _rows_of(stage: Stage, empty: int) -> list[Row]:
    at = f"at {stage.objects:,} objects"
    each = (stage.rss - empty) / stage.objects
    least = {10_000: 1_500_000, 1_000_000: 600_000}.get(stage.objects)
    many = f"exists_many of {ASKED}, random keys, {at}"
    rows = [
        Row(
            name=f"put_many of {BATCH} x 64 B up to {stage.objects:,}",
            figure=stage.puts,
            unit="keys/s",
            durability=DURABLE,
        ),
        Row(name=f"exists, one random key, {at}", figure=stage.exists, unit="ops/s"),
        least_row(many, stage.exists_many, "keys/s", least)
        if least
        else Row(name=many, figure=stage.exists_many, unit="keys/s"),
    ]
    if stage.objects == 1_000_000:
        note = f"{stage.rss / 1e6:.0f} MB, {empty / 1e6:.0f} MB when empty; {KEY_BYTES}-byte keys"
        return [*rows, most_row(f"master memory an object, {at}", each, "bytes", 165, note=note)]
    return [*rows, Row(name=f"master memory an object, {at}", figure=each, unit="bytes")]


class Pinger:
    """A client process that asks all the time and remembers the longest answer, of the master and of an echo."""

    def __init__(self, address: str, echo_port: int) -> None:
        self._pipe, theirs = spawned.Pipe()
        self._process = spawned.Process(target=_ping, args=(theirs, address, echo_port), daemon=True)
        self._process.start()
        self._receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(10)
        self._process.kill()
        self._process.join()

    def start(self) -> None:
        self._pipe.send("start")

    def longest_ms(self) -> tuple[float, float]:
        """Since the start: (of the master, of the echo)."""
        self._pipe.send("stop")
        return self._receive()

    def _receive(self) -> tuple[float, float]:
        if not self._pipe.poll(ANSWER_WITHIN_S):
            raise SystemExit("the pinging process did not answer")
        longest: tuple[float, float] = self._pipe.recv()
        return longest


def _ping(pipe: Connection, address: str, echo_port: int) -> None:
    with holdfast.connect(address, timeout=60) as cache, Dialled(echo_port) as dialled:
        cache.exists("there", touch=True)
        pipe.send((0.0, 0.0))
        while True:
            try:
                pipe.recv()
            except EOFError:
                # The parent has closed its end: there is nothing more to do.
                return
            longest = longest_echo = 0.0
            while not pipe.poll(0.001):
                began = time.perf_counter()
                cache.exists("there", touch=True)  # Which only the master can answer.
                between = time.perf_counter()
                dialled.ping()
                longest = max(longest, between - began)
                longest_echo = max(longest_echo, time.perf_counter() - between)
            pipe.recv()
            pipe.send((longest * 1e3, longest_echo * 1e3))
