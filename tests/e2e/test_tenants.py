"""Tenants of a real cluster: namespaces, the ways to their bytes, and every quota, by the command line, REST and
metrics (I20, ADR 50)."""

from __future__ import annotations

import json
import os
import secrets
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.cli.cluster.masters import ask_one
from holdfast.client.cache import Cache
from holdfast.errors import HoldfastError, OverCommitted, TenantBusy, TenantFull, TicketRefused
from holdfast.instant import now_seconds
from holdfast.messages.of_nodes import AttachSegment
from holdfast.messages.of_tenants import ChangeTenant, ListTenants, TenantInfo, TenantList
from holdfast.messages.requests import (
    Exists,
    Failed,
    Hello,
    ListSegments,
    Locate,
    Located,
    Presence,
    RenewLeases,
    SegmentList,
)
from holdfast.messages.rows import SeenRow
from holdfast.messages.shapes import MappingRight
from holdfast.transport.attach import NodeLink
from holdfast.transport.channel import Channel
from holdfast.wire.codec import expect, raised
from tests import prefork
from tests.failover.guarded import GuardedCluster, Keyring
from tests.waiting import wait_until

MIB = 1 << 20
TENANTS = ("red", "blue", "busy", "capped", "small", "kept", "stormy", "greedy")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedCluster]:
    folder = tmp_path_factory.mktemp("tenants")
    roles = {"master-1": "master", "node-1": "node", "operator": "operator", "plain": "writer"}
    keyring = Keyring.of(folder / "keys", roles, TENANTS)
    keyring.add("mapper", "writer", tenant="red", shared_memory=True)
    keyring.add("small-boss", "operator", tenant="small")
    url = f"sqlite://{folder}/coordination.db?cluster=tenants"
    with GuardedCluster(folder, url, keyring, masters=1, size="64MiB") as cluster:
        cluster.settle()
        yield cluster


def tenants(cluster: GuardedCluster, *arguments: str) -> list[dict[str, Any]]:
    ran = holdfast(cluster, "tenants", *arguments, "--json")
    assert ran[0] == 0, ran[1]
    found: list[dict[str, Any]] = json.loads(ran[1]).get("tenants", [])
    return found


def holdfast(cluster: GuardedCluster, *arguments: str, name: str = "operator") -> tuple[int, str]:
    token = str(cluster.keyring.path(name))
    ran = prefork.holdfast(*arguments, "--address", cluster.address, "--token-file", token)
    return ran.returncode, ran.stdout + ran.stderr


def change(cluster: GuardedCluster, name: str, **quotas: float | None) -> None:
    """Without the command line, which takes a second: that has a test of its own."""
    ask_one(
        cluster.masters[0].address, cluster.keyring.tokens["operator"], ChangeTenant(name, quotas), TenantList, soon()
    )


def tenant(cluster: GuardedCluster, name: str) -> TenantInfo:
    token = cluster.keyring.tokens["operator"]
    found = ask_one(cluster.masters[0].address, token, ListTenants(), TenantList, soon())
    return next(one for one in found.tenants if one.name == name)


def rest(cluster: GuardedCluster, method: str, path: str, body: object = None, name: str = "operator") -> Any:
    """(status, answer)"""
    request = urllib.request.Request(
        f"http://{cluster.masters[0].http}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {cluster.keyring.tokens[name]}", "Content-Type": "application/json"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read().decode()
            return answer.status, json.loads(text) if path.startswith("/api") else text
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.loads(refused.read())


@contextmanager
def channel_of(cluster: GuardedCluster, name: str) -> Iterator[Channel]:
    """A raw connection of this identity."""
    hello = Hello(0, cluster.keyring.tokens[name], client_key=secrets.token_bytes(16))
    channel = Channel.open(cluster.masters[0].address, hello, soon())
    try:
        yield channel
    finally:
        channel.close()


def soon() -> float:
    return now_seconds() + 30


def put_all(cache: Cache, count: int, size: int = MIB, **options: Any) -> list[str]:
    keys = [f"k{number:03}" for number in range(count)]
    for key in keys:
        assert cache.put(key, bytes(size), **options)
    return keys


def test_tenants_with_the_same_key_neither_see_nor_touch_each_others_objects(cluster: GuardedCluster) -> None:
    names = ("red", "blue", "plain")
    caches = {name: cluster.connect_as(name) for name in names}
    for name, cache in caches.items():
        assert cache.put("same", f"of {name}".encode())
        assert cache.put(f"only {name}", b"x")
    for name, cache in caches.items():
        assert cache.get("same") == f"of {name}".encode()
        assert set(cache.keys()) == {"same", f"only {name}"}
        assert cache.exists_many([f"only {other}" for other in names]) == [other == name for other in names]
    caches["red"].close()
    with cluster.connect_as("red") as fresh:
        wait_until(lambda: fresh.remove_matching(".*") + len(list(fresh.keys())) == 0, what="red's leases have ended")
        assert list(fresh.keys()) == []
    for name in names[1:]:
        with caches[name] as cache:
            assert cache.get("same") == f"of {name}".encode(), "its own pattern removed nothing of others"


def test_a_tenant_that_may_not_map_reads_and_writes_over_the_socket(cluster: GuardedCluster) -> None:
    """ADR 48: end to end, with views that copy and say so."""
    data = os.urandom(300_000)
    with cluster.connect_as("red") as red, cluster.connect_as("mapper") as mapper:
        assert red.put("bytes", data)
        for cache, copies in ((red, True), (mapper, False)):
            assert cache.get("bytes") == data
            block = cache.view("bytes")
            with block as view:
                assert view == data
                assert block.copied is copies
                view.release()
            assert cache.put(f"by {copies}", data[:1_000])
            assert cache.get(f"by {copies}") == data[:1_000]
    for name, may_map in (("red", False), ("mapper", True)):
        with channel_of(cluster, name) as channel:
            segments = expect(channel.call(ListSegments(attach=MappingRight.WRITE), soon()), SegmentList).segments
        link = NodeLink.open(segments[0].socket_path, soon())
        try:
            if may_map:
                link.attach(AttachSegment(segments[0].name, write=True, ticket=segments[0].attach), soon())
            else:
                assert segments[0].attach is None
                with pytest.raises(TicketRefused):
                    link.attach(AttachSegment(segments[0].name), soon())
        finally:
            link.close()


def test_requests_beyond_the_rate_wait_and_those_that_keep_leases_alive_never_do(cluster: GuardedCluster) -> None:
    change(cluster, "busy", requests_per_second=200)
    with cluster.connect_as("busy") as cache, channel_of(cluster, "busy") as channel:
        assert cache.put("k", b"x")
        located = expect(channel.call(Locate(["k"]), soon()), Located)
        oid, segment, offset = memoryview(located.rows).cast("Q")[:3]
        sent = [channel.begin(Exists(["k"]), soon()) for _ in range(500)]
        refused = [raised(reply) for reply in (one.reply() for one in sent) if isinstance(reply, Failed)]
        assert refused
        assert all(isinstance(error, TenantBusy) and 0 < error.retry_after_ms <= 1_000 for error in refused)
        keeping = [channel.begin(RenewLeases(SeenRow.pack(oid, segment, offset)), soon()) for _ in range(100)]
        assert all(isinstance(one.reply(), Presence) for one in keeping)
        assert all(cache.exists("k") for _ in range(220)), "the client waits, and asks again"
        assert tenant(cluster, "busy").refused >= len(refused)
    change(cluster, "busy", requests_per_second=None)


def test_one_client_more_than_allowed_waits_until_another_leaves(cluster: GuardedCluster) -> None:
    change(cluster, "capped", max_clients=1)
    first = cluster.connect_as("capped")
    with pytest.raises(TenantBusy, match="it may have 1") as refused:
        cluster.connect_as("capped", timeout=0.5)
    assert refused.value.retry_after_ms > 0
    came: list[Cache | HoldfastError] = []

    def come() -> None:
        try:
            came.append(cluster.connect_as("capped"))
        except HoldfastError as error:
            came.append(error)

    waiting = threading.Thread(target=come)
    waiting.start()
    first.close()
    waiting.join(60)
    [second] = came
    assert isinstance(second, Cache)
    with second:
        assert second.put("k", b"x")
        assert tenant(cluster, "capped").clients == 1


def test_at_its_limit_a_tenant_evicts_its_own_and_is_refused_where_all_is_pinned(cluster: GuardedCluster) -> None:
    """I20: nothing that was acknowledged is thrown away for a put that is refused."""
    change(cluster, "small", limit_bytes=4 * MIB)
    with cluster.connect_as("small") as small, cluster.connect_as("blue") as other:
        other.put("theirs", bytes(MIB), upsert=True)
        keys = put_all(small, 9)
        assert keys[-1] in set(small.keys()) < set(keys)
        assert tenant(cluster, "small").used_bytes <= 4 * MIB
        assert tenant(cluster, "small").evicted >= 5
        for number in range(4):
            assert small.put(f"pinned {number}", bytes(MIB), hard_pin=True)
        with pytest.raises(TenantFull, match=r"holds 4,194,304 bytes of 4,194,304, .* adds 1,048,576, where 0 of"):
            small.put("one more", bytes(MIB))
        assert set(small.keys()) == {f"pinned {number}" for number in range(4)}
        assert tenant(cluster, "small").pinned_bytes == 4 * MIB
        assert len(other.get("theirs")) == MIB
    with cluster.connect_as("small-boss") as boss:
        assert boss.remove_all(force=True) == 4


def test_a_storm_of_puts_by_others_evicts_nothing_that_is_guaranteed(cluster: GuardedCluster) -> None:
    """I20"""
    change(cluster, "kept", guaranteed_bytes=16 * MIB)
    with pytest.raises(OverCommitted, match="16,777,216 guaranteed to others"):
        change(cluster, "stormy", guaranteed_bytes=60 * MIB)
    with cluster.connect_as("kept") as kept, cluster.connect_as("stormy") as stormy:
        keys = put_all(kept, 15)
        storm = put_all(stormy, 150)
        assert kept.exists_many(keys) == [True] * 15
        assert sum(stormy.exists_many(storm)) < 60
        assert [len(data) for data in kept.get_many(keys).values()] == [MIB] * 15
        stormy.remove_all()
        wait_until(lambda: kept.remove_all() + len(list(kept.keys())) == 0, what="its own leases are forgotten")
    change(cluster, "kept", guaranteed_bytes=None)


def test_who_locates_everything_all_the_time_costs_nobody_else_a_put(cluster: GuardedCluster) -> None:
    with cluster.connect_as("greedy") as greedy, cluster.connect_as("blue") as blue:
        keys = put_all(greedy, 70)
        over, under_way, rounds = threading.Event(), threading.Event(), 0
        with channel_of(cluster, "greedy") as channel:

            def locate() -> None:
                nonlocal rounds
                while not over.wait(0.3):
                    expect(channel.call(Locate(keys), soon()), Located)
                    rounds += 1
                    if rounds == 2:
                        under_way.set()

            reader = threading.Thread(target=locate)
            expect(channel.call(Locate(keys), soon()), Located)
            leased = tenant(cluster, "greedy").leased_bytes
            assert 0 < leased <= 0.8 * 64 * MIB
            reader.start()
            try:
                put_all(blue, 100, upsert=True)
                assert under_way.wait(60)
                put_all(blue, 100, upsert=True)
            finally:
                over.set()
                reader.join(60)
        # Beyond its share it still reads, by copies.
        there = [key for key, found in zip(keys, greedy.exists_many(keys), strict=True) if found]
        assert len(greedy.get(there[-1])) == MIB


def test_quotas_by_the_command_line(cluster: GuardedCluster) -> None:
    [changed] = tenants(cluster, "set", "new one", "--limit", "10MiB", "--objects", "5", "--lease-share", "0.5")
    assert (changed["limit_bytes"], changed["max_objects"], changed["lease_share"]) == (10 * MIB, 5, 0.5)
    [changed] = tenants(cluster, "set", "new one", "--limit", "default", "--hard-pin-share", "0.25")
    assert (changed["limit_bytes"], changed["max_objects"], changed["hard_pin_share"]) == (0, 5, 0.25)
    assert tenant(cluster, "new one").max_objects == 5
    code, table = holdfast(cluster, "tenants")
    assert code == 0
    assert {"NAME", "GUARANTEED", "REQUESTS/S", "default", "red"} <= set(table.split())
    for wrong in (["--limit", "much"], ["--lease-share", "2"], ["--objects", "-1"]):
        code, text = holdfast(cluster, "tenants", "set", "new one", *wrong)
        assert code != 0
        assert "nothing was changed" in text
    code, text = holdfast(cluster, "tenants", "set", "red", "--objects", "5", name="plain")
    assert code != 0
    assert "needs the role operator" in text
    assert holdfast(cluster, "tenants", "remove", "new one") == (0, "1 tenant removed\n")
    code, text = holdfast(cluster, "tenants", "remove", "new one")
    assert (code, "no tenant is called 'new one'; nothing was removed" in text) == (4, True)
    assert "new one" not in {one["name"] for one in tenants(cluster)}


def test_quotas_by_rest_with_the_same_texts(cluster: GuardedCluster) -> None:
    status, changed = rest(cluster, "PATCH", "/api/v1/tenants/by%20rest", {"limit_bytes": MIB, "lease_share": 0.5})
    assert (status, changed["limit_bytes"], changed["lease_share"]) == (200, MIB, 0.5)
    status, changed = rest(cluster, "PATCH", "/api/v1/tenants/by%20rest", {"limit_bytes": None})
    assert (status, changed["limit_bytes"], changed["lease_share"]) == (200, 0, 0.5)
    status, listed = rest(cluster, "GET", "/api/v1/tenants")
    assert status == 200
    by_name = {one["name"]: one for one in listed["tenants"]}
    assert by_name.keys() == {one["name"] for one in tenants(cluster)} >= {"default", "by rest"}
    assert by_name["by rest"]["lease_share"] == 0.5
    assert rest(cluster, "GET", "/api/v1/tenants", name="red")[1]["tenants"][0]["name"] == "red"
    for quotas, flag in (({"lease_share": 2.0}, "--lease-share"), ({"max_objects": -1}, "--objects")):
        status, refused = rest(cluster, "PATCH", "/api/v1/tenants/by%20rest", quotas)
        assert status == 409
        said = holdfast(cluster, "tenants", "set", "by rest", flag, str(next(iter(quotas.values()))))[1]
        assert refused["detail"] in said
    assert rest(cluster, "PATCH", "/api/v1/tenants/red", {"max_objects": 1}, name="red")[0] == 403
    assert rest(cluster, "DELETE", "/api/v1/tenants/by%20rest", name="plain")[0] == 403
    assert rest(cluster, "DELETE", "/api/v1/tenants/by%20rest") == (200, {"removed": 1})
    assert rest(cluster, "DELETE", "/api/v1/tenants/by%20rest") == (200, {"removed": 0})


def test_metrics_of_tenants_are_for_operators_and_for_themselves(cluster: GuardedCluster) -> None:
    with cluster.connect_as("red") as red:
        red.put("counted", bytes(1_000), upsert=True)
        for name, shown in (("operator", {"red", "default"}), ("red", {"red"}), ("plain", {"default"})):
            lines = rest(cluster, "GET", "/metrics", name=name)[1].splitlines()
            found = {line for line in lines if line.startswith("holdfast_tenant_objects{")}
            names = {line.split('"')[1] for line in found}
            assert names >= shown
            assert name == "operator" or names == shown
        metrics = rest(cluster, "GET", "/metrics")[1]
        for figure in ("used_bytes", "guaranteed_bytes", "limit_bytes", "leased_bytes", "pinned_bytes", "clients"):
            assert f'holdfast_tenant_{figure}{{tenant="red"}}' in metrics
        assert 'holdfast_tenant_refused_requests_total{tenant="red"}' in metrics


def test_requests_per_second_of_a_tenant_are_shown(cluster: GuardedCluster) -> None:
    with cluster.connect_as("red") as red:
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                red.exists("k")

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            assert tenant(cluster, "red").request_rate > 0
        finally:
            over.set()
            asking.join(60)
