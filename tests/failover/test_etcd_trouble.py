"""etcd stops answering, is killed, comes late, or takes the leadership away."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast.coordination.etcd import rpc
from holdfast.coordination.etcd.channel import stubs_on
from holdfast.coordination.etcd.term import Keys
from holdfast.errors import HoldfastError
from holdfast.messages.requests import Exists, Failed
from tests import prefork
from tests.contract.servers import OwnEtcd
from tests.failover.cluster import Cluster, Process, call
from tests.failover.load import Load
from tests.failover.relay import Relay
from tests.waiting import wait_until


def cut_off_later(cluster: Cluster, relay: Relay, etcd: OwnEtcd) -> tuple[Process, Process]:
    """The primary, which reaches etcd through the relay, and a standby that does not need it."""
    old = cluster.primary()
    new = cluster.new_master("master-2")
    new.flags = tuple(flag.replace(relay.address, f"127.0.0.1:{etcd.port}") for flag in new.flags)
    cluster.masters.append(new)
    new.start()
    new.wait_until_ready()
    assert cluster.standby() is new
    return old, new


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnEtcd]:
    with OwnEtcd(tmp_path_factory.mktemp("own-etcd")) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def shared(etcd: OwnEtcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("troubled"), etcd.url("troubled"), masters=2) as cluster:
        yield cluster


@pytest.fixture
def troubled(shared: Cluster) -> Cluster:
    shared.heal()
    return shared


def says_yes(master: Process, key: str) -> bool:
    """Does it answer positively, as a primary does?"""
    try:
        with master.channel() as channel:
            return not isinstance(call(channel, Exists([key], touch=True), 2), Failed)
    except HoldfastError:
        return False


def test_nobody_answers_once_etcd_was_silent_for_the_leader_ttl(etcd: OwnEtcd, troubled: Cluster) -> None:
    """I12: and when etcd goes on, so does everything."""
    with troubled.connect() as cache:
        cache.put("outage/k", b"x" * 1_000)
    leader = troubled.primary()
    etcd.server.pause()
    try:
        paused_at = time.monotonic()
        wait_until(lambda: not says_yes(leader, "outage/k"), what="the primary stops answering")
        # Its deadline counts from before a renewal that was sent before the pause.
        wait_until(lambda: time.monotonic() > paused_at + troubled.leader_ttl_s)
        until = time.monotonic() + 2 * troubled.leader_ttl_s

        def asked_for_long() -> bool:
            assert not any(says_yes(master, "outage/k") for master in troubled.masters)
            return time.monotonic() > until

        wait_until(asked_for_long)
    finally:
        etcd.server.resume()
    with troubled.connect() as cache:
        assert cache.put("outage/after", b"y", upsert=True) is True
    troubled.verify({"outage/k": b"x" * 1_000, "outage/after": b"y"}, set())


def shown(master: Process) -> dict[str, Any]:
    """What `holdfast status` says, asked of this master."""
    said = prefork.holdfast("status", "--json", "--address", master.address)
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def test_past_its_deadline_a_primary_calls_itself_a_standby_everywhere(etcd: OwnEtcd, troubled: Cluster) -> None:
    """I12: nobody is led to a master that may answer nothing."""
    leader = troubled.primary()
    assert leader.readiness()[0]
    etcd.server.pause()
    try:
        wait_until(lambda: leader.status()["role"] == "standby", what="its role follows its deadline")
        status = leader.status()
        assert (status["promotable"], status["promotable_reason"]) == (False, "its term is over")
        assert status["leader"] == ""
        assert leader.readiness() == (False, "standby: its term is over")
        assert leader.metric("holdfast_primary") == 0
        found = shown(leader)
        assert found["primary"] is None
        assert [one["role"] for one in found["masters"] if one["address"] == leader.address] == ["standby"]
    finally:
        etcd.server.resume()
    assert troubled.primary().readiness()[0]


def test_a_primary_that_was_stopped_and_is_cut_off_never_calls_itself_primary_again(
    etcd: OwnEtcd, tmp_path: Path
) -> None:
    """I12: it cannot hear of the next one, and its own clock says enough."""
    with (
        Relay(f"127.0.0.1:{etcd.port}") as relay,
        Cluster(tmp_path, f"etcd://{relay.address}/stopped", masters=1) as cluster,
    ):
        old, new = cut_off_later(cluster, relay, etcd)
        old.pause()
        try:
            assert cluster.primary(but=old) is new
            relay.stall()
        finally:
            old.resume()
        resumed_at = time.monotonic()

        def asked_for_long() -> bool:
            status = old.status()
            assert status.get("role", "standby") == "standby", "another one leads"
            return bool(status) and time.monotonic() > resumed_at + 3 * cluster.leader_ttl_s

        wait_until(asked_for_long, 60)
        assert old.readiness() == (False, "standby: its term is over")


def test_a_put_that_waits_at_a_primary_without_its_log_goes_on_at_the_next_one(etcd: OwnEtcd, tmp_path: Path) -> None:
    """I10, I12: the first one never reaches etcd again, and so never hears of the second."""
    with (
        Relay(f"127.0.0.1:{etcd.port}") as relay,
        Cluster(tmp_path, f"etcd://{relay.address}/waiting", masters=1, leader_ttl_ms=5_000) as cluster,
    ):
        old, new = cut_off_later(cluster, relay, etcd)
        with cluster.connect(timeout=120) as cache:
            cache.put("before", b"1")
            relay.stall()
            began = time.monotonic()
            assert cache.put("during", b"2") is True
            assert time.monotonic() - began < 60, "it waited at the first one until its time was over"
            assert old.status()["role"] == "standby"
            assert cluster.primaries() == [new]
            assert cache.get_many(["before", "during"]) == {"before": b"1", "during": b"2"}


def test_clients_wait_through_an_outage_of_etcd_that_is_shorter_than_their_deadline(
    etcd: OwnEtcd, troubled: Cluster
) -> None:
    """I1, I10."""
    with Load(troubled, "waits") as load:
        etcd.server.pause()
        try:
            paused_at = time.monotonic()
            wait_until(lambda: time.monotonic() > paused_at + 2 * troubled.leader_ttl_s)
        finally:
            etcd.server.resume()
        load.go_on_for(100)
    assert not load.errors
    print("outage", load.longest_gap_ms(), "ms")
    troubled.verify(load.acked, load.removed)


def test_a_restart_of_etcd_loses_nothing(etcd: OwnEtcd, troubled: Cluster) -> None:
    """I1, I10: killed and started again with its data."""
    with Load(troubled, "restarted") as load:
        etcd.end()
        etcd.start()
        load.go_on_for(100)
    assert not load.errors
    print("outage", load.longest_gap_ms(), "ms")
    troubled.verify(load.acked, load.removed)


def test_a_primary_whose_lease_was_revoked_steps_down_and_the_cluster_goes_on(etcd: OwnEtcd, troubled: Cluster) -> None:
    """I3, I12."""
    old = troubled.primary()
    before = old.status()["epoch"]
    troubled.standby()
    with Load(troubled, "revoked") as load:
        revoke_leadership(etcd, "troubled")
        wait_until(lambda: any(one.status().get("epoch", 0) > before for one in troubled.primaries()), 30)
        load.go_on_for(100)
    assert not load.errors
    print("outage", load.longest_gap_ms(), "ms")
    troubled.verify(load.acked, load.removed)


def revoke_leadership(etcd: OwnEtcd, cluster: str) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{etcd.port}") as channel:
        stubs = stubs_on(channel)
        found = stubs.kv.Range(rpc.RangeRequest(key=Keys(cluster).leader), timeout=10)
        stubs.lease.LeaseRevoke(rpc.LeaseRevokeRequest(ID=found.kvs[0].lease), timeout=10)


def test_a_master_that_starts_before_etcd_says_so_and_serves_when_it_comes(tmp_path: Path) -> None:
    late = OwnEtcd(tmp_path / "etcd")
    cluster = Cluster(tmp_path / "cluster", late.url("troubled"), masters=1, nodes=0)
    [master] = cluster.masters
    try:
        master.start()
        wait_until(lambda: "coordination does not answer" in master.said(), what="it says what it waits for")
        assert master.alive
        late.start()
        master.wait_until_ready()
        assert cluster.primary() is master
    finally:
        cluster.__exit__()
        late.end()


def test_a_compacted_etcd_is_followed_by_a_standby_that_was_stopped(etcd: OwnEtcd, troubled: Cluster) -> None:
    """I13: revisions are gone, batches are not; whatever the watch says, the log is read again."""
    primary, standby = troubled.primary(), troubled.standby()
    standby.pause()
    try:
        with troubled.connect(primary.address) as cache:
            cache.put_many({f"compacted/{i}": b"c" * 100 for i in range(500)})
        with grpc.insecure_channel(f"127.0.0.1:{etcd.port}") as channel:
            stubs = stubs_on(channel)
            revision = stubs.kv.Range(rpc.RangeRequest(key=b"none"), timeout=10).header.revision
            stubs.kv.Compact(rpc.CompactionRequest(revision=revision, physical=True), timeout=10)
    finally:
        standby.resume()
    troubled.verify({f"compacted/{i}": b"c" * 100 for i in range(500)}, set())
    primary.kill()
    assert troubled.primary(but=primary) is standby
    troubled.verify({f"compacted/{i}": b"c" * 100 for i in range(500)}, set())
