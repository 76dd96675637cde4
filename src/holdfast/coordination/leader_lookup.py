"""Ask coordination once who leads: blocking, for clients and nodes, and without leaving a trace there.

Nothing is created, no session is left behind, and only the modules that the URL needs are imported.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from holdfast.coordination.backends import missing_extra
from holdfast.coordination.interface import CoordinationLost, Leader
from holdfast.coordination.urls import Location, parse_location
from holdfast.errors import HoldfastError, NotAuthorized
from holdfast.instant import now_seconds


def find_leader(url: str, timeout: float, cluster: str = "holdfast") -> Leader | None:
    """The leader now, or None. With `service=` in the URL, the address published under that name, as epoch 0.

    `CoordinationLost` if it does not answer within the timeout (seconds).
    """
    place = parse_location(url, cluster)
    if place.scheme == "memory":
        return _find_in_memory(place)
    if place.scheme == "sqlite":
        return _find_in_sqlite(place, timeout)
    if place.scheme == "etcd":
        return _find_in_etcd(place, timeout)
    return _find_in_zookeeper(place, timeout)


def _service(value: bytes | None) -> Leader | None:
    from holdfast.coordination.codec import decode_text

    return None if value is None else Leader(0, decode_text("address of the service", value))


def _find_in_memory(place: Location) -> Leader | None:
    from holdfast.coordination.memory import named_store

    cluster = named_store(place.hosts[0]).cluster(place.cluster)
    if place.service:
        value, _ = cluster.published.get(f"service/{place.service}", (None, 0))
        return _service(value)
    if cluster.record is None or cluster.beat is None:
        return None
    return Leader(cluster.record.epoch, cluster.record.address)


def _find_in_sqlite(place: Location, timeout: float) -> Leader | None:
    from holdfast.coordination.sqlite.backend import lock_path, read_row, select_published
    from holdfast.coordination.sqlite.file import translated
    from holdfast.coordination.sqlite.process_proof import is_free

    path = Path(place.path)
    if not path.exists():
        raise CoordinationLost(f"there is no database {path} yet; nothing was changed")
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=timeout)
    try:
        if place.service:
            name = f"service/{place.service}"
            return _service(select_published(connection, place.cluster, name).get(name))
        row = read_row(connection, place.cluster)
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):  # The cluster has never had a master here.
            return None
        raise translated(error, path) from error
    finally:
        connection.close()
    if row is None or row.record.resigned or is_free(lock_path(path, place.cluster, row.record.epoch)):
        return None
    return Leader(row.record.epoch, row.record.address)


def _find_in_etcd(place: Location, timeout: float) -> Leader | None:
    try:
        import grpc

        from holdfast.coordination.codec import decode_leader
        from holdfast.coordination.etcd import rpc
        from holdfast.coordination.etcd.channel import OPTIONS, credentials_of, stubs_on, told
        from holdfast.coordination.etcd.term import Keys
    except ImportError as error:
        raise missing_extra("etcd", error) from error
    keys = Keys(place.cluster)
    key = f"{keys.published}service/{place.service}".encode() if place.service else keys.leader
    credentials, login = credentials_of(place), place.login()
    failure: HoldfastError | None = None
    for host in place.hosts:
        opened = (
            grpc.insecure_channel(host, options=OPTIONS)
            if credentials is None
            else grpc.secure_channel(host, credentials, options=OPTIONS)
        )
        with opened as channel:
            stubs, until = stubs_on(channel), now_seconds() + timeout / len(place.hosts)
            metadata = [("hasleader", "true")]
            try:
                if login is not None:
                    who = rpc.AuthenticateRequest(name=login[0], password=login[1])
                    metadata.append(("token", stubs.auth.Authenticate(who, timeout=until - now_seconds()).token))
                left_s = max(0.0, until - now_seconds())
                kvs = stubs.kv.Range(rpc.RangeRequest(key=key), timeout=left_s, metadata=metadata).kvs
            except grpc.RpcError as error:
                failure = told(error, place, writes=False)
                if isinstance(failure, NotAuthorized):
                    break
                continue
        if place.service or not kvs:
            return _service(kvs[0].value if kvs else None)
        return decode_leader(kvs[0].value)
    assert failure is not None
    raise failure


def _find_in_zookeeper(place: Location, timeout: float) -> Leader | None:
    try:
        from kazoo.exceptions import AuthFailedError, KazooException, NoAuthError, NoNodeError
        from kazoo.handlers.threading import KazooTimeoutError

        from holdfast.coordination.codec import decode_leader
        from holdfast.coordination.zookeeper.session import client_of, refused
        from holdfast.coordination.zookeeper.term import Paths
    except ImportError as error:
        raise missing_extra("zookeeper", error) from error
    paths = Paths(place.cluster)
    client = client_of(place, timeout)
    try:
        until = now_seconds() + timeout
        client.start(timeout)
        left_s = max(0.0, until - now_seconds())
        if place.service:
            content, _ = client.get_async(paths.of_published(f"service/{place.service}")).get(timeout=left_s)
            return _service(paths.published_value(content))
        value, _ = client.get_async(paths.leader).get(timeout=left_s)
        return decode_leader(value)
    except NoNodeError:  # Nobody leads.
        return None
    except (NoAuthError, AuthFailedError) as error:
        raise refused(place) from error
    except (KazooException, KazooTimeoutError) as error:
        raise CoordinationLost(f"ZooKeeper at {','.join(place.hosts)} does not answer: {error}") from error
    finally:
        client.stop()
        client.close()
