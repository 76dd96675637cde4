"""Upgrades of a cluster with tenants, and the way back for as long as there is one (docs/upgrades.md, I20)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client.cache import Cache
from holdfast.errors import ObjectNotFound
from holdfast.messages.log_versions import LOG_VERSION
from tests.failover.cluster import Process
from tests.failover.guarded import GuardedCluster, Keyring
from tests.failover.releases import THIS, Release, previous_release
from tests.failover.upgrade_steps import (
    STEP_S,
    ClientAtWork,
    end,
    hand_over,
    replace_master,
    replace_nodes,
    with_nodes_of,
)
from tests.waiting import wait_until

TENANTS = ("red", "blue")
SAME = "the same key"


@pytest.fixture(scope="module")
def before() -> Release:
    return previous_release()


@contextlib.contextmanager
def guarded_cluster_of(release: Release, folder: Path) -> Iterator[GuardedCluster]:
    """Two masters and two nodes of that release, and two tenants, which may remove with force and map memory."""
    keyring = Keyring(folder / "keys")
    for number in (1, 2):
        keyring.add(f"master-{number}", "master")
        keyring.add(f"node-{number}", "node")
    keyring.add("operator", "operator")
    for tenant in TENANTS:
        keyring.add(tenant, "operator", tenant=tenant, shared_memory=True)
    cluster = GuardedCluster(folder, f"sqlite://{folder}/coordination.db?cluster=tenants", keyring, nodes=0)
    with with_nodes_of(release, cluster):
        yield cluster


class TenantsAtWork:
    """Clients of both releases and both tenants, over shared memory and TCP; and a key that both tenants have."""

    def __init__(self, cluster: GuardedCluster, before: Release, stack: contextlib.ExitStack) -> None:
        self._caches: dict[str, Cache] = {}
        for tenant in TENANTS:
            self._caches[tenant] = stack.enter_context(cluster.connect_as(tenant, timeout=STEP_S))
            self._caches[tenant].put(SAME, tenant.encode())
        self._clients = [
            stack.enter_context(
                ClientAtWork(
                    release,
                    cluster.address,
                    f"{release.version} {tenant}",
                    (release is THIS) == (tenant == "red"),
                    str(cluster.keyring.path(tenant)),
                )
            )
            for release in (before, THIS)
            for tenant in TENANTS
        ]

    def go_on(self) -> None:
        """All do; and each tenant sees its own only."""
        for client in self._clients:
            client.goes_on()
        for tenant, cache in self._caches.items():
            assert cache.get(SAME) == tenant.encode()
            other = next(one for one in self._caches if one != tenant)
            assert not [key for key in cache if key.endswith(f" {other}/1")]
            with pytest.raises(ObjectNotFound):
                cache.get(f"{THIS.version} {other}/1")

    def end(self) -> None:
        verdicts = [client.end() for client in self._clients]
        assert [verdict["error"] for verdict in verdicts] == [""] * len(verdicts)
        assert all(verdict["removed"] > 0 for verdict in verdicts), "nobody removed anything"


def other_than(cluster: GuardedCluster, master: Process) -> Process:
    return next(one for one in cluster.masters if one is not master)


def test_with_tenants_nodes_go_before_masters_and_the_log_moves_on_with_the_last_master(
    before: Release, tmp_path: Path
) -> None:
    """I1, I10, I20: no request of either release's clients fails on the way. From then on a master of the release
    before stops at the first record of another tenant's memory, and says what to do."""
    with guarded_cluster_of(before, tmp_path) as cluster, contextlib.ExitStack() as stack:
        work = TenantsAtWork(cluster, before, stack)
        work.go_on()
        replace_nodes(cluster, THIS)
        work.go_on()
        old = cluster.primary()
        new = other_than(cluster, old)
        replace_master(new, THIS)
        assert hand_over(cluster, old) is new
        work.go_on()
        assert new.status()["log_version"] == 1, "the other master could not follow"
        wait_until(lambda: old.status().get("promotable"), STEP_S, "the former primary follows")
        replace_master(old, THIS)
        wait_until(lambda: new.status()["log_version"] == LOG_VERSION, STEP_S, "nobody holds the log back")
        assert hand_over(cluster, new) is old
        # Under a new primary, memory is cleared before its first use, whosever it was: by a record of version 2.
        work.go_on()
        end(new)
        new.release = before
        new.start()
        new.wait_until_ready()
        wait_until(lambda: "upgrade this master" in str(new.status().get("promotable_reason")), STEP_S)
        assert not new.readiness()[0]
        work.go_on()
        end(new)
        new.release = THIS
        new.start()
        new.wait_until_ready()
        wait_until(lambda: new.status().get("promotable"), STEP_S, "it reads the log again")
        work.go_on()
        work.end()


def test_the_way_back_with_tenants_is_open_until_the_last_master_is_upgraded(before: Release, tmp_path: Path) -> None:
    """I1, I10, I20: masters first, then nodes, and no request fails."""
    with guarded_cluster_of(before, tmp_path) as cluster, contextlib.ExitStack() as stack:
        work = TenantsAtWork(cluster, before, stack)
        replace_nodes(cluster, THIS)
        old = cluster.primary()
        new = other_than(cluster, old)
        replace_master(new, THIS)
        assert hand_over(cluster, old) is new
        work.go_on()
        assert new.status()["log_version"] == 1
        wait_until(lambda: old.status().get("promotable"), STEP_S, "the former primary follows")
        assert hand_over(cluster, new) is old
        work.go_on()
        wait_until(lambda: new.status().get("promotable"), STEP_S, "the upgraded one follows")
        replace_master(new, before)
        work.go_on()
        replace_nodes(cluster, before)
        work.go_on()
        assert hand_over(cluster, old) is new
        work.go_on()
        work.end()
