"""Open the coordination that a URL names; a backend is imported only when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from holdfast.coordination.interface import Coordination
from holdfast.coordination.urls import Location, parse_location
from holdfast.errors import BadValue
from holdfast.supervisor import Supervisor

LEADER_TTL_MS = 5000


async def open_coordination(
    url: str, cluster: str = "holdfast", leader_ttl_ms: int = LEADER_TTL_MS, supervisor: Supervisor | None = None
) -> Coordination:
    """`CoordinationLost` if it does not answer now. `supervisor` runs the backend's background tasks."""
    supervisor = supervisor if supervisor is not None else Supervisor()
    if leader_ttl_ms < 500:
        raise BadValue(f"a leader_ttl of {leader_ttl_ms} ms is too short to be kept up; give at least 500")
    place = parse_location(url, cluster)
    if place.scheme == "memory":
        from holdfast.coordination.memory import MemoryCoordination, named_store

        return MemoryCoordination(named_store(place.hosts[0]), place.cluster, leader_ttl_ms, supervisor=supervisor)
    if place.scheme == "sqlite":
        return await _open_sqlite(place, leader_ttl_ms, supervisor)
    if place.scheme == "etcd":
        return await _open_etcd(place, leader_ttl_ms, supervisor)
    return await _open_zookeeper(place, leader_ttl_ms, supervisor)


class _Closed(Coordination, Protocol):
    async def open(self) -> None: ...


async def _opened(made: _Closed) -> Coordination:
    """Open it; close it again if that fails."""
    try:
        await made.open()
    except BaseException:
        await made.close()
        raise
    return made


async def _open_sqlite(place: Location, leader_ttl_ms: int, supervisor: Supervisor) -> Coordination:
    from holdfast.coordination.sqlite.backend import SqliteCoordination

    synchronous = place.options.get("synchronous", "full").upper()
    if synchronous not in ("FULL", "NORMAL"):
        raise BadValue(f"synchronous={synchronous.lower()} is neither full nor normal")
    return await _opened(SqliteCoordination(Path(place.path), place.cluster, leader_ttl_ms, synchronous, supervisor))


async def _open_etcd(place: Location, leader_ttl_ms: int, supervisor: Supervisor) -> Coordination:
    try:
        from holdfast.coordination.etcd.backend import EtcdCoordination
    except ImportError as error:
        raise missing_extra("etcd", error) from error
    return await _opened(EtcdCoordination(place, leader_ttl_ms, supervisor))


async def _open_zookeeper(place: Location, leader_ttl_ms: int, supervisor: Supervisor) -> Coordination:
    try:
        from holdfast.coordination.zookeeper.backend import ZooKeeperCoordination
    except ImportError as error:
        raise missing_extra("zookeeper", error) from error
    return await _opened(ZooKeeperCoordination(place, leader_ttl_ms, supervisor))


def missing_extra(extra: str, error: ImportError) -> BadValue:
    return BadValue(f"{extra}:// needs a package that is not installed ({error.name}): pip install 'holdfast[{extra}]'")
