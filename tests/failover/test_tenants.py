"""Two tenants with the same keys, and revoked clients, through the death of a primary, a snapshot with a fresh standby,
and a restore (I7, I19, I20): real etcd, masters, node and clients, each with an identity."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.client.cache import Cache
from holdfast.errors import ClientRevoked, HoldfastError, ReplyLost, TicketRefused
from holdfast.instant import now_seconds
from holdfast.messages.requests import Hello, ListSegments, Locate, Located, SegmentList
from holdfast.messages.shapes import SegmentPlace, Ticket
from holdfast.transport.channel import Channel
from holdfast.wire.codec import expect
from tests import prefork
from tests.contract.servers import OwnEtcd
from tests.failover.guarded import GuardedCluster, Keyring
from tests.failover.test_restore import holdfast_says, snapshot_files, wait_for_waiting
from tests.failover.test_tickets import read
from tests.waiting import wait_until

COUNT = 120
QUOTAS = {"red": {"limit_bytes": 20 << 20, "guaranteed_bytes": 8 << 20}, "blue": {"max_objects": 1_000}}


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnEtcd]:
    with OwnEtcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory, etcd: OwnEtcd) -> Iterator[GuardedCluster]:
    folder = tmp_path_factory.mktemp("tenants")
    roles = {"master-1": "master", "master-2": "master", "node-1": "node", "operator": "operator"}
    keyring = Keyring.of(folder / "keys", roles, QUOTAS)
    with GuardedCluster(folder, etcd.url("tenants"), keyring, size="64MiB") as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: GuardedCluster) -> GuardedCluster:
    shared_cluster.heal()
    return shared_cluster


def says(cluster: GuardedCluster, *arguments: str) -> dict[str, Any]:
    return holdfast_says(*arguments, "--token-file", str(cluster.keyring.path("operator")))


def located(cluster: GuardedCluster, name: str, key: str) -> tuple[SegmentPlace, Ticket]:
    """A place and a ticket, as a client of this identity gets them."""
    hello = Hello(0, cluster.keyring.tokens[name], client_key=secrets.token_bytes(16))
    channel = Channel.open(cluster.primary().address, hello, now_seconds() + 30)
    try:
        [ticket] = expect(channel.call(Locate([key], tickets=True), now_seconds() + 30), Located).tickets
        places = expect(channel.call(ListSegments(), now_seconds() + 30), SegmentList).segments
    finally:
        channel.close()
    return next(place for place in places if place.handle == ticket.segment), ticket


def value_of(tenant: str, key: str) -> bytes:
    return f"{tenant}'s {key}/".encode() * 100


def check(cluster: GuardedCluster, caches: dict[str, Cache], more: dict[str, set[str]]) -> None:
    """Each reads its own bytes and lists its own keys; `more` has what only one of them stored."""
    keys = [f"k{number}" for number in range(COUNT)]
    for name, cache in caches.items():
        assert cache.get_many(keys) == {key: value_of(name, key) for key in keys}
        assert set(cache.keys()) == {*keys, *more[name]}
        others = sorted(set().union(*more.values()) - more[name])
        assert not any(cache.exists_many(others))
        assert cache.get(others[0], default=None) is None
    with cluster.connect_as("operator") as operator:
        assert list(operator.keys()) == [], "nothing of theirs is in the default tenant"
        assert not operator.exists(keys[0])
    listed = {one["name"]: one for one in says(cluster, "tenants", "--address", cluster.address)["tenants"]}
    for name, quotas in QUOTAS.items():
        assert {quota: listed[name][quota] for quota in quotas} == quotas
        assert listed[name]["objects"] == COUNT + len(more[name])


def test_two_tenants_with_the_same_keys_through_failover_snapshot_and_restore(
    cluster: GuardedCluster, etcd: OwnEtcd
) -> None:
    says(cluster, "tenants", "set", "red", "--limit", "20MiB", "--guaranteed", "8MiB", "--address", cluster.address)
    says(cluster, "tenants", "set", "blue", "--objects", "1000", "--address", cluster.address)
    more: dict[str, set[str]] = {name: set() for name in QUOTAS}
    with cluster.connect_as("red") as red, cluster.connect_as("blue") as blue:
        caches = {"red": red, "blue": blue}

        def store(key: str) -> None:
            """Each tenant stores one more key, which the other does not have."""
            for name, cache in caches.items():
                assert cache.put(f"{key} of {name}", value_of(name, key))
                more[name].add(f"{key} of {name}")

        for name, cache in caches.items():
            assert cache.put_many({f"k{n}": value_of(name, f"k{n}") for n in range(COUNT)}) == COUNT
        store("before")
        check(cluster, caches, more)
        # kill -9 of the primary.
        cluster.standby()
        killed = cluster.primary()
        killed.kill()
        serving = cluster.primary(but=killed)
        store("after a failover")
        check(cluster, caches, more)
        # A standby that has lost its disk, from a snapshot; then it leads.
        says(cluster, "snapshot", "--address", serving.address)
        assert snapshot_files(serving)
        shutil.rmtree(killed.folder / "data")
        killed.start()
        killed.wait_until_ready()
        cluster.settle()
        cluster.standby()
        serving.kill()
        assert cluster.primary(but=serving) is killed
        store("from a snapshot")
        check(cluster, caches, more)
        cluster.heal()
        # The store is emptied, and the history restored. Both clients hold leases and tickets of the old one.
        place, ticket = located(cluster, "red", "k7")
        assert read(place, ticket) == value_of("red", "k7")
        etcd.wipe()
        wait_for_waiting(cluster)
        said = says(cluster, "restore", "--address", cluster.address, "--timeout", "60")
        assert said["restored_objects"] == 2 * COUNT + sum(map(len, more.values()))
        check(cluster, caches, more)
        with pytest.raises(TicketRefused):
            read(place, ticket)

        def stored() -> bool:
            """Memory is granted again once old writers and old leases are gone."""
            try:
                return all(
                    cache.put("restored", value_of(name, "restored")) or cache.exists("restored")
                    for name, cache in caches.items()
                )
            except HoldfastError:
                return False

        wait_until(stored, 60, "both put into the restored history")
        for name, cache in caches.items():
            more[name].add("restored")
            assert cache.get("restored") == value_of(name, "restored")


def test_no_later_primary_lets_a_revoked_client_in(cluster: GuardedCluster) -> None:
    with cluster.connect_as("red") as gone, cluster.connect_as("blue") as stays:
        for cache, name in ((gone, "red"), (stays, "blue")):
            cache.put("leased", value_of(name, "leased"), upsert=True)
            assert cache.get("leased") == value_of(name, "leased")
        place, ticket = located(cluster, "red", "leased")
        listed = says(cluster, "clients", "--address", cluster.address)["clients"]
        handles = [one["handle"] for one in listed if one["name"] == "red" and one["grants"]]
        ran = prefork.holdfast(
            "clients", "revoke", handles[0],
            "--address", cluster.address, "--token-file", str(cluster.keyring.path("operator")),
        )  # fmt: skip
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout == "1 client revoked: grants and leases ended, connections closed\n"
        with pytest.raises((ClientRevoked, ReplyLost), match="operator has revoked"):
            gone.put("more", b"x")
        with pytest.raises(ClientRevoked, match="operator has revoked"):
            gone.put("more", b"x")
        assert read(place, ticket) == value_of("red", "leased"), "that ticket is another client's"
        cluster.standby()
        for _ in range(2):
            killed = cluster.primary()
            killed.kill()
            cluster.primary(but=killed)
            assert stays.put("after", b"x", upsert=True)
            with pytest.raises(ClientRevoked, match="operator has revoked"):
                gone.put("more", b"x")
            cluster.heal()
        with cluster.connect_as("red") as new:
            assert new.get("leased") == value_of("red", "leased"), "what it stored stays"
            assert not new.exists("more")
            assert json.dumps(handles[0]) not in json.dumps(says(cluster, "clients", "--address", cluster.address))
