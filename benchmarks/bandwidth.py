"""16 MiB objects: by shared memory beside a memory copy of equal footprint, over TCP beside raw loopback."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from benchmarks.baselines import Dialled, Memory, ServerProcess, raw_bytes
from benchmarks.measure import DURABLE, Row, Scale, interleaved, ratio_row
from benchmarks.processes import Cluster, memory_of
from holdfast.client.cache import Cache

BLOCK = 16 << 20
COUNT = 8
"""Objects in a round: 128 MiB, more than the caches hold."""
MEMCPY = "memcpy, one thread, same footprint"
LOOPBACK = "raw loopback TCP"


def run_same_host(scale: Scale) -> list[Row]:
    source, ring = Memory(BLOCK, 1), Memory(BLOCK, COUNT)
    target = Memory(BLOCK, 1)
    with (
        Cluster("2GiB") as cluster,
        cluster.connect_warm() as checked,
        cluster.connect_warm(verify=False) as unchecked,
    ):
        puts = interleaved(
            scale.rounds,
            {
                "memcpy": lambda _: _rate(lambda number: ring.copy_to(number, source)),
                "checksum on": lambda number: _puts(checked, number, source),
                "checksum off": lambda number: _puts(unchecked, number, source),
            },
        )
        for cache, name in ((checked, "on"), (unchecked, "off")):
            for each in range(COUNT):
                cache.put(f"{name}/{each}", source.view)
        gets = interleaved(
            scale.rounds,
            {
                "memcpy": lambda _: _rate(lambda number: target.copy_to(0, ring, number)),
                "checksum on": lambda _: _rate(lambda number: checked.get_into(f"on/{number}", target.view)),
                "checksum off": lambda _: _rate(lambda number: unchecked.get_into(f"off/{number}", target.view)),
            },
        )
        view = _views(scale, checked, statistics.median(gets["memcpy"]))
    rows = []
    for verb, figures, durability in (("put", puts, DURABLE), ("get_into", gets, "")):
        for name, least in (("checksum on", 0.75), ("checksum off", 0.9)):
            label = f"{verb} 16 MiB, same host, {name}"
            rows.append(ratio_row(label, figures[name], "GB/s", figures["memcpy"], MEMCPY, least, durability))
    return [*rows, view]


def _rate(step: Callable[[int], object]) -> float:
    """GB/s of one pass over the blocks."""
    started = time.perf_counter()
    for number in range(COUNT):
        step(number)
    return COUNT * BLOCK / (time.perf_counter() - started) / 1e9


def _puts(cache: Cache, number: int, source: Memory) -> float:
    """New objects every round. Removing them, which is not counted, lends the same memory to the next round."""
    figure = _rate(lambda each: cache.put(f"round/{number}/{each}", source.view))
    for each in range(COUNT):
        cache.remove(f"round/{number}/{each}", force=True)
    return figure


def _views(scale: Scale, cache: Cache, memcpy: float) -> Row:
    """A view of 16 MiB takes no memory of its own and no time that depends on its size."""
    count = scale.of(400, 40)
    with cache.view("on/0") as view:
        assert len(view) == BLOCK
    before = memory_of(field="RssAnon")
    started = time.perf_counter()
    for _ in range(count):
        with cache.view("on/0") as view:
            view[0]
    each_us = (time.perf_counter() - started) / count * 1e6
    grown = max(memory_of(field="RssAnon") - before, 0)
    copy_us = BLOCK / memcpy / 1e3
    return Row(
        name="view 16 MiB, same host",
        figure=each_us,
        unit="us",
        ratio=copy_us / each_us,
        baseline="time of a copy",
        target="copies nothing",
        reached=grown < BLOCK // 2 and each_us < copy_us / 10,
        note=f"own memory grew by {grown >> 10} KiB in {count} views",
    )


def run_tcp(scale: Scale) -> list[Row]:
    source, target = Memory(BLOCK, 1), Memory(BLOCK, 1)
    with (
        Cluster("2GiB") as cluster,
        ServerProcess(raw_bytes) as server,
        Dialled(server.port) as raw,
        cluster.connect(shared_memory=False) as cache,
    ):
        for each in range(COUNT):
            cache.put(f"tcp/{each}", source.view)
        figures = interleaved(
            scale.rounds,
            {
                "raw put": lambda _: _rate(lambda _: raw.send(source.view)),
                "put": lambda number: _puts(cache, number, source),
                "raw get": lambda _: _rate(lambda _: raw.fetch(target.view)),
                "get": lambda _: _rate(lambda number: cache.get_into(f"tcp/{number}", target.view)),
            },
        )
    return [
        ratio_row("put 16 MiB over TCP", figures["put"], "GB/s", figures["raw put"], LOOPBACK, 0.8, DURABLE),
        ratio_row("get_into 16 MiB over TCP", figures["get"], "GB/s", figures["raw get"], LOOPBACK, 0.8),
    ]
