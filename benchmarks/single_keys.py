"""One key at a time, beside a 64-byte socket echo: what a round trip costs, and a get that needs none."""

from __future__ import annotations

import os
import statistics
import time

from benchmarks.baselines import Dialled, ServerProcess, echo
from benchmarks.crowd import Crowd
from benchmarks.measure import DURABLE, Row, Scale, interleaved, most_row, rate, rate_over, ratio_row
from benchmarks.processes import Cluster, apart
from holdfast.client.cache import Cache

ECHO = "64-byte socket echo"
VALUE = os.urandom(1024)


def run(scale: Scale) -> list[Row]:
    with Cluster("2GiB") as cluster, ServerProcess(echo) as server:
        with apart([*cluster.pids, server.pid]):
            rows = _alone(scale, cluster, server, "a core each")
        rows += _alone(scale, cluster, server, "placed by the scheduler")
        rows += _four_together(scale, cluster)
    return rows


def _alone(scale: Scale, cluster: Cluster, server: ServerProcess, placed: str) -> list[Row]:
    count = scale.of(1000, 100)
    with Dialled(server.port) as dialled, cluster.connect_warm() as writer, cluster.connect_warm() as reader:
        there = f"there, {placed}"
        writer.put(there, VALUE)

        def cached(_: int) -> float:
            reader.get(there)
            return rate(lambda: reader.get(there), 5 * count)

        def keys(number: int) -> list[str]:
            return [f"{placed}/{number}/{each}" for each in range(count)]

        figures = interleaved(
            scale.rounds,
            {
                "echo": lambda _: rate(dialled.ping, count),
                "exists": lambda _: rate(lambda: writer.exists(there), count),
                "put": lambda number: rate_over(lambda key: writer.put(key, VALUE), keys(number)),
                # Another client than the writer, and each key once: nothing is leased, so every get asks.
                "get": lambda number: rate_over(reader.get, keys(number)),
                "cached": cached,
            },
        )
        cpu_us = _cpu_us(reader, there, 4 * count)
    base = figures["echo"]
    return [
        Row(name=f"echo, 64 bytes; {placed}", figure=statistics.median(base), unit="round trips/s"),
        ratio_row(f"exists, one key; {placed}", figures["exists"], "ops/s", base, ECHO, 0.6),
        ratio_row(f"put 1 KiB; {placed}", figures["put"], "ops/s", base, ECHO, 0.4, DURABLE),
        ratio_row(f"get 1 KiB; {placed}", figures["get"], "ops/s", base, ECHO, 0.5),
        ratio_row(f"get 1 KiB, lease live; {placed}", figures["cached"], "ops/s", base, ECHO, 5),
        most_row(f"get 1 KiB, lease live: CPU; {placed}", cpu_us, "us", 4),
    ]


def _cpu_us(reader: Cache, key: str, count: int) -> float:
    tries = []
    for _ in range(5):
        reader.get(key)
        started = time.process_time()
        for _ in range(count):
            reader.get(key)
        tries.append((time.process_time() - started) / count * 1e6)
    return statistics.median(tries)


def _four_together(scale: Scale, cluster: Cluster) -> list[Row]:
    seconds = 0.05 if scale.quick else 0.4
    with Crowd(4, cluster.address) as crowd:
        figures = interleaved(
            scale.rounds,
            {
                "echo": lambda _: crowd.rate("echo", seconds),
                "exists": lambda _: crowd.rate("exists", seconds),
            },
        )
    return [
        Row(name="four echoes together", figure=statistics.median(figures["echo"]), unit="round trips/s"),
        ratio_row(
            "exists, four client processes",
            figures["exists"],
            "ops/s",
            figures["echo"],
            "four echoes, a server process each",
            0.5,
        ),
    ]
