"""A trace of real requests, replayed against each store with the same memory: requests a second, and the hit rate.

A request names the blocks of its prompt, as hashes of prefixes. It is served as a cache of KV blocks serves it: read
the leading blocks that are there, up to the first that is missing, and write the rest. A line of the trace is a JSON
object with `hash_ids`, as the one that Mooncake's authors published has them.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from benchmarks.peer_lines import Latencies, Line
from benchmarks.peer_stores import (
    Holdfast,
    Memcached,
    Mooncake,
    Redis,
    Refused,
    Started,
    Store,
    start_memcached,
    start_mooncake,
    start_redis,
)
from benchmarks.processes import Cluster

BLOCK = os.urandom(16 << 10)
"""A block's bytes are scaled down, and so is the memory: what counts is the share of the blocks that it holds."""
MEGABYTES = 512
STRETCH = 250
"""Requests that one store serves before the next has its turn."""


class Request(msgspec.Struct):
    hash_ids: list[int]


def measure_trace(path: Path, most: int) -> list[Line]:
    with path.open("rb") as file:
        requests = [
            [f"trace/{block}" for block in msgspec.json.decode(line, type=Request).hash_ids]
            for line, _ in zip(file, range(most), strict=False)
        ]
    what = f"replay of {len(requests):,} requests, {len(BLOCK) >> 10} KiB a block, {MEGABYTES} MiB"
    served = Line(what, "req/s")
    hits = Line(f"{what}: blocks that were there", "%")
    refused = Line(f"{what}: requests whose blocks were not all taken", "%", less_is_better=True)
    latencies = Latencies()
    with ExitStack() as opened:
        stores = _stores(opened)
        for first in range(0, len(requests), STRETCH):
            stretch = requests[first : first + STRETCH]
            for store in stores:
                took, found, failed = _replay(store, stretch)
                served.figures.setdefault(store.name, []).append(len(stretch) / sum(took))
                hits.figures.setdefault(store.name, []).append(100 * found / sum(map(len, stretch)))
                refused.figures.setdefault(store.name, []).append(100 * failed / len(stretch))
                latencies.note("request", store.name, 1 + first // STRETCH, took)
    return [served, *latencies.lines("request", what), hits, refused]


def _replay(store: Store, requests: list[list[str]]) -> tuple[list[float], int, int]:
    """How long each request took, how many blocks were there, and how many requests were refused memory."""
    took: list[float] = []
    found = failed = 0
    for keys in requests:
        began = time.perf_counter()
        there = store.leading(keys)
        if there < len(keys):
            try:
                store.put_many(keys[there:], BLOCK)
            except Refused:
                failed += 1
        took.append(time.perf_counter() - began)
        found += there
    return took, found, failed


def _stores(opened: ExitStack) -> list[Store]:
    started = Started(opened)
    redis = started.start("redis", start_redis, megabytes=MEGABYTES)
    memcached = started.start("memcached", start_memcached, megabytes=MEGABYTES, largest="1m")
    master = started.start("mooncake", start_mooncake)
    cluster = opened.enter_context(Cluster(f"{MEGABYTES}MiB"))
    mooncake = Mooncake("Mooncake", f"127.0.0.1:{master.port}", master.process.pid, MEGABYTES << 20)
    opened.callback(mooncake.store.close)
    return [
        Holdfast("holdfast", opened.enter_context(cluster.connect_warm()), cluster.master.pid),
        mooncake,
        Redis(redis.port, redis.process.pid),
        Memcached(memcached.port, memcached.process.pid),
    ]
