"""Nodes that are away while puts come in: the puts wait for them, and nothing is evicted for want of a node."""

from __future__ import annotations

import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.errors import TryAgain
from tests.failover.cluster import Cluster, Process
from tests.waiting import wait_until

LEASE_MS = 500


def test_a_put_that_lacks_a_node_evicts_nothing(tmp_path: Path) -> None:
    """I1: memory is not what is missing, so taking some from others is no help."""
    items = {f"kept/{i}": b"x" * 10_000 for i in range(500)}
    url = f"sqlite://{tmp_path}/c.db"
    with (
        Cluster(tmp_path, url, nodes=2, size="32MiB", lease_ttl_ms=LEASE_MS) as cluster,
        cluster.connect(timeout=4) as cache,
    ):
        assert cache.put_many(items, replicas=2) == 500
        cluster.nodes[1].kill()
        since = time.monotonic()
        wait_until(lambda: time.monotonic() > since + 2 * LEASE_MS / 1000, what="leases have ended")
        with pytest.raises(TryAgain):
            cache.put("one more", b"y" * 10_000, replicas=2)
        assert cache.exists_many(list(items)) == [True] * 500


def test_a_put_that_waits_for_a_node_goes_on_when_it_is_back(tmp_path: Path) -> None:
    """I10: not only when something is freed. A new primary meets puts before it meets the nodes."""
    with Cluster(tmp_path, f"sqlite://{tmp_path}/c.db", masters=1) as cluster:
        [master], [node] = cluster.masters, cluster.nodes
        master.kill()
        node.pause()
        master.start()
        master.wait_until_ready()
        cluster.primary()
        with cluster.connect(timeout=15) as cache, ThreadPoolExecutor(1) as pool:
            put = pool.submit(cache.put, "patient", b"z" * 100_000)
            try:
                wait_until(lambda: "holdfast_parked_puts 1.0" in metrics_of(master), what="the put waits for room")
            finally:
                node.resume()
            assert put.result(30) is True


def metrics_of(master: Process) -> str:
    with urllib.request.urlopen(f"http://{master.http}/metrics", timeout=5) as answer:
        return str(answer.read().decode())
