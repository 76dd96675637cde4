"""etcd is wiped under masters, clients and a node that go on running: nobody begins empty by itself, and after the
operator's word nothing of the old history touches the new one (I1, I19)."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from holdfast.messages.of_masters import TakeSnapshot
from holdfast.messages.requests import Done
from tests.contract.servers import OwnEtcd
from tests.failover.cluster import SETTLE_S, Cluster, Process, call
from tests.waiting import wait_until


def waits(master: Process) -> str:
    return str(master.status().get("waits", ""))


def readiness(master: Process) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://{master.http}/readyz", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def restart(cluster: Cluster, *more: str) -> None:
    """All masters are killed and started again, with these flags this once."""
    for master in cluster.masters:
        master.kill()
    for master in cluster.masters:
        flags, master.flags = master.flags, (*master.flags, *more)
        master.start()
        master.flags = flags
    for master in cluster.masters:
        master.wait_until_ready()


def noted(path: Path) -> str:
    """The history that a master says it follows; empty before it has said so."""
    return path.read_text().strip() if path.exists() else ""


def test_a_wiped_etcd_waits_for_the_operator_and_the_new_history_is_not_trimmed_by_the_old(
    etcd: OwnEtcd, tmp_path: Path
) -> None:
    with Cluster(tmp_path, etcd.url("wiped")) as cluster:
        with cluster.connect() as cache:
            for number in range(40):
                cache.put(f"old/{number}", b"of the old history")
            for number in range(2):
                for master in cluster.masters:
                    with master.channel(looks=True) as channel:
                        assert isinstance(call(channel, TakeSnapshot()), Done)
                cache.put(f"older/{number}", b"x")
        old = cluster.settle()["leader"]["log_id"]
        etcd.wipe()
        for master in cluster.masters:
            wait_until(lambda asked=master: waits(asked), SETTLE_S, "it waits for the operator")
            status = master.status()
            assert (status["role"], status["promotable"]) == ("standby", False)
            for words in (old, "holdfast restore", "--new-history"):
                assert words in status["promotable_reason"]
            code, said = readiness(master)
            assert code == 503
            assert old in json.dumps(said)
        restart(cluster)
        for master in cluster.masters:
            wait_until(lambda asked=master: waits(asked), SETTLE_S, "it waits after a restart too")
        restart(cluster, "--new-history")
        new = cluster.settle()["leader"]["log_id"]
        assert new != old
        acked = {}
        with cluster.connect() as cache:
            for number in range(3):
                acked[f"new/{number}"] = b"of the new history %d" % number
                assert cache.put(f"new/{number}", acked[f"new/{number}"])
        for _ in cluster.masters:
            primary = cluster.primary()
            note = primary.folder / "data" / "snapshots" / "history"
            wait_until(lambda at=note: noted(at) == new, SETTLE_S, "it looks after its snapshots")  # type: ignore[misc]
            cluster.standby()
            primary.kill()
            cluster.primary(but=primary)
            primary.start()
            primary.wait_until_ready()
        restart(cluster)
        cluster.verify(acked, {"old/1", "older/1"})
        assert cluster.settle()["leader"]["log_id"] == new
        for master in cluster.masters:
            assert list((master.folder / "data" / "snapshots").glob(f"snapshot-{old}-*.hfs"))
