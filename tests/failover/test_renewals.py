"""Renewals between real masters on every backend, and presets in which evictions are in no log."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.client.blocking import Cache
from tests.failover.cluster import Cluster, Process
from tests.waiting import wait_until

VALUE = 32 << 10


def heard(standby: Process) -> int:
    return int(standby.status().get("renewals", 0))


def lease_left(cache: Cache, key: str) -> int:
    found = cache.stat(key)
    assert found is not None
    return found.lease_left_ms


def test_a_standby_hears_of_reads_and_evicts_in_their_order_after_the_failover(url: str, tmp_path: Path) -> None:
    """What was read last before the primary died is evicted last by its successor."""
    with (
        Cluster(tmp_path / "cluster", url, lease_ttl_ms=500, size="8MiB", shared_grant_bytes=1 << 18) as cluster,
        cluster.connect() as cache,
    ):
        keys = [f"block/{i:03d}" for i in range(200)]
        for key in keys:
            assert cache.put(key, key.encode().ljust(VALUE))
        standby = cluster.standby()
        used = keys[:40]
        before = heard(standby)
        cache.get_many(used)
        wait_until(lambda: heard(standby) >= before + len(used), what="the standby has heard of the reads")
        cluster.primary().kill()
        wait_until(lambda: lease_left(cache, keys[-1]) == 0, what="no lease of the old primary can live")
        for i in range(120):
            assert cache.put(f"new/{i:03d}", b"n" * VALUE)
        assert all(cache.exists_many(used)), "the ones in use were spared"
        assert not all(cache.exists_many(keys)), "others had to go"


@pytest.mark.parametrize("preset", ["timer", "promote-only"])
def test_evictions_in_no_log_never_give_wrong_bytes(preset: str, url: str, tmp_path: Path) -> None:
    """I2, I7: far more is put than fits, through a failover; what is found is right, and what was removed is gone."""
    flags = {"lease_ttl_ms": 300, "size": "8MiB", "shared_grant_bytes": 1 << 18, "preset": preset}
    with Cluster(tmp_path / "cluster", url, **flags) as cluster, cluster.connect() as cache:  # type: ignore[arg-type]
        values = {f"k/{i:04d}": f"{i:08d}".encode() * (VALUE // 8) for i in range(500)}
        keys = list(values)
        for number, key in enumerate(keys):
            assert cache.put(key, values[key])
            if number % 3 == 0:
                cache.get(keys[number // 2], default=b"")
            if number == 350:
                cluster.standby()
                for gone in keys[300:320]:
                    cache.remove(gone, force=True)
                cluster.primary().kill()
        found = cache.get_many(keys)
        assert found
        assert [key for key, value in found.items() if value != values[key]] == []
        assert not set(keys[300:320]) & set(found)
        cluster.primary()
