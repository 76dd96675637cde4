"""Somewhere to coordinate: one of the four backends, with the means to make it stop answering."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from contextlib import closing
from pathlib import Path

from kazoo.client import KazooClient

from holdfast.coordination.backends import open_coordination
from holdfast.coordination.etcd import rpc
from holdfast.coordination.etcd.channel import EtcdChannel, range_end_of
from holdfast.coordination.interface import Coordination, CoordinationLost
from holdfast.coordination.memory import named_store
from holdfast.coordination.urls import parse_location
from holdfast.instant import now_seconds
from tests.contract.servers import Server

BACKENDS = ("memory", "sqlite", "etcd", "zookeeper")
OPEN_S = 60.0
_numbers = itertools.count(1)


class Place:
    """Somewhere to coordinate, with a cluster of its own for each test."""

    def __init__(self, kind: str, url: str, server: Server | None = None, path: Path | None = None) -> None:
        self.kind = kind
        self.cluster = f"test-{next(_numbers)}"
        self._url = url
        self._server = server
        self._path = path
        self._locked: sqlite3.Connection | None = None
        self._opened: list[Coordination] = []

    def url(self, cluster: str = "", **options: str) -> str:
        cluster = cluster or self.cluster
        if self.kind in ("memory", "sqlite"):
            options = {"cluster": cluster, **options}
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return self._url.replace("CLUSTER", cluster) + (f"?{query}" if query else "")

    async def open(self, cluster: str = "", leader_ttl_ms: int = 5000) -> Coordination:
        """As a master does it: again, while it does not answer in time."""
        give_up_at = now_seconds() + OPEN_S
        while True:
            try:
                opened = await open_coordination(self.url(cluster), leader_ttl_ms=leader_ttl_ms)
            except CoordinationLost:
                if now_seconds() > give_up_at:
                    raise
                continue
            self._opened.append(opened)
            return opened

    def stop_answering(self) -> None:
        """A stopped server; on SQLite, another process that keeps the database locked."""
        if self._server is not None:
            self._server.pause()
        elif self._path is not None:
            self._locked = sqlite3.connect(self._path, isolation_level=None)
            self._locked.execute("BEGIN IMMEDIATE")
        else:
            named_store(self._url.removeprefix("memory://")).faults.outage = True

    def answer_again(self) -> None:
        if self._server is not None:
            self._server.resume()
        elif self._locked is not None:
            self._locked.close()
            self._locked = None
        elif self._path is None:
            named_store(self._url.removeprefix("memory://")).faults.outage = False

    async def wipe(self) -> None:
        """Everything of this cluster is gone, as after a disk was replaced by an empty one."""
        if self.kind == "etcd":
            channel = EtcdChannel(parse_location(self.url()), OPEN_S)
            prefix = f"/holdfast/{self.cluster}/".encode()
            everything = rpc.DeleteRangeRequest(key=prefix, range_end=range_end_of(prefix))
            await channel.write(lambda stubs: stubs.kv.DeleteRange, everything)
            await channel.close()
        elif self.kind == "zookeeper":
            await asyncio.to_thread(_wipe_zookeeper, parse_location(self.url()).hosts[0], f"/holdfast/{self.cluster}")
        elif self._path is not None:
            with closing(sqlite3.connect(self._path)) as connection, connection:
                for table in ("log", "term", "published"):
                    connection.execute(f'DELETE FROM "{table} {self.cluster}"')
        else:
            named_store(self._url.removeprefix("memory://")).wipe(self.cluster)

    async def close(self) -> None:
        self.answer_again()
        for opened in self._opened:
            await opened.close()


def _wipe_zookeeper(host: str, root: str) -> None:
    """All nodes at once: a master that meets half of them would lay out the rest."""
    client = KazooClient(host)
    client.start()
    try:
        paths = [root]
        for path in paths:
            paths += [f"{path}/{child}" for child in client.get_children(path)]
        deletion = client.transaction()
        for path in reversed(paths):
            deletion.delete(path)
        assert all(result is True for result in deletion.commit())
    finally:
        client.stop()
        client.close()
