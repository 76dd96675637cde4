"""A real node's own HTTP: its probes and metrics through the life of its session, and who may ask for them."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from holdfast.identity.identities import hash_of
from tests.failover.cluster import SOURCE, Cluster, Process
from tests.waiting import wait_until

SHORT = {"session_lease_ms": 1_500, "session_reply_left_ms": 700, "session_jeopardy_ms": 1_000}
WITH_HTTP = ("--http", "127.0.0.1:0")
CACHED = b"x" * 100_000


def asked(node: Process, path: str, token: str = "") -> tuple[int, str]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"http://{node.http}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def metrics_of(node: Process, token: str = "") -> dict[str, float]:
    """Name with labels -> value."""
    status, text = asked(node, "/metrics", token)
    assert status == 200, text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def readiness(node: Process) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(asked(node, "/readyz")[1])
    return found


def test_probes_and_metrics_follow_the_life_of_the_session(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/c.db"
    with Cluster(tmp_path, url, masters=1, nodes=0, size="16MiB", **SHORT) as cluster:
        cluster.add_node("node-1", *WITH_HTTP)
        [node], [master] = cluster.nodes, cluster.masters
        wait_until(lambda: readiness(node)["ready"], what="the node is ready")
        assert readiness(node) == {"ready": True, "reason": "serving; its session is safe"}
        found = metrics_of(node)
        assert found["holdfast_node_ready"] == 1
        assert found['holdfast_node_session{standing="safe"}'] == 1
        assert found['holdfast_node_session_events_total{event="opened"}'] == 1
        assert found['holdfast_node_lent_bytes{segment="0"}'] == 16 << 20
        wait_until(lambda: metrics_of(node)["holdfast_node_session_renewals_total"] >= 2, what="it is renewed")

        master.kill()
        wait_until(lambda: not readiness(node)["ready"], 30, "the session is lost")
        assert asked(node, "/readyz")[0] == 503
        assert asked(node, "/healthz")[0] == 200, "the process itself lives"
        found = metrics_of(node)
        assert found["holdfast_node_ready"] == 0
        assert found['holdfast_node_session{standing="expired"}'] == 1
        assert found['holdfast_node_session{standing="safe"}'] == 0
        assert found['holdfast_node_session_events_total{event="jeopardy"}'] == 1
        assert found['holdfast_node_session_events_total{event="expired"}'] == 1

        master.start()
        master.wait_until_ready()
        wait_until(lambda: readiness(node)["ready"], 30, "the node has another session")
        found = metrics_of(node)
        assert found['holdfast_node_session_events_total{event="opened"}'] == 2
        assert found["holdfast_node_voided_memory_total"] == 0, "the same history: its memory stays"
        assert node.stop() == 0


def test_bytes_are_counted_by_their_path(tmp_path: Path) -> None:
    with Cluster(tmp_path, f"sqlite://{tmp_path}/c.db", masters=1, nodes=0, size="64MiB") as cluster:
        cluster.add_node("node-1", "--disk", str(tmp_path / "disk"), "--disk-size", "64MiB", *WITH_HTTP)
        [node] = cluster.nodes
        with cluster.connect() as near:
            near.put("near", CACHED)
            assert near.get("near") == CACHED
            found = metrics_of(node)
            assert found['holdfast_node_connections{path="shared"}'] >= 1
            assert found["holdfast_node_writers"] == 1
            assert found['holdfast_node_attached_segments_total{access="write"}'] == 1
            assert found['holdfast_node_tcp_bytes_total{direction="in"}'] == 0, "mapped memory is no TCP"
        with cluster.connect(shared_memory=False) as far:
            far.put("far", CACHED)
            assert far.get("near") == CACHED

            def told() -> bool:
                # The node counts after it has sent.
                return metrics_of(node)['holdfast_node_tcp_bytes_total{direction="out"}'] == len(CACHED)

            wait_until(told, what="the read is counted")
            found = metrics_of(node)
            assert found['holdfast_node_tcp_bytes_total{direction="in"}'] == len(CACHED)
            assert found['holdfast_node_tcp_requests_total{verb="write"}'] == 1
            assert found['holdfast_node_connections{path="tcp"}'] >= 1
        assert found['holdfast_node_disk_bytes{use="free"}'] == 64 << 20
        assert found["process_resident_memory_bytes"] > 1 << 20
        primary = metrics_of(cluster.primary())
        parts = {use: primary[f'holdfast_node_memory_bytes{{node="node-1",use="{use}"}}'] for use in ("used", "free")}
        assert parts["used"] >= 2 * len(CACHED)
        assert (
            sum(value for name, value in primary.items() if name.startswith("holdfast_node_memory_bytes{"))
            == primary["holdfast_capacity_bytes"]
            == 64 << 20
        )


def test_every_name_follows_the_conventions(tmp_path: Path) -> None:
    with Cluster(tmp_path, f"sqlite://{tmp_path}/c.db", masters=1, nodes=0, size="16MiB") as cluster:
        cluster.add_node("node-1", *WITH_HTTP)
        _, text = asked(cluster.nodes[0], "/metrics")
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    assert len(kinds) > 25
    assert "holdfast_build_info" in kinds
    for name, kind in kinds.items():
        assert name.startswith(("holdfast_node_", "holdfast_build_info", "process_"))
        assert name.endswith("_total") == (kind == "counter"), name


def test_metrics_are_for_whom_the_identities_name_and_probes_for_all(tmp_path: Path) -> None:
    listed = tmp_path / "identities.toml"

    def write(reader: str) -> None:
        rows = [("node", "nodes-own"), ("reader", reader)]
        text = "".join(
            f'[[identity]]\nname = "{role}-1"\nroles = ["{role}"]\ntokens = ["{hash_of(token)}"]\n'
            for role, token in rows
        )
        listed.touch(mode=0o600)
        listed.write_text(text)

    write("first")
    identities = ("--identities", str(listed))
    with Cluster(tmp_path, f"sqlite://{tmp_path}/c.db", masters=1, nodes=0, size="16MiB", identities=listed) as cluster:
        cluster.add_node("node-1", "--token", "nodes-own", *identities, *WITH_HTTP)
        [node] = cluster.nodes
        assert asked(node, "/metrics")[0] == 401
        assert asked(node, "/metrics", "wrong")[0] == 401
        assert asked(node, "/metrics", "nodes-own")[0] == 403, "the node's own role reads nothing"
        assert metrics_of(node, "first")["holdfast_node_ready"] == 1
        assert asked(node, "/healthz")[0] == 200
        assert readiness(node) == {"ready": True, "reason": ""}, "strangers are not told why"
        write("second")
        wait_until(lambda: asked(node, "/metrics", "second")[0] == 200, 30, "the file is read again")
        assert asked(node, "/metrics", "first")[0] == 401


def test_a_token_of_the_whole_cluster_opens_the_metrics_too(tmp_path: Path) -> None:
    with Cluster(tmp_path, f"sqlite://{tmp_path}/c.db", masters=1, nodes=0, size="16MiB", token="secret") as cluster:
        cluster.add_node("node-1", "--token", "secret", *WITH_HTTP)
        [node] = cluster.nodes
        assert asked(node, "/metrics")[0] == 401
        assert metrics_of(node, "secret")["holdfast_node_ready"] == 1


def refusal(*flags: str) -> str:
    """What a node says that does not start."""
    common = ["--listen", "127.0.0.1:0", "--address", "127.0.0.1:1", "--size", "1MiB", "--token", "t"]
    command = [sys.executable, "-m", "holdfast", "node", *common, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": SOURCE})
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done.stderr


def test_http_beyond_loopback_needs_protection_and_a_port_of_its_own(tmp_path: Path) -> None:
    """ADR 49."""
    assert "--http 0.0.0.0:0: nothing is encrypted" in refusal("--http", "0.0.0.0:0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"cannot serve HTTP at {place}" in refusal("--http", place, "--socket-dir", str(tmp_path / "sockets"))
