"""Replicas: how soon lost ones are made again, what a read pays that met a dead node, how fast a node is drained."""

from __future__ import annotations

import os
import signal
import threading
import time

from benchmarks.baselines import Dialled, ServerProcess, raw_bytes
from benchmarks.measure import Row, Scale, most_row, ratio_row
from benchmarks.processes import Cluster
from holdfast.client.cache import Cache
from holdfast.errors import HoldfastError
from holdfast.messages.requests import ChangeMode
from tests.waiting import wait_until

KIB, MIB = 1 << 10, 1 << 20
DURABLE = "memory:// (one master, no log to survive it)"
SHORT = {"session_lease_ms": 1_000, "session_reply_left_ms": 500, "session_jeopardy_ms": 500}
RAW_BYTES = 16 * MIB
UNLIMITED = {"copy_bytes_per_second": 0}


def run(scale: Scale) -> list[Row]:
    return [*_recovery(scale), _drain(scale)]


def _recovery(scale: Scale) -> list[Row]:
    """Three nodes, two replicas each, one node killed. Its silence alone takes 42 s with the session's own numbers."""
    objects = scale.of(10_000, 500)
    size = "1GiB" if not scale.quick else "128MiB"
    short = (
        {} if not scale.quick else {"session_lease_ms": 1_000, "session_reply_left_ms": 500, "session_jeopardy_ms": 500}
    )
    with Cluster(size, nodes=3, **UNLIMITED, **short) as cluster, cluster.connect(shared_memory=False) as cache:
        value = os.urandom(64 * KIB)
        keys = [f"r/{i}" for i in range(objects)]
        for start in range(0, objects, 500):
            assert cache.put_many(dict.fromkeys(keys[start : start + 500], value), replicas=2) > 0
        stopped_ms = _slowest_beside_a_stopped_node_ms(cluster, keys[:: max(1, objects // 100)], value)
        cluster.nodes[0].kill()
        died = time.perf_counter()
        slowest_ms = _slowest_read_ms(cache, keys[:: max(1, objects // 500)], value)
        gone = wait_until(lambda: _gone(cache), 120, "the dead node is unmounted")
        whole = wait_until(lambda: _whole(cache, keys), 240, "every object has two replicas again")
        return [
            most_row(
                f"{objects:,} x 64 KiB, a node lost: all replicas again", whole - died, "s from its death", 60, DURABLE
            ),
            most_row("of that, after the master gave the node up", whole - gone, "s", 18, DURABLE),
            most_row("slowest read that met the dead node", slowest_ms, "ms", 250, DURABLE),
            most_row("slowest read that met a stopped node", stopped_ms, "ms", 250, DURABLE),
        ]


def _slowest_beside_a_stopped_node_ms(cluster: Cluster, keys: list[str], value: bytes) -> float:
    """It keeps its connections open and says nothing; for less time than its session lasts."""
    with cluster.connect(shared_memory=False) as cache:
        _slowest_read_ms(cache, keys, value)
        cluster.nodes[0].send_signal(signal.SIGSTOP)
        try:
            return _slowest_read_ms(cache, keys, value)
        finally:
            cluster.nodes[0].send_signal(signal.SIGCONT)


def _slowest_read_ms(cache: Cache, keys: list[str], value: bytes) -> float:
    slowest = 0.0
    for key in keys:
        began = time.perf_counter()
        assert cache.get(key) == value
        slowest = max(slowest, time.perf_counter() - began)
    return slowest * 1_000


def _gone(cache: Cache) -> float:
    return 0.0 if any(node.name == "bench-0" for node in cache.nodes().nodes) else time.perf_counter()


def _whole(cache: Cache, keys: list[str]) -> float:
    """When the last of them was seen to have two replicas; the last ones first, as they are made in order."""
    found = time.perf_counter()
    for key in reversed(keys):
        if len(cache.stat(key).replicas) < 2:
            return 0.0
    return found


def _drain(scale: Scale) -> Row:
    total = scale.of(1024, 64)
    size = f"{total * 3 // 2}MiB"
    drained: list[float] = []
    raw: list[float] = []
    with (
        ServerProcess(raw_bytes) as server,
        Dialled(server.port) as client,
        Cluster(size, nodes=2, lease_ttl_ms=500, **UNLIMITED) as cluster,
        cluster.connect() as cache,
    ):
        value = os.urandom(MIB)
        for i in range(total):
            assert cache.put(f"d/{i}", value, prefer=["bench-0"])
        failed, stop = [0], threading.Event()
        reader = threading.Thread(target=_read_on, args=(cluster, total, value, failed, stop))
        reader.start()
        try:
            for node, turn in (("bench-0", 0), ("bench-1", 1)):
                raw.append(_raw_rate(client, total))
                cache.operate(ChangeMode("bench-1" if turn == 0 else "bench-0", "open"))
                began = time.perf_counter()
                cache.operate(ChangeMode(node, "draining"))
                wait_until(lambda node=node: _moved(cache, node, total), 240, "the node is empty")  # type: ignore[misc]
                drained.append(total * MIB / (time.perf_counter() - began) / 1e9)
        finally:
            stop.set()
            reader.join(60)
        assert not failed[0], f"{failed[0]} reads failed while nodes were drained"
    return ratio_row(
        f"drain of {total} MiB under reads, none failed", drained, "GB/s", raw, "raw loopback TCP", 0.3, DURABLE
    )


def _moved(cache: Cache, node: str, total: int) -> bool:
    found = next(one for one in cache.nodes().nodes if one.name == node)
    # What readers' leases keep is moved already, and only waits for them.
    return found.mode == "draining" and found.objects_left <= total // 16


def _raw_rate(client: Dialled, total: int) -> float:
    target = memoryview(bytearray(RAW_BYTES))
    began = time.perf_counter()
    for _ in range(total * MIB // RAW_BYTES):
        client.fetch(target)
    return total * MIB / (time.perf_counter() - began) / 1e9


def _read_on(cluster: Cluster, total: int, value: bytes, failed: list[int], stop: threading.Event) -> None:
    with cluster.connect(shared_memory=False, timeout=10) as cache:
        number = 0
        while not stop.wait(0.02):
            number = (number + 37) % total
            try:
                if cache.get(f"d/{number}") != value:
                    failed[0] += 1
            except HoldfastError:
                failed[0] += 1
