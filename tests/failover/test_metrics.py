"""Metrics of real processes: what clients did is in them, and a dead node is missed long before its session expires."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from tests.failover.cluster import Cluster, Process
from tests.waiting import wait_until

SEEN_WITHIN_S = 15.0
"""A session expires after 42 s; the end of a connection is seen at once, but tests run on busy machines."""


def metrics_of(process: Process) -> dict[str, float]:
    """Name with labels -> value."""
    with urllib.request.urlopen(f"http://{process.http}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_a_killed_node_is_missing_from_the_metric_long_before_its_session_expires(tmp_path: Path) -> None:
    with Cluster(tmp_path, f"sqlite://{tmp_path}/c.db", nodes=2) as cluster:
        primary = cluster.primary()
        wait_until(lambda: metrics_of(primary)["holdfast_nodes"] == 2, what="both nodes are counted")
        cluster.nodes[1].kill()
        wait_until(lambda: metrics_of(primary)["holdfast_nodes"] == 1, SEEN_WITHIN_S, "the dead node is missed")
        assert (
            metrics_of(primary)['holdfast_sessions{standing="safe"}']
            + metrics_of(primary)['holdfast_sessions{standing="jeopardy"}']
            == 2
        ), "its session goes on: it may come back"
        standby = next(master for master in cluster.masters if master is not primary)
        assert metrics_of(standby)["holdfast_nodes"] == 0


def test_what_clients_did_is_in_the_primary_s_metrics(tmp_path: Path) -> None:
    with Cluster(tmp_path, f"sqlite://{tmp_path}/c.db") as cluster, cluster.connect() as cache:
        primary = cluster.primary()
        before = metrics_of(primary)
        cache.put("a", b"x" * 5_000)
        cache.put("pinned", b"x" * 5_000, hard_pin=True)
        with cluster.connect() as other:
            assert other.get("a") == b"x" * 5_000
        assert cache.get("absent", default=None) is None
        found = metrics_of(primary)

        def grown(name: str) -> float:
            return found[name] - before.get(name, 0.0)

        assert grown("holdfast_stored_objects_total") == 2
        assert grown("holdfast_stored_bytes_total") == 10_000
        assert grown("holdfast_hits_total") == 1
        assert grown("holdfast_hit_bytes_total") == 5_000
        assert grown("holdfast_misses_total") == 1
        assert grown('holdfast_requests_total{verb="commit_puts"}') == 2
        assert grown('holdfast_request_duration_seconds_count{verb="commit_puts"}') == 2
        assert 0 < grown('holdfast_request_duration_seconds_sum{verb="commit_puts"}') < 60
        assert grown("holdfast_log_append_duration_seconds_count") > 0
        assert grown("holdfast_log_append_bytes_total") > 0
        assert found["holdfast_leased_objects"] >= 1
        assert found["holdfast_leased_bytes"] >= 5_000
        assert found["holdfast_hard_pinned_objects"] == 1
        assert found["holdfast_promotion_duration_seconds_count"] == 1
        assert found["holdfast_loop_lag_seconds_count"] > 0
        assert found["process_resident_memory_bytes"] > 1 << 20
        assert any(name.startswith("holdfast_build_info{") for name in found)


def test_every_name_follows_the_conventions(tmp_path: Path) -> None:
    """https://prometheus.io/docs/practices/naming: base units, counters end in _total, labels in snake case."""
    with Cluster(tmp_path, f"sqlite://{tmp_path}/c.db") as cluster, cluster.connect() as cache:
        cache.put("a", b"x")
        cache.status()
        with urllib.request.urlopen(f"http://{cluster.primary().http}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    assert len(kinds) > 60
    for name, kind in kinds.items():
        assert name.startswith(("holdfast_", "process_"))
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search(r"_(ms|us|milliseconds|kib|mib|kb|mb|percent)(_|$)", name), name
    for verb in re.findall(r'verb="([^"]*)"', text):
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", verb), verb
