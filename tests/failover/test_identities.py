"""Real masters, nodes and clients with an identity each (I20): the roles hold through failover, snapshot and restore,
and no secret shows anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.client.cache import Cache
from holdfast.errors import HoldfastError, NotAllowed, NotAuthorized
from tests import prefork
from tests.contract.servers import OwnEtcd
from tests.failover.guarded import GuardedCluster, Keyring, shown_everywhere
from tests.failover.test_restore import holdfast_says, put_all, snapshot_files, wait_for_waiting
from tests.waiting import wait_until

PROCESSES = {"master-1": "master", "master-2": "master", "node-1": "node", "node-2": "node"}
PEOPLE = {"operator": "operator", "writer": "writer", "reader": "reader", "withdrawn": "writer"}


@pytest.fixture
def cluster(tmp_path: Path, etcd: OwnEtcd) -> Iterator[GuardedCluster]:
    keyring = Keyring(tmp_path / "keys")
    for name, role in {**PROCESSES, **PEOPLE}.items():
        keyring.add(name, role)
    with GuardedCluster(tmp_path, etcd.url("guarded"), keyring, nodes=2) as cluster:
        cluster.settle()
        yield cluster


def says(cluster: GuardedCluster, name: str, *arguments: str) -> dict[str, object]:
    return holdfast_says(*arguments, "--token-file", str(cluster.keyring.path(name)))


def fails(cluster: GuardedCluster, name: str, *arguments: str) -> str:
    done = prefork.holdfast(*arguments, "--token-file", str(cluster.keyring.path(name)))
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr


REFUSED: dict[str, list[Callable[[Cache], object]]] = {
    "reader": [lambda cache: cache.put("x", b"1"), lambda cache: cache.remove("k0")],
    "writer": [lambda cache: cache.remove("k0", force=True), lambda cache: cache.remove_matching("^k0$", force=True)],
    "node-1": [lambda cache: cache.get("k0"), lambda cache: cache.put("x", b"1"), lambda cache: cache.status()],
    "master-1": [lambda cache: cache.get("k0"), lambda cache: cache.put("x", b"1")],
}


def check_roles(cluster: GuardedCluster) -> None:
    for name, verbs in REFUSED.items():
        for verb in verbs:
            # A connection asks for the segments first, which nodes and masters may not.
            with pytest.raises(NotAllowed), cluster.connect_as(name) as cache:
                verb(cache)
    for verb in (["drain", "node-1"], ["settings", "high_watermark=0.8"], ["failover"], ["snapshot"]):
        assert "needs the role operator" in fails(cluster, "writer", *verb, "--address", cluster.address), verb


def test_roles_hold_through_failover_snapshot_and_restore(cluster: GuardedCluster, etcd: OwnEtcd) -> None:
    with cluster.connect_as("writer") as writer, cluster.connect_as("reader") as reader:
        values = put_all(writer, [f"k{number}" for number in range(300)])
        assert reader.get("k7") == values["k7"]
        check_roles(cluster)
        # The standby writes a snapshot, and the primary fetches it: as masters, by tokens of their own.
        standby, primary = cluster.standby(), cluster.primary()
        says(cluster, "operator", "snapshot", "--address", standby.address)
        assert snapshot_files(standby)
        wait_until(lambda: snapshot_files(primary), 60, "the primary has a copy of the standby's snapshot")
        # The same clients go on at the next primary: same numbers, same grants.
        primary.kill()
        cluster.primary(but=primary)
        values |= put_all(writer, [f"after{number}" for number in range(300)])
        assert reader.get_many(list(values)) == values
        cluster.heal()
        says(cluster, "operator", "failover", "--address", cluster.address)
        assert reader.get("k8") == values["k8"]
        check_roles(cluster)
        etcd.wipe()
        wait_for_waiting(cluster)
        said = says(cluster, "operator", "restore", "--address", cluster.address, "--timeout", "60")
        assert said["restored_objects"] == len(values)
        assert reader.get_many(list(values)) == values

        def stored() -> bool:
            """Memory is granted again once old writers and old leases are gone."""
            try:
                return writer.put("of the new history", b"bytes") or writer.exists("of the new history")
            except HoldfastError:
                return False

        wait_until(stored, 60, "the writer's old connection puts into the restored history")
        check_roles(cluster)
    shown = shown_everywhere([*cluster.masters, *cluster.nodes], cluster.keyring.tokens["operator"])
    for seen in ("serving", "holdfast_objects", '"restored"', "/api/v1/objects"):
        assert seen in shown, f"{seen}: nobody looked there"
    for name, token in cluster.keyring.tokens.items():
        assert token not in shown, f"the token of {name} is shown"


def test_an_entry_that_is_taken_out_of_the_file_closes_its_connections(cluster: GuardedCluster) -> None:
    keyring = cluster.keyring
    with cluster.connect_as("withdrawn") as cache, cluster.connect_as("writer") as other:
        assert cache.put("k", b"1")
        entries = keyring.file.read_text().split("[[identity]]")
        kept = "[[identity]]".join(entry for entry in entries if '"withdrawn"' not in entry)
        draft = keyring.file.with_name("draft")
        draft.write_text(kept)
        draft.chmod(0o600)
        draft.replace(keyring.file)

        def is_out() -> bool:
            try:
                cache.exists("k")
            except NotAuthorized:
                return True
            return False

        wait_until(is_out, 60, "the withdrawn identity is refused")
        assert other.get("k") == b"1"
    # A wrong file changes nothing, and the operator is told.
    keyring.file.write_text(kept + "\nroles = 5")
    primary = cluster.primary()
    wait_until(lambda: primary.status().get("identities_fault"), 60, "status names the fault")
    wait_until(lambda: "the former identities stay in force" in primary.said(), 60, "the log says so")
    with cluster.connect_as("writer") as other:
        assert other.get("k") == b"1"
