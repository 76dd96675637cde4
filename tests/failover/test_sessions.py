"""Sessions of real nodes and followers through failovers shorter and longer than the jeopardy window."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from holdfast.session import Event, Happening, SessionFollower, Standing
from tests.failover.cluster import Cluster, Process
from tests.failover.relay import Relay
from tests.waiting import wait_until

SHORT = {"session_lease_ms": 1_500, "session_reply_left_ms": 700}
ITEMS = {f"kept/{i}": bytes([i]) * 1_000 for i in range(50)}


def asked(master: Process, what: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"http://{master.http}/api/v1/{what}", timeout=5) as answer:
        found: list[dict[str, Any]] = json.load(answer)[what]
        return found


def kinds(master: Process) -> list[str]:
    return [event["kind"] for event in asked(master, "events")]


def test_a_failover_inside_the_jeopardy_window_costs_no_node_its_segments(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/c.db"
    with Cluster(tmp_path, url, **SHORT, session_jeopardy_ms=60_000) as cluster, cluster.connect() as cache:
        assert cache.put_many(ITEMS) == len(ITEMS)
        [node] = cluster.nodes
        [before] = cache.nodes().nodes
        earlier = Counter(kinds(cluster.primary()))
        for master in cluster.masters:
            master.kill()
        wait_until(lambda: "in jeopardy" in node.said(), 30, "the lease is over and no master is there")
        for master in cluster.masters:
            master.start()
        for master in cluster.masters:
            master.wait_until_ready()
        primary = cluster.primary()
        wait_until(lambda: "safe again" in node.said(), 30, "the session is safe again")
        [after] = cache.nodes().nodes
        assert (after.boot, after.standing) == (before.boot, "safe")
        assert "the session is over" not in node.said()
        # A primary shows the events of its predecessors too: there is none more than before.
        again = Counter(kinds(primary)) - earlier
        assert not {"session_created", "segment_mounted", "segment_unmounted"} & set(again)
        cluster.verify(ITEMS, set())


def test_beyond_the_window_the_node_ends_its_session_itself_and_its_memory_is_its_own_again(tmp_path: Path) -> None:
    """Expiry ends the session, not the memory: nobody unmounted it, for nobody was there to."""
    url = f"sqlite://{tmp_path}/c.db"
    with Cluster(tmp_path, url, masters=1, **SHORT, session_jeopardy_ms=1_000) as cluster, cluster.connect() as cache:
        assert cache.put_many(ITEMS) == len(ITEMS)
        [node], [master] = cluster.nodes, cluster.masters
        [before] = cache.nodes().nodes
        master.kill()
        wait_until(lambda: "the session is over" in node.said(), 30, "the node ends its session")
        master.start()
        master.wait_until_ready()
        primary = cluster.primary()
        wait_until(lambda: "session_created" in kinds(primary), 30, "the node opens another")
        assert cache.get_many(ITEMS) == ITEMS
        assert [node.boot for node in cache.nodes().nodes] == [before.boot]
        assert "segment_unmounted" not in kinds(primary)


def test_a_node_that_was_away_too_long_comes_back_with_new_memory(tmp_path: Path) -> None:
    """I14: the master has unmounted the old."""
    url = f"sqlite://{tmp_path}/c.db"
    with Cluster(tmp_path, url, masters=1, **SHORT, session_jeopardy_ms=1_000) as cluster, cluster.connect() as cache:
        cache.put("k", b"x" * 1_000)
        [node] = cluster.nodes
        [before] = cache.nodes().nodes
        node.pause()
        primary = cluster.primary()
        wait_until(lambda: "session_expired" in kinds(primary), 30, "the master expires the session")
        assert cache.nodes().nodes == []
        node.resume()
        wait_until(lambda: [one for one in cache.nodes().nodes if one.available], 30, "the node is back")
        [after] = cache.nodes().nodes
        assert after.boot != before.boot
        assert cache.get("k", default=None) is None
        assert cache.put("k", b"y" * 1_000)
        assert cache.get("k") == b"y" * 1_000


def test_every_follower_says_that_it_expired_before_the_master_does(tmp_path: Path) -> None:
    """I4, with real clocks and a network that swallows everything."""
    url = f"sqlite://{tmp_path}/c.db"
    with Cluster(tmp_path, url, masters=1, nodes=0, **SHORT, session_jeopardy_ms=1_500) as cluster:
        master = cluster.primary()
        said: dict[str, list[Happening]] = {f"f{i}": [] for i in range(5)}

        def on_event_as(name: str) -> Any:
            def on_event(event: Event) -> None:
                said[name].append(event.kind)

            return on_event

        with Relay(master.address) as relay:
            followers = [SessionFollower(relay.address, name, on_event=on_event_as(name)) for name in said]
            try:
                for follower in followers:
                    follower.start()
                wait_until(lambda: all(Happening.ANSWERED in events for events in said.values()), 30)
                assert {one["name"]: one["standing"] for one in asked(master, "sessions")} == dict.fromkeys(
                    said, "safe"
                )
                relay.stall()

                def expired_at_the_master() -> list[str]:
                    events = asked(master, "events")
                    gone = [event["subject"] for event in events if event["kind"] == "session_expired"]
                    assert all(Happening.EXPIRED in said[name] for name in gone), "the master was first (I4)"
                    return gone if len(gone) == len(said) else []

                wait_until(expired_at_the_master, 30, "the master expires them all")
                assert all(follower.standing is Standing.EXPIRED for follower in followers)
            finally:
                relay.stall()
                for follower in followers:
                    follower.stop()


def test_a_goodbye_is_known_at_once(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/c.db"
    with Cluster(tmp_path, url, masters=1) as cluster, cluster.connect() as cache:
        cache.put("k", b"x")
        [node] = cluster.nodes
        assert node.stop() == 0
        assert kinds(cluster.primary())[-2:] == ["session_closed", "segment_unmounted"]
        assert cache.get("k", default=None) is None
        assert cache.nodes().nodes == []


def test_what_a_node_reports_is_shown(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/c.db"
    with Cluster(tmp_path, url, masters=1, report_interval_ms=100) as cluster:
        with cluster.connect(shared_memory=False) as cache:
            cache.put("k", b"x" * 10_000)
            assert cache.get("k") == b"x" * 10_000
            [figures] = wait_until(
                lambda: [one.figures for one in cache.nodes().nodes if one.figures.get("tcp_read_bytes")], 30
            )
        assert figures["healthy"] == 1
        assert figures["tcp_written_bytes"] == figures["tcp_read_bytes"] == 10_000
        assert figures["lent_bytes"] == 256 << 20
        [shown] = asked(cluster.primary(), "nodes")
        assert shown["figures"]["tcp_reads"] >= 1
        [session] = asked(cluster.primary(), "sessions")
        assert (session["standing"], session["connected"], session["segments"]) == ("safe", True, 1)
