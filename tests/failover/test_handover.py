"""Leaving in order, several standbys, and the ways to find the primary: on every backend."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from holdfast.errors import TryAgain
from holdfast.messages.of_masters import HandOver
from holdfast.messages.requests import Done, Failed
from tests.failover.cluster import Cluster, Process, call
from tests.failover.load import Load
from tests.ports import free_ports
from tests.waiting import wait_until


def test_a_handover_under_load_fails_no_request(cluster: Cluster) -> None:
    """I1, I10: the old primary makes durable what it has begun, resigns, and follows."""
    with Load(cluster, "handed over") as load:
        for _ in range(2):
            old, standby = cluster.primary(), cluster.standby()
            with old.channel() as channel:
                answer = call(channel, HandOver())
            assert isinstance(answer, Done), answer
            wait_until(lambda new=standby: new.status().get("role") == "primary", what="the standby leads")
            load.go_on_for(100)
            wait_until(lambda left=old: left.status().get("promotable"), what="the old primary follows")
    assert not load.errors
    print("outage", load.longest_gap_ms(), "ms")
    cluster.verify(load.acked, load.removed)


def test_a_standby_refuses_to_hand_over_what_it_does_not_have(cluster: Cluster) -> None:
    with cluster.standby().channel(looks=True) as channel:
        answer = call(channel, HandOver())
    assert isinstance(answer, Failed)
    assert answer.code == "not_leader"


def test_a_primary_that_is_stopped_in_order_is_replaced_at_once_and_no_client_notices(cluster: Cluster) -> None:
    """I1, I10."""
    with Load(cluster, "stopped") as load:
        old = cluster.primary()
        cluster.standby()
        assert old.stop() == 0
        cluster.primary(but=old)
        load.go_on_for(200)
        old.start()
        old.wait_until_ready()
    assert not load.errors
    print("outage", load.longest_gap_ms(), "ms")
    cluster.verify(load.acked, load.removed)


def test_a_list_of_addresses_may_begin_with_dead_ones(cluster: Cluster) -> None:
    dead = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    with cluster.connect(f"{dead},{cluster.address}") as cache:
        cache.put("dead first", b"x", upsert=True)
        old = cluster.primary()
        cluster.standby()
        old.kill()
        assert cache.get("dead first") == b"x"
        assert cache.put("dead first/after", b"y") is True
    cluster.verify({"dead first": b"x", "dead first/after": b"y"}, set())


def test_one_standby_named_alone_leads_to_the_primary(cluster: Cluster) -> None:
    """`NotLeader` carries a hint."""
    with cluster.connect(cluster.standby().address) as cache:
        assert cache.put("hinted", b"x", upsert=True) is True


def test_a_client_that_asks_coordination_follows_the_leader(cluster: Cluster) -> None:
    with Load(cluster, "looked up", threads=2, address=cluster.url) as load:
        old = cluster.primary()
        cluster.standby()
        old.kill()
        cluster.primary(but=old)
        load.go_on_for(100)
    assert not load.errors
    print("outage", load.longest_gap_ms(), "ms")
    cluster.verify(load.acked, load.removed)


def test_a_cluster_that_has_no_master_is_said_to_have_none(cluster: Cluster) -> None:
    """A misspelt name finds nobody, and never another cluster."""
    name = cluster.url.rpartition("failover-")[2]
    with pytest.raises(TryAgain, match="names no primary"):
        cluster.connect(cluster.url.replace(f"failover-{name}", "failovre"), timeout=2)


def test_two_clusters_in_one_place_do_not_mix(cluster: Cluster, tmp_path: Path) -> None:
    """I3, I7: neither sees the other's objects, and a failover of one does not touch the other."""
    other_url = f"{cluster.url}-other"
    with Cluster(tmp_path, other_url, masters=1) as other, other.connect(other_url) as theirs:
        with cluster.connect(cluster.url) as ours:
            assert ours.put("same key", b"ours", upsert=True)
            assert theirs.put("same key", b"theirs")
            before = other.primary().status()["epoch"]
            old = cluster.primary()
            cluster.standby()
            old.kill()
            assert ours.get("same key") == b"ours"
            assert ours.put("only here", b"x", upsert=True) is True
        assert theirs.get("same key") == b"theirs"
        assert not theirs.exists("only here")
        assert other.primary().status()["epoch"] == before
        other.verify({"same key": b"theirs"}, {"only here"})
    cluster.verify({"same key": b"ours"}, set())


def has_met(standby: Process, leader: Process) -> bool:
    """Is it connected to the leader's port? Only who was can suspect it when the port is refused."""
    port = int(leader.address.rpartition(":")[2])
    connections = psutil.Process(standby.process.pid).net_connections("tcp")
    return any(one.raddr and one.raddr.port == port and one.status == "ESTABLISHED" for one in connections)


def test_of_two_standbys_one_takes_over_and_the_other_at_the_next_death(url: str, tmp_path: Path) -> None:
    """I3, I5: the one that lost the race follows the winner, and suspects it like any other."""
    with Cluster(tmp_path, url, masters=3, leader_ttl_ms=10_000) as cluster, Load(cluster, "three", 2) as load:
        first = cluster.primary()
        wait_until(lambda: sum(bool(one.status().get("promotable")) for one in cluster.masters) == 2)
        first.kill()
        second = cluster.primary(but=first)
        load.go_on_for(20)
        before = len(load.reader_at)
        [other] = [one for one in cluster.masters if one not in (first, second)]
        if not url.startswith("sqlite"):  # There a free lock is proof, and nobody needs to suspect.
            wait_until(lambda: has_met(other, second), what="the one that lost the race has met the winner")
        second.kill()
        third = cluster.primary(but=second)
        assert third not in (first, second)
        wait_until(lambda: len(load.reader_at) > before + 20 or load.errors, 40, "reads and puts go on")
        assert not load.errors
        gap_ms = load.longest_gap_ms()
        print("outage", gap_ms, "ms")
        assert gap_ms < 9_000, "it waited for silence, although the port was refused"
        for dead in (first, second):
            dead.start()
            dead.wait_until_ready()
    assert not load.errors
