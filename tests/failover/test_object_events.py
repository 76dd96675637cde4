"""A subscriber that knows of object events alone holds the keys that are stored, through three failovers."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from examples.object_events import StoredKeys
from tests.failover.cluster import Cluster, Process
from tests.ports import free_ports
from tests.waiting import wait_until

KEYS = 200


class PublishingCluster(Cluster):
    """Each master has ports of its own for its events, which it has again when it is started again."""

    def new_master(self, name: str) -> Process:
        events, replay = free_ports(2)
        process = super().new_master(name)
        process.flags += ("--events", f"127.0.0.1:{events}", "--events-replay", f"127.0.0.1:{replay}")
        return process


def endpoints(cluster: Cluster, name: str) -> list[str]:
    return [json.loads(master.ready_file.read_text())[name] for master in cluster.masters]


def catch_up(stored: StoredKeys, wanted: set[str]) -> None:
    def caught_up() -> bool:
        while stored.poll(50):
            pass
        return stored.keys == wanted

    wait_until(caught_up, 60, "the subscriber has the keys that are stored")


def test_a_subscriber_rebuilds_the_keys_through_three_failovers(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path / 'cluster.db'}"
    with PublishingCluster(tmp_path, url, masters=3, size="32MiB") as cluster, cluster.connect() as cache:
        cluster.settle()
        stored = StoredKeys(cache, endpoints(cluster, "events"), endpoints(cluster, "events_replay"))
        try:
            # What came before the subscriber is listed when its first message comes.
            cache.put("first", b"x")
            wanted = {"first"}
            wait_until(lambda: cache.put("hello", b"x", upsert=True) and stored.poll(100), what="a first message")
            wanted.add("hello")
            catch_up(stored, wanted)
            for failover in range(3):
                dead = cluster.primary()
                cluster.standby()
                some = {f"{failover}/{number}": bytes(1_000) for number in range(KEYS)}
                cache.put_many(some)
                # Killed at once: its last messages may never have left it.
                dead.kill()
                cluster.primary(but=dead)
                wanted |= some.keys()
                gone = sorted(some)[: KEYS // 2]
                cache.remove_many(gone, force=True)
                wanted -= set(gone)
                catch_up(stored, wanted)
                dead.start()
                dead.wait_until_ready()
            assert stored.keys == set(cache.keys())
            assert stored.listings == 1, "only the first: nothing was missed"
            assert "holdfast_object_events_number" in metrics(cluster)
        finally:
            stored.close()


def metrics(cluster: Cluster) -> str:
    with urllib.request.urlopen(f"http://{cluster.primary().http}/metrics", timeout=10) as answer:
        return str(answer.read().decode())
