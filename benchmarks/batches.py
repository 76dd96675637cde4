"""Many keys in one call: what the array operations of master and client are worth."""

from __future__ import annotations

import os
import statistics

from benchmarks.measure import DURABLE, Row, Scale, interleaved, least_row, rate
from benchmarks.processes import Cluster

BATCH = 512
VALUE = os.urandom(1024)


def run(scale: Scale) -> list[Row]:
    batches = scale.of(16, 2)
    with Cluster("2GiB") as cluster, cluster.connect_warm() as writer, cluster.connect_warm() as reader:

        def names(number: int, batch: int) -> list[str]:
            return [f"batch/{number}/{batch}/{each}" for each in range(BATCH)]

        def put(number: int) -> float:
            given = [dict.fromkeys(names(number, batch), VALUE) for batch in range(batches)]
            todo = iter(given)
            return BATCH * rate(lambda: writer.put_many(next(todo)), batches)

        def get(number: int) -> float:
            todo = iter([names(number, batch) for batch in range(batches)])
            return BATCH * rate(lambda: _all_of(reader.get_many(next(todo))), batches)

        figures = interleaved(scale.rounds, {"put": put, "get": get})
    return [
        least_row(f"put_many, {BATCH} x 1 KiB", statistics.median(figures["put"]), "keys/s", 250_000, DURABLE),
        least_row(f"get_many, {BATCH} x 1 KiB", statistics.median(figures["get"]), "keys/s", 300_000),
    ]


def _all_of(found: dict[str, bytes]) -> None:
    if len(found) != BATCH:
        raise SystemExit(f"{BATCH - len(found)} of {BATCH} objects were not found")
