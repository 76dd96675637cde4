"""A real cluster for an engine: masters and nodes as processes of the project's own environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.failover.cluster import Cluster
from tests.waiting import wait_until

LEASE_TTL_MS = 10_000
EMPTY_S = 60.0
"""Leases end after a lease's time, or after the guard of a primary that was promoted meanwhile."""


@contextmanager
def cluster(
    folder: Path, masters: int = 2, nodes: int = 1, size: str = "512MiB", lease_ttl_ms: int = LEASE_TTL_MS
) -> Iterator[Cluster]:
    """Two masters on an SQLite file and a node, with the settings of production."""
    url = f"sqlite://{folder / 'cluster.db'}"
    with Cluster(folder, url, masters, nodes, leader_ttl_ms=5_000, lease_ttl_ms=lease_ttl_ms, size=size) as started:
        started.settle()
        yield started


def kill_primary(running: Cluster) -> None:
    """kill -9; returns when another master leads. The dead one is started again as a standby."""
    dead = running.primary()
    dead.kill()
    running.primary(but=dead)
    dead.start()
    dead.wait_until_ready()


def empty(running: Cluster) -> None:
    """Remove everything; returns when the memory is free again. Force or not, that of objects that were read of late
    is in quarantine until their leases end, and what is stored meanwhile is evicted for want of it."""
    with running.connect() as cache:
        cache.remove_all(force=True)

    def is_free() -> bool:
        status = running.primary().status()
        return bool(status) and status["free_bytes"] == status["capacity_bytes"]

    wait_until(is_free, EMPTY_S, "all memory is free")


def evicted(running: Cluster) -> int:
    """Objects that this primary has evicted."""
    return int(running.primary().status().get("evicted", 0))
