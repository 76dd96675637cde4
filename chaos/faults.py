"""The faults: each one strikes, says whom, and is undone when it is asked for the second time.

A fault is a generator with one `yield`. Whom it strikes is drawn from the run's seed among those of a role; the primary
is whoever leads at that moment, which the seed does not know.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc

from chaos.cluster import ETCD, ETCD_QUOTA_BYTES, ChaosCluster, Client
from holdfast.coordination.etcd import rpc
from holdfast.coordination.etcd.channel import stubs_on
from holdfast.errors import HoldfastError
from holdfast.messages.of_masters import HandOver
from tests.failover.cluster import Process, call
from tests.failover.etcd_quota import fill, make_room

Strike = Callable[[ChaosCluster, random.Random], Iterator[str]]
PAIRS = (
    ("master", "master"),
    ("master", ETCD),
    ("master", "node"),
    ("client", "master"),
    ("client", "node"),
    ("client", ETCD),
    ("node", "node"),
)


def _primary(cluster: ChaosCluster, draw: random.Random) -> Process:
    return cluster.leader() or draw.choice(cluster.masters)


def _standby(cluster: ChaosCluster, draw: random.Random) -> Process:
    leader = cluster.leader()
    return draw.choice([one for one in cluster.masters if one is not leader])


def _node(cluster: ChaosCluster, draw: random.Random) -> Process:
    return draw.choice(cluster.nodes)


def _client(cluster: ChaosCluster, draw: random.Random) -> Client:
    return draw.choice(cluster.clients)


Victim = Process | Client


def _name(victim: Victim) -> str:
    return victim.name if isinstance(victim, Client) else victim.folder.name


Choose = Callable[[ChaosCluster, random.Random], Victim]


def killed(choose: Choose) -> Strike:
    """kill -9, and started again."""
    return _struck(choose, lambda victim: victim.kill(), lambda victim: victim.start())


def stopped(choose: Choose) -> Strike:
    """SIGSTOP, and continued."""
    return _struck(choose, lambda victim: victim.pause(), lambda victim: victim.resume() if victim.alive else None)


def _struck(choose: Choose, begin: Callable[[Victim], object], end: Callable[[Victim], object]) -> Strike:
    """A fault of one process, begun only while that lives."""

    def strike(cluster: ChaosCluster, draw: random.Random) -> Iterator[str]:
        victim = choose(cluster, draw)
        if victim.alive:
            begin(victim)
        yield _name(victim)
        end(victim)

    return strike


def cut(one_role: str, other_role: str, both_ways: bool) -> Strike:
    """Nothing gets from the one to the other, or in one direction only."""

    def strike(cluster: ChaosCluster, draw: random.Random) -> Iterator[str]:
        one = draw.choice(cluster.hosts(one_role))
        leader = cluster.leader()
        if one_role == "master" and leader is not None and draw.random() < 0.5:
            one = _name(leader)
        other = draw.choice([host for host in cluster.hosts(other_role) if host != one])
        if draw.random() < 0.5:
            one, other = other, one
        cluster.network.cut(one, other)
        if both_ways:
            cluster.network.cut(other, one)
        yield f"{one} {'<->' if both_ways else '->'} {other}"
        cluster.network.mend(one, other)
        cluster.network.mend(other, one)

    return strike


def isolated(role: str) -> Strike:
    """One host is cut off from all others."""

    def strike(cluster: ChaosCluster, draw: random.Random) -> Iterator[str]:
        one = draw.choice(cluster.hosts(role))
        others = [host for host in cluster.network.addresses if host != one]
        for other in others:
            cluster.network.cut(one, other)
            cluster.network.cut(other, one)
        yield one
        for other in others:
            cluster.network.mend(one, other)
            cluster.network.mend(other, one)

    return strike


def hand_over(cluster: ChaosCluster, draw: random.Random) -> Iterator[str]:
    leader = cluster.leader()
    if leader is None:
        yield "nobody: no master leads"
        return
    try:
        with leader.channel() as channel:
            call(channel, HandOver())
    except HoldfastError as error:
        yield f"{_name(leader)}, which did not: {error}"
        return
    yield _name(leader)


def etcd_killed(cluster: ChaosCluster, draw: random.Random) -> Iterator[str]:
    cluster.etcd.end()
    yield ETCD
    cluster.etcd = cluster.start_etcd(cluster.folder)


def etcd_stopped(cluster: ChaosCluster, draw: random.Random) -> Iterator[str]:
    cluster.etcd.pause()
    yield ETCD
    cluster.etcd.resume()


def etcd_compacted(cluster: ChaosCluster, draw: random.Random) -> Iterator[str]:
    """All revisions but the last, while a standby may be behind them; with one master stopped meanwhile, it is."""
    behind = _standby(cluster, draw)
    if behind.alive:
        behind.pause()
    time.sleep(1.0)
    try:
        with grpc.insecure_channel(f"{cluster.etcd.host}:{cluster.etcd.port}") as channel:
            kv = stubs_on(channel).kv
            revision = kv.Range(rpc.RangeRequest(key=b"x"), timeout=10).header.revision
            kv.Compact(rpc.CompactionRequest(revision=revision, physical=True), timeout=10)
    finally:
        if behind.alive:
            behind.resume()
    yield f"{ETCD}, through revision {revision}, with {_name(behind)} behind"


def etcd_full(cluster: ChaosCluster, draw: random.Random) -> Iterator[str]:
    """Its quota is filled, until the operator has made room."""
    fill(cluster.etcd, ETCD_QUOTA_BYTES)
    yield ETCD
    make_room(cluster.etcd)


def disk_full(folders: Callable[[ChaosCluster], list[Path]]) -> Strike:
    def strike(cluster: ChaosCluster, draw: random.Random) -> Iterator[str]:
        folder = draw.choice(folders(cluster))
        filling = folder / "filling"
        with filling.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 20))
            except OSError:
                pass  # That was the point.
        yield folder.parent.name
        filling.unlink()

    return strike


def _master_disks(cluster: ChaosCluster) -> list[Path]:
    return [master.folder / "data" for master in cluster.masters]


def _node_disks(cluster: ChaosCluster) -> list[Path]:
    return [node.folder / "disk" for node in cluster.nodes]


def spoiled(folders: Callable[[ChaosCluster], list[Path]], pattern: str) -> Strike:
    """Some files get other bytes, are cut short, or go."""

    def strike(cluster: ChaosCluster, draw: random.Random) -> Iterator[str]:
        folder = draw.choice(folders(cluster))
        files = sorted(path for path in folder.glob(pattern) if path.is_file())
        struck = draw.sample(files, min(len(files), 3))
        for path in struck:
            _spoil(path, draw)
        yield f"{len(struck)} of {len(files)} files of {folder.parent.name}"

    return strike


def _spoil(path: Path, draw: random.Random) -> None:
    how = draw.choice(("bytes", "cut", "gone"))
    try:
        if how == "gone":
            path.unlink()
        elif how == "cut":
            os.truncate(path, path.stat().st_size // 2)
        else:
            with path.open("r+b", buffering=0) as file:
                file.seek(draw.randrange(max(1, path.stat().st_size)))
                file.write(draw.randbytes(16))
    except FileNotFoundError:
        pass  # Its owner removed it first.


FAULTS: dict[str, Strike] = {
    "primary killed": killed(_primary),
    "standby killed": killed(_standby),
    "node killed": killed(_node),
    "client killed": killed(_client),
    "primary stopped": stopped(_primary),
    "standby stopped": stopped(_standby),
    "node stopped": stopped(_node),
    "client stopped": stopped(_client),
    "handed over": hand_over,
    **{f"{one} and {other} cut": cut(one, other, both_ways=True) for one, other in PAIRS},
    **{f"{one} and {other} cut one way": cut(one, other, both_ways=False) for one, other in PAIRS},
    "master isolated": isolated("master"),
    "node isolated": isolated("node"),
    "etcd killed": etcd_killed,
    "etcd stopped": etcd_stopped,
    "etcd compacted": etcd_compacted,
    "etcd full": etcd_full,
    "master's disk full": disk_full(_master_disks),
    "node's disk full": disk_full(_node_disks),
    "snapshots spoiled": spoiled(_master_disks, "**/snapshot-*"),
    "node's files spoiled": spoiled(_node_disks, "files/*/**/*"),
}

MIXES: dict[str, dict[str, int]] = {
    "all": dict.fromkeys(FAULTS, 1),
    # Deaths and pauses of processes, as they come in operation, most of them of the primary; with two copies of every
    # object, as whoever needs an answer while a node is away would have it.
    "soak": {
        "primary killed": 5,
        "standby killed": 2,
        "node killed": 2,
        "client killed": 1,
        "primary stopped": 1,
        "node stopped": 1,
        "handed over": 1,
    },
}
