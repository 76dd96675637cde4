"""Other stores under one face, each started here on loopback with its defaults, so that one loop measures them all.

A face raises if a store refuses: what was not stored is not counted. For large values each store's way with the fewest
copies is taken.
"""

from __future__ import annotations

import importlib.util
import mmap
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import holdfast
from benchmarks.processes import Cluster, wait_until_mapped
from holdfast.client.cache import Cache
from holdfast.transport.bulk_copy import address_of
from tests.contract.servers import Server, start_etcd
from tests.ports import free_ports
from tests.waiting import wait_until

LARGE = 16 << 20
SEGMENT = 2 << 30
"""What was read is leased, and takes its place for seconds after it was removed: there is room for all rounds."""


class Store(Protocol):
    name: str
    pid: int
    """Of the process that keeps the catalogue."""
    has_exists: bool
    address: str
    """Where other processes reach it, with `connected`."""

    def put(self, key: str, value: bytes) -> None: ...
    def get(self, key: str) -> bytes: ...
    def exists(self, key: str) -> bool: ...
    def put_many(self, keys: list[str], value: bytes) -> None: ...
    def get_many(self, keys: list[str]) -> int: ...
    def exists_many(self, keys: list[str]) -> int: ...
    def leading(self, keys: list[str]) -> int:
        """Read the first of these, up to one that is missing, in the usual way; how many they are."""

    def remove_many(self, keys: list[str]) -> None: ...
    def put_large(self, key: str) -> None: ...
    def get_large(self, key: str) -> None: ...


class Refused(Exception):
    """A store did not do what it was asked for."""


def sure(done: object, what: str) -> None:
    if not done:
        raise Refused(what)


def first_missing(found: Sequence[bool]) -> int:
    """How many are there before one is not."""
    return [*found, False].index(False)


class Large:
    """A buffer of 16 MiB to put from and to read into, touched."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, LARGE)
        self.memory[:] = os.urandom(1 << 20) * (LARGE >> 20)
        self.view = memoryview(self.memory)


class Holdfast:
    has_exists = True

    def __init__(self, name: str, cache: Cache, pid: int, address: str = "") -> None:
        self.name, self.pid, self.address = name, pid, address
        self.cache = cache
        self.get, self.exists = cache.get, cache.exists
        self._large = Large()

    def put(self, key: str, value: bytes) -> None:
        sure(self.cache.put(key, value), "put")

    def put_many(self, keys: list[str], value: bytes) -> None:
        sure(self.cache.put_many(dict.fromkeys(keys, value)) == len(keys), "put_many")

    def get_many(self, keys: list[str]) -> int:
        return len(self.cache.get_many(keys))

    def exists_many(self, keys: list[str]) -> int:
        return sum(self.cache.exists_many(keys))

    def leading(self, keys: list[str]) -> int:
        found = self.cache.get_many(keys[: first_missing(self.cache.exists_many(keys))])
        return first_missing([key in found for key in keys])

    def remove_many(self, keys: list[str]) -> None:
        for key in keys:
            self.cache.remove(key, force=True)

    def put_large(self, key: str) -> None:
        sure(self.cache.put(key, self._large.view), "put of 16 MiB")

    def get_large(self, key: str) -> None:
        sure(self.cache.get_into(key, self._large.view) == LARGE, "get of 16 MiB")


def mooncake_client(master: str, lent_bytes: int, host: str = "127.0.0.1") -> Any:
    from mooncake.store import MooncakeDistributedStore  # type: ignore[import-not-found, unused-ignore]

    store = MooncakeDistributedStore()
    sure(store.setup(host, "P2PHANDSHAKE", lent_bytes, 256 << 20, "tcp", "", master) == 0, "setup")
    return store


class Mooncake:
    """Its client lends the memory itself, and so reads and writes it in its own process."""

    has_exists = True

    def __init__(self, name: str, master: str, pid: int, lent_bytes: int = SEGMENT, host: str = "127.0.0.1") -> None:
        self.name, self.pid, self.address = name, pid, master
        self.store = mooncake_client(master, lent_bytes, host)
        self.get = self.store.get
        self._large = Large()
        self.at = address_of(self._large.memory)
        sure(self.store.register_buffer(self.at, LARGE) == 0, "register_buffer")

    def put(self, key: str, value: bytes) -> None:
        sure(self.store.put(key, value) == 0, "put")

    def exists(self, key: str) -> bool:
        return bool(self.store.is_exist(key) == 1)

    def put_many(self, keys: list[str], value: bytes) -> None:
        sure(self.store.put_batch(keys, [value] * len(keys)) == 0, "put_batch")

    def get_many(self, keys: list[str]) -> int:
        return sum(map(bool, self.store.get_batch(keys)))

    def exists_many(self, keys: list[str]) -> int:
        return sum(found == 1 for found in self.store.batch_is_exist(keys))

    def leading(self, keys: list[str]) -> int:
        there = first_missing([found == 1 for found in self.store.batch_is_exist(keys)])
        return first_missing([*map(bool, self.store.get_batch(keys[:there]))]) if there else 0

    def remove_many(self, keys: list[str]) -> None:
        self.store.batch_remove(keys, True)

    def put_large(self, key: str) -> None:
        sure(self.store.put_from(key, self.at, LARGE) == 0, "put_from")

    def get_large(self, key: str) -> None:
        sure(self.store.get_into(key, self.at, LARGE) == LARGE, "get_into")


class Redis:
    has_exists = True

    def __init__(self, port: int, pid: int, host: str = "127.0.0.1") -> None:
        import redis  # type: ignore[import-not-found, unused-ignore]

        self.name, self.pid, self.address = "Redis", pid, str(port)
        self.client: Any = redis.Redis(host, port, protocol=2)
        self.get = self.client.get
        self._large = Large()

    def put(self, key: str, value: bytes) -> None:
        sure(self.client.set(key, value), "set")

    def exists(self, key: str) -> bool:
        return bool(self.client.exists(key))

    def put_many(self, keys: list[str], value: bytes) -> None:
        sure(self.client.mset(dict.fromkeys(keys, value)), "mset")

    def get_many(self, keys: list[str]) -> int:
        return sum(found is not None for found in self.client.mget(keys))

    def exists_many(self, keys: list[str]) -> int:
        return int(self.client.exists(*keys))

    def leading(self, keys: list[str]) -> int:
        return first_missing([found is not None for found in self.client.mget(keys)])

    def remove_many(self, keys: list[str]) -> None:
        self.client.delete(*keys)

    def put_large(self, key: str) -> None:
        self.put(key, bytes(self._large.view))

    def get_large(self, key: str) -> None:
        sure(len(self.client.get(key)) == LARGE, "get of 16 MiB")


class Memcached:
    has_exists = False

    def __init__(self, port: int, pid: int, host: str = "127.0.0.1") -> None:
        from pymemcache.client.base import Client  # type: ignore[import-not-found, unused-ignore]

        self.name, self.pid, self.address = "memcached", pid, str(port)
        self.client: Any = Client((host, port), no_delay=True, default_noreply=False)
        self.get = self.client.get
        self._large = Large()

    def put(self, key: str, value: bytes) -> None:
        sure(self.client.set(key, value), "set")

    def exists(self, key: str) -> bool:
        raise Refused("memcached cannot be asked whether a key is there")

    def put_many(self, keys: list[str], value: bytes) -> None:
        from pymemcache.exceptions import MemcacheServerError  # type: ignore[import-not-found, unused-ignore]

        try:
            sure(not self.client.set_many(dict.fromkeys(keys, value)), "set_many")
        except MemcacheServerError as error:  # Out of memory: it evicts within a size class only.
            raise Refused(f"set_many: {error}") from None

    def get_many(self, keys: list[str]) -> int:
        return len(self.client.get_many(keys))

    def exists_many(self, keys: list[str]) -> int:
        raise Refused("memcached cannot be asked whether keys are there")

    def leading(self, keys: list[str]) -> int:
        found = self.client.get_many(keys)
        return first_missing([key in found for key in keys])

    def remove_many(self, keys: list[str]) -> None:
        self.client.delete_many(keys)

    def put_large(self, key: str) -> None:
        self.put(key, bytes(self._large.view))

    def get_large(self, key: str) -> None:
        sure(len(self.client.get(key)) == LARGE, "get of 16 MiB")


def connected(name: str, address: str) -> Store:
    """The store of this name from another process. Mooncake's clients lend memory each, as its guide has it."""
    if name.startswith("holdfast"):
        cache = holdfast.connect(address, timeout=60)
        key = f"warm/{os.getpid()}"
        cache.put(key, b"up")
        cache.get(key)
        wait_until_mapped()
        return Holdfast(name, cache, 0, address)
    if name.startswith("Mooncake"):
        return Mooncake(name, address, 0, SEGMENT // 32)
    return Redis(int(address), 0) if name == "Redis" else Memcached(int(address), 0)


NO_QUESTION = (b"", b"")


def listens(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


def start_server(folder: Path, port: int, *command: str) -> Server:
    folder.mkdir()
    return Server(list(command), folder, port, NO_QUESTION)


def start_mooncake(folder: Path, *flags: str, host: str = "127.0.0.1", inside: tuple[str, ...] = ()) -> Server:
    found = importlib.util.find_spec("mooncake")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("Mooncake is not installed here: `make bench-peers` installs it")
    port, metrics = free_ports(2)
    binary = f"{found.submodule_search_locations[0]}/mooncake_master"
    ports = (f"--rpc_port={port}", "--metrics_host=127.0.0.1", f"--metrics_port={metrics}")
    return start_server(folder, port, *inside, binary, f"--rpc_address={host}", *ports, "--logtostderr", *flags)


def start_redis(folder: Path, megabytes: int = 4096, host: str = "127.0.0.1", inside: tuple[str, ...] = ()) -> Server:
    """`inside`: how a command begins that runs where the host is."""
    [port] = free_ports(1)
    where = ("--port", str(port), "--bind", host, "--protected-mode", "no", "--save", "", "--dir", str(folder))
    most = ("--maxmemory", f"{megabytes}mb", "--maxmemory-policy", "allkeys-lru")
    return start_server(folder, port, *inside, "redis-server", *where, *most)


def start_memcached(
    folder: Path,
    megabytes: int = 4096,
    host: str = "127.0.0.1",
    inside: tuple[str, ...] = (),
    largest: str = "32m",
) -> Server:
    [port] = free_ports(1)
    where = ("-p", str(port), "-l", host, "-U", "0", "-u", "nobody")
    return start_server(folder, port, *inside, "memcached", *where, "-m", str(megabytes), "-I", largest)


def ha_flags(etcd: str) -> list[str]:
    return ["--enable_ha=true", "--ha_backend_type=etcd", f"--ha_backend_connstring={etcd}", "--enable_oplog=true"]


class Started:
    """Servers, each in a folder of its own, and ended with the `with` block."""

    def __init__(self, opened: ExitStack) -> None:
        self._opened = opened
        self._folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-peers-")))

    def start(
        self, name: str, start: Callable[..., Server], *flags: str, wait: bool = True, host: str = "", **options: Any
    ) -> Server:
        server = start(self._folder / name, *flags, **(options | {"host": host} if host else options))
        self._opened.callback(server.end)
        if wait:
            wait_until(lambda: listens(server.port, host or "127.0.0.1"), 60, f"{name} listens")
        return server

    def start_etcd(self, name: str) -> str:
        server = self.start(name, start_etcd, wait=False)
        server.wait_until_it_serves()
        return f"127.0.0.1:{server.port}"


@contextmanager
def all_stores() -> Iterator[list[Store]]:
    """Each with servers of its own: holdfast and Mooncake with one master, and with a standby and a log in etcd."""
    with ExitStack() as opened:
        started = Started(opened)
        redis, memcached = started.start("redis", start_redis), started.start("memcached", start_memcached)
        plain = started.start("mooncake", start_mooncake)
        etcd = started.start_etcd("etcd of mooncake")
        leader = started.start("leader", start_mooncake, *ha_flags(etcd))
        started.start("standby", start_mooncake, *ha_flags(etcd), wait=False)
        own_etcd = started.start_etcd("etcd of holdfast")
        one = opened.enter_context(Cluster("2GiB"))
        two = opened.enter_context(Cluster("2GiB", masters=2, coordination=f"etcd://{own_etcd}/peers"))
        mooncakes = [
            Mooncake("Mooncake", f"127.0.0.1:{plain.port}", plain.process.pid),
            Mooncake("Mooncake, etcd", f"etcd://{etcd}", leader.process.pid),
        ]
        for store in mooncakes:
            opened.callback(store.store.close)
        yield [
            Holdfast("holdfast", opened.enter_context(one.connect_warm()), one.master.pid, one.address),
            Holdfast("holdfast, etcd", opened.enter_context(two.connect_warm()), two.master.pid, two.address),
            *mooncakes,
            Redis(redis.port, redis.process.pid),
            Memcached(memcached.port, memcached.process.pid),
        ]
