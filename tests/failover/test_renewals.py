"""Renewals between real masters on every backend, and presets in which evictions are in no log."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.client.cache import Cache
from holdfast.instant import now_seconds
from holdfast.settings import PRESETS, PresetName
from tests.failover.cluster import Cluster, Process
from tests.waiting import wait_until

VALUE = 32 << 10
SOFT_PIN_MS = 120_000


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


@pytest.mark.parametrize("preset", PRESETS)
def test_order_and_soft_pins_pass_to_the_next_primary(preset: PresetName, tmp_path: Path) -> None:
    """By last use where the standby is told of reads, by the order of the puts where it is not; and a soft pin has
    neither more time left than it had, nor less (I16)."""
    flags = {"lease_ttl_ms": 500, "size": "8MiB", "shared_grant_bytes": 1 << 18, "preset": preset}
    flags["soft_pin_ttl_ms"] = SOFT_PIN_MS
    url = f"sqlite://{tmp_path}/coordination.db?cluster=order"
    told = PRESETS[preset].lease_sync != "off"
    with Cluster(tmp_path / "cluster", url, **flags) as cluster, cluster.connect() as cache:  # type: ignore[arg-type]
        keys = [f"block/{i:03d}" for i in range(190)]
        put_at = now_seconds()
        for key in ("soft", "soft and read", *keys):
            assert cache.put(key, key.encode().ljust(VALUE), soft_pin=key.startswith("soft"))
        await_all(cluster)
        known_at = now_seconds()
        standby = cluster.standby()
        used, before = [*keys[:40], "soft and read"], heard(standby)
        read_at = now_seconds()
        cache.get_many(used)
        if PRESETS[preset].lease_sync == "batched":
            wait_until(lambda: heard(standby) >= before + len(used), what="the standby has heard of the reads")
        await_all(cluster)
        heard_at = now_seconds()
        cluster.primary().kill()
        for key, since, until in (
            ("soft", put_at, known_at),
            ("soft and read", read_at, heard_at) if told else ("soft and read", put_at, known_at),
        ):
            asked_at = now_seconds()
            stat = cache.stat(key)
            assert stat is not None
            assert SOFT_PIN_MS - 1_000 * (now_seconds() - since) - 2 <= stat.soft_pin_left_ms
            assert stat.soft_pin_left_ms <= SOFT_PIN_MS - 1_000 * (asked_at - until) + 2
        wait_until(lambda: lease_left(cache, keys[-1]) == 0, what="no lease of the old primary can live")
        for i in range(120):
            assert cache.put(f"new/{i:03d}", b"n" * VALUE)
        spared = cache.exists_many(keys[:40])
        assert all(spared) if told else not any(spared)
        assert not all(cache.exists_many(keys[40:])), "others had to go"
        assert all(cache.exists_many(["soft", "soft and read"])), "soft pins go last"


def await_all(cluster: Cluster) -> None:
    """Until the standby has read the log to its end."""

    def agreed() -> bool:
        found = {one.status().get("applied_index") for one in cluster.masters}
        return len(found) == 1 and None not in found

    wait_until(agreed, what="both masters stand at the same record")


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
