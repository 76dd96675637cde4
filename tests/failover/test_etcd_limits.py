"""etcd at its limits: its quota is full, or every answer takes long. Nothing acknowledged is lost, and reads go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import HoldfastError, LogFull, LogFullInDoubt
from tests.contract.servers import start_etcd
from tests.failover.cluster import Cluster
from tests.failover.etcd_quota import fill, make_room
from tests.failover.load import Load
from tests.failover.slow_way import SlowWay
from tests.waiting import wait_until

QUOTA_BYTES = 16 << 20


def test_a_full_quota_stops_puts_and_nothing_else_and_its_end_lets_them_go_on(tmp_path: Path) -> None:
    """I1, I10: puts wait, then fail by name; what was stored is read; no master gives up."""
    with (
        start_etcd(tmp_path / "etcd", "--quota-backend-bytes", str(QUOTA_BYTES)) as etcd,
        Cluster(tmp_path / "cluster", f"etcd://127.0.0.1:{etcd.port}/full") as cluster,
    ):
        with cluster.connect() as cache:
            cache.put("before", b"x" * 1_000)
        primary, epoch = cluster.primary(), cluster.primary().status()["epoch"]
        fill(etcd, QUOTA_BYTES)
        with cluster.connect(timeout=2) as cache:
            with pytest.raises((LogFull, LogFullInDoubt), match=r"has filled its quota.*compact and defragment"):
                for number in range(1_000):
                    cache.put(f"refused/{number}", b"y" * 1_000)
            with pytest.raises(LogFull, match="changed nothing"):
                cache.put("refused/later", b"y")
            with pytest.raises(LogFull, match="has filled its quota"):
                cache.remove("before")
        wait_until(lambda: "has filled its quota" in primary.said(), what="the master names the reason")
        with cluster.connect() as cache:
            assert cache.get("before") == b"x" * 1_000
        make_room(etcd)

        def stored_again() -> bool:
            try:
                with cluster.connect(timeout=5) as cache:
                    return cache.put("after", b"z" * 1_000, upsert=True)
            except HoldfastError:
                return False

        wait_until(stored_again, 60, "puts go on")
        assert cluster.primary().status()["epoch"] == epoch, "it led all the while"
        cluster.verify({"before": b"x" * 1_000, "after": b"z" * 1_000}, set())


def test_a_slow_way_to_etcd_costs_time_and_nothing_else(tmp_path: Path) -> None:
    """I1, I12: 150 ms there and 150 ms back; leadership is kept, a handover and a death lose nothing."""
    with start_etcd(tmp_path / "etcd") as etcd, SlowWay(etcd.port, 0.15) as way:
        url = f"etcd://127.0.0.1:{way.port}/slow"
        with Cluster(tmp_path / "cluster", url, leader_ttl_ms=5_000) as cluster:
            old = cluster.primary()
            cluster.standby()
            # Many at once: each of them waits for the way most of the time.
            with Load(cluster, "slow", threads=12) as load:
                load.go_on_for(60)
                assert cluster.primary() is old
                old.kill()
                load.go_on_for(60)
            assert not load.errors
            cluster.verify(load.acked, load.removed)
