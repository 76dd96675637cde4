"""Servers in a network namespace of their own, the client outside: what TCP does between two machines, without a wire.

holdfast's client maps nothing and takes no Unix socket. Mooncake's lends nothing: a process beside its master does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.measure import interleaved, rate_over
from benchmarks.peer_lines import Line
from benchmarks.peer_stores import (
    LARGE,
    SEGMENT,
    Holdfast,
    Memcached,
    Mooncake,
    Redis,
    Started,
    Store,
    mooncake_client,
    start_memcached,
    start_mooncake,
    start_redis,
    sure,
)
from benchmarks.processes import Cluster

BATCH = 512
VALUE = os.urandom(1 << 10)
HERE, THERE = "198.18.0.1", "198.18.0.2"
"""Of the addresses that are set aside for benchmarks (RFC 2544)."""


LENT = b"lent: "


class Forbidden(Exception):
    """This process may not make namespaces."""


def measure_network(rounds: int, batches: int, large: int, say: Callable[[str], None]) -> list[Line]:
    with ExitStack() as opened:
        try:
            inside = opened.enter_context(namespace())
        except Forbidden as error:
            say(f"left out: TCP between network namespaces ({error})")
            return []
        stores = _stores(opened, inside)

        def turn(verb: str, store: Store, number: int) -> float:
            names = [f"network/{number}/{each}" for each in range(batches)]
            if "16 MiB" in verb:
                return _large(verb, store, number, large)
            call = store.put_many if verb == "put" else lambda keys, _: _sure(store, store.get_many(keys))
            return BATCH * rate_over(lambda name: call([f"{name}/{at}" for at in range(BATCH)], VALUE), names)

        verbs = {"put": "keys/s", "get": "keys/s", "put 16 MiB": "GiB/s", "get 16 MiB": "GiB/s"}
        turns: dict[str, Callable[[int], float]] = {
            f"{verb} {store.name}": lambda number, verb=verb, store=store: turn(verb, store, number)  # type: ignore[misc]
            for verb in verbs
            for store in stores
        }
        figures = interleaved(rounds, turns)
    return [
        Line(
            f"{verb if '16 MiB' in verb else f'{verb}, 1 KiB, {BATCH} keys'}, over TCP between namespaces",
            unit,
            {store.name: figures[f"{verb} {store.name}"] for store in stores},
        )
        for verb, unit in verbs.items()
    ]


def _sure(store: Store, found: int) -> None:
    if found != BATCH:
        raise SystemExit(f"{store.name} does not have what was put")


def _large(verb: str, store: Store, number: int, count: int) -> float:
    keys = [f"network/large/{number}/{each}" for each in range(count)]
    figure = rate_over(store.put_large if verb.startswith("put") else store.get_large, keys) * LARGE / (1 << 30)
    if verb.startswith("get"):
        store.remove_many(keys)
    return figure


@contextmanager
def namespace() -> Iterator[tuple[str, ...]]:
    """A network namespace that reaches this one over a pair of interfaces: how commands begin that run in it."""
    name = f"holdfast-{os.getpid()}"
    link = f"hf{os.getpid()}"
    try:
        _run("ip", "netns", "add", name)
    except OSError as error:
        raise Forbidden(str(error)) from None
    try:
        try:
            _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "address", "add", f"{HERE}/30", "dev", link)
            _run("ip", "link", "set", link, "up")
            for each in (
                ("link", "set", "lo", "up"),
                ("address", "add", f"{THERE}/30", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
            ):
                _run("ip", "-n", name, *each)
        except OSError as error:
            raise Forbidden(str(error)) from None
        yield ("ip", "netns", "exec", name)
    finally:
        # The pair of interfaces goes with it.
        _run("ip", "netns", "delete", name)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


class ClusterInside(Cluster):
    """A master and a node in a namespace, whose clients are outside."""

    def __init__(self, size: str, inside: tuple[str, ...]) -> None:
        super().__init__(size)
        self._inside = inside

    def _popen(self, command: list[str], **options: object) -> subprocess.Popen[bytes]:  # type: ignore[override]
        return subprocess.Popen([*self._inside, *command], **options)  # type: ignore[call-overload, no-any-return]

    def _start(self, kind: str, *flags: str, listen: str = "") -> dict[str, str]:
        return super()._start(kind, *flags, "--insecure", listen=f"{THERE}:0")


def _stores(opened: ExitStack, inside: tuple[str, ...]) -> list[Store]:
    started = Started(opened)
    redis = started.start("redis", start_redis, host=THERE, inside=inside)
    memcached = started.start("memcached", start_memcached, host=THERE, inside=inside)
    cluster = opened.enter_context(ClusterInside("2GiB", inside))
    ours = opened.enter_context(cluster.connect(shared_memory=False))
    master = started.start("mooncake", start_mooncake, host=THERE, inside=inside)
    segment = opened.enter_context(_lender(f"{THERE}:{master.port}", inside))
    mooncake = MooncakeAfar(f"{THERE}:{master.port}", master.process.pid, segment)
    opened.callback(mooncake.store.close)
    return [
        Holdfast("holdfast", ours, cluster.master.pid),
        mooncake,
        Redis(redis.port, redis.process.pid, THERE),
        Memcached(memcached.port, memcached.process.pid, THERE),
    ]


class MooncakeAfar(Mooncake):
    """It puts into what a process in the namespace lends. A client must lend memory too, and would prefer its own."""

    def __init__(self, master: str, pid: int, segment: str) -> None:
        from mooncake.store import ReplicateConfig  # type: ignore[import-not-found, unused-ignore]

        super().__init__("Mooncake", master, pid, 16 << 20, HERE)
        self._there = ReplicateConfig()
        self._there.preferred_segment = segment

    def put_many(self, keys: list[str], value: bytes) -> None:
        sure(self.store.put_batch(keys, [value] * len(keys), self._there) == 0, "put_batch")

    def put_large(self, key: str) -> None:
        sure(self.store.put_from(key, self.at, LARGE, self._there) == 0, "put_from")


@contextmanager
def _lender(master: str, inside: tuple[str, ...]) -> Iterator[str]:
    """A process in the namespace that lends its memory to Mooncake; the name of that memory."""
    command = [*inside, sys.executable, "-m", "benchmarks.peer_network", master]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None, "it has a pipe"
        said = next((line for line in iter(process.stdout.readline, b"") if line.startswith(LENT)), None)
        if said is None:
            raise SystemExit("Mooncake's memory was not lent")
        yield said.removeprefix(LENT).decode().strip()
    finally:
        process.kill()
        process.wait()


def main() -> int:
    """Lend memory to the Mooncake master of this address, until this is killed or its parent is gone."""
    store = mooncake_client(sys.argv[1], SEGMENT, THERE)
    print(f"{LENT.decode()}{store.get_hostname()}", flush=True)
    sys.stdin.read()
    os._exit(0)  # Mooncake's threads do not end by themselves.


if __name__ == "__main__":
    sys.exit(main())
