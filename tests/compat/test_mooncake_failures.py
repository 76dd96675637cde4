"""Failures are misses: masters and nodes are killed, stopped and cut off under the drop-in's traffic.

Whatever happens, a call answers in time, by an error code or a miss; never by an exception, never by other bytes."""

from __future__ import annotations

import ctypes
import random
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.compat.mooncake.store import MooncakeDistributedStore
from holdfast.instant import now_seconds
from tests.compat.conftest import set_up
from tests.failover.cluster import Cluster
from tests.waiting import wait_until

CALL_S = 3.0
"""What the calls are given; what they may take is more, since this machine may be busy."""
ANSWERED_S = 30.0
SIZE = 20_000
KEYS = 40


def value_of(key: str) -> bytes:
    return random.Random(zlib.crc32(key.encode())).randbytes(SIZE)


class Traffic(threading.Thread):
    """Puts, gets and probes until it is told to stop. What it saw that must not be is in `wrong`."""

    def __init__(self, store: MooncakeDistributedStore, seed: int) -> None:
        super().__init__(daemon=True)
        self._store = store
        self._random = random.Random(seed)
        self._buffer = ctypes.create_string_buffer(4 * SIZE)
        self.ended = threading.Event()
        self.wrong: list[str] = []
        self.hits = 0
        self.failures = 0
        self.rounds = 0

    def run(self) -> None:
        steps = (self._put, self._get, self._get_into, self._sessions, self._probe)
        while not self.ended.is_set():
            began = now_seconds()
            step = self._random.choice(steps)
            try:
                step([f"key/{self._random.randrange(KEYS)}" for _ in range(4)])
            except Exception as error:  # noqa: BLE001 - any is a defect, and is told.
                self.wrong.append(f"{step.__name__} raised {error!r}")
            took = now_seconds() - began
            if took > ANSWERED_S:
                self.wrong.append(f"{step.__name__} took {took:.1f} s")
            self.rounds += 1

    def _count(self, codes: list[int]) -> None:
        self.failures += sum(code < 0 and code != -704 for code in codes)

    def _put(self, keys: list[str]) -> None:
        values = [value_of(key) for key in keys]
        addresses = []
        for number, value in enumerate(values):
            address = ctypes.addressof(self._buffer) + number * SIZE
            ctypes.memmove(address, value, SIZE)
            addresses.append(address)
        self._count(self._store.batch_put_from(keys, addresses, [SIZE] * len(keys)))

    def _get(self, keys: list[str]) -> None:
        for key, found in zip(keys, self._store.get_batch(keys), strict=True):
            self._check(key, found, bool(found))

    def _get_into(self, keys: list[str]) -> None:
        addresses = [ctypes.addressof(self._buffer) + number * SIZE for number in range(len(keys))]
        codes = self._store.batch_get_into(keys, addresses, [SIZE] * len(keys))
        self._count(codes)
        for key, address, code in zip(keys, addresses, codes, strict=True):
            self._check(key, ctypes.string_at(address, SIZE), code > 0)

    def _sessions(self, keys: list[str]) -> None:
        started = self._store.batch_get_session_start(keys)
        self._count(started)
        open_now = [key for key, code in zip(keys, started, strict=True) if code == 0]
        address = ctypes.addressof(self._buffer)
        for key in dict.fromkeys(open_now):
            (code,) = self._store.batch_get_into_multi_buffer_ranges([key], [[address]], [[100]], [[50]])
            if code > 0 and ctypes.string_at(address, 100) != value_of(key)[50:150]:
                self.wrong.append(f"other bytes in a range of {key}")
        self._store.batch_get_session_end(open_now)

    def _probe(self, keys: list[str]) -> None:
        self._count(self._store.batch_is_exist(keys))

    def _check(self, key: str, found: bytes, hit: bool) -> None:
        if hit:
            self.hits += 1
            if found != value_of(key):
                self.wrong.append(f"other bytes under {key}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("mooncake")
    with Cluster(folder, f"sqlite://{folder / 'cluster.db'}", nodes=2, size="64MiB", lease_ttl_ms=20_000) as started:
        yield started


@pytest.fixture
def traffic(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Traffic]]:
    monkeypatch.setenv("HOLDFAST_TIMEOUT", str(CALL_S))
    monkeypatch.setenv("HOLDFAST_MOONCAKE_PUT_TIMEOUT", str(CALL_S))
    cluster.heal()
    store = MooncakeDistributedStore()
    assert set_up(store, cluster.address) == 0
    workers = [Traffic(store, seed) for seed in range(2)]
    for worker in workers:
        worker.start()
    try:
        wait_until(lambda: all(worker.hits > 5 for worker in workers), 90, "the traffic has hits")
        yield workers
        for worker in workers:
            worker.ended.set()
        for worker in workers:
            worker.join(2 * ANSWERED_S)
        assert not any(worker.is_alive() for worker in workers)
        assert [wrong for worker in workers for wrong in worker.wrong] == []
    finally:
        for worker in workers:
            worker.ended.set()
        store.close()


def goes_on(traffic: list[Traffic]) -> None:
    """Rounds are made, and there are hits again."""
    grows(traffic, lambda worker: worker.hits, "the traffic has hits again")


def grows(traffic: list[Traffic], count: Callable[[Traffic], int], what: str) -> None:
    counted = [count(worker) for worker in traffic]
    wait_until(lambda: all(count(one) > before for one, before in zip(traffic, counted, strict=True)), 90, what)


def test_a_primary_is_killed(cluster: Cluster, traffic: list[Traffic]) -> None:
    dead = cluster.primary()
    dead.kill()
    cluster.primary(but=dead)
    goes_on(traffic)


def test_a_primary_is_stopped_and_goes_on(cluster: Cluster, traffic: list[Traffic]) -> None:
    stopped = cluster.primary()
    stopped.pause()
    cluster.primary(but=stopped)
    goes_on(traffic)
    stopped.resume()
    goes_on(traffic)


def test_a_node_is_killed(cluster: Cluster, traffic: list[Traffic]) -> None:
    cluster.nodes[0].kill()
    goes_on(traffic)


def test_a_node_is_stopped(cluster: Cluster, traffic: list[Traffic]) -> None:
    cluster.nodes[1].pause()
    goes_on(traffic)
    cluster.nodes[1].resume()
    goes_on(traffic)


def fail_by_codes(traffic: list[Traffic]) -> None:
    grows(traffic, lambda worker: worker.failures, "calls fail by their codes")


def test_masters_run_and_are_silent(cluster: Cluster, traffic: list[Traffic]) -> None:
    """As behind a cut network: connections stay, and nothing comes."""
    for master in cluster.masters:
        master.pause()
    fail_by_codes(traffic)
    for master in cluster.masters:
        master.resume()
    goes_on(traffic)


def test_all_masters_are_gone(cluster: Cluster, traffic: list[Traffic]) -> None:
    """Codes and misses, in time, until they are back."""
    for master in cluster.masters:
        master.kill()
    fail_by_codes(traffic)
    cluster.revive()
    goes_on(traffic)


@pytest.fixture
def store(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[MooncakeDistributedStore]:
    monkeypatch.setenv("HOLDFAST_TIMEOUT", str(CALL_S))
    monkeypatch.setenv("HOLDFAST_MOONCAKE_PUT_TIMEOUT", str(CALL_S))
    cluster.heal()
    made = MooncakeDistributedStore()
    assert set_up(made, cluster.address) == 0
    yield made
    made.close()


FIRST_CALLS: dict[str, Callable[[MooncakeDistributedStore], bool]] = {
    "put": lambda store: store.put("outage/new", b"x") < 0,
    "probe": lambda store: store.is_exist("outage/new") < 0,
    "get": lambda store: store.get("outage/new") == b"",
    "session": lambda store: store.batch_put_session_start(["outage/new"], [10])[0] < 0,
}
AFTERWARDS = 10


@pytest.mark.parametrize("first", FIRST_CALLS)
def test_an_outage_is_paid_for_once(cluster: Cluster, store: MooncakeDistributedStore, first: str) -> None:
    """Masters that are silent cost the first call its timeout. Each of the others would take as long as that one."""
    for master in cluster.masters:
        master.pause()
    began = now_seconds()
    assert FIRST_CALLS[first](store)
    first_took = now_seconds() - began
    began = now_seconds()
    for _ in range(AFTERWARDS):
        assert all(call(store) for call in FIRST_CALLS.values())
        assert store.health_check() != 0
        assert now_seconds() - began < AFTERWARDS * first_took
    for master in cluster.masters:
        master.resume()
    wait_until(lambda: store.put("outage/after", b"x") == 0, 90, "puts are stored again")


def test_sessions_in_an_outage(cluster: Cluster, store: MooncakeDistributedStore) -> None:
    """What is leased is read without a master; an end that nobody hears ends the session all the same."""
    buffer = ctypes.create_string_buffer(value_of("session/there"), SIZE)
    address = ctypes.addressof(buffer)
    assert store.put("session/there", value_of("session/there")) == 0
    assert store.batch_get_session_start(["session/there"]) == [0]
    assert store.batch_put_session_start(["session/new", "session/first"], [SIZE, SIZE]) == [0, 0]
    assert store.batch_put_from_multi_buffer_ranges(["session/first"], [[address]], [[SIZE]], [[0]]) == [SIZE]
    for master in cluster.masters:
        master.pause()
    assert store.batch_put_session_end(["session/first"])[0] < 0
    assert store._link is not None
    assert not store._link.shared.is_up, "whatever call finds no master, the next ones do not wait"
    assert store.batch_put_from_multi_buffer_ranges(["session/new"], [[address]], [[SIZE]], [[0]]) == [SIZE]
    buffer.raw = bytes(SIZE)
    assert store.batch_get_into_multi_buffer_ranges(["session/there"], [[address]], [[SIZE]], [[0]]) == [SIZE]
    assert buffer.raw == value_of("session/there")
    assert store.get("session/there") == value_of("session/there")
    assert store.batch_get_session_end(["session/there"]) == 0
    assert store.batch_put_session_end(["session/new"])[0] < 0
    for master in cluster.masters:
        master.resume()
    # -600 would say that a session of this key is open.
    wait_until(lambda: store.batch_put_session_start(["session/new"], [SIZE]) == [0], 90, "another session begins")
    assert store.is_exist("session/new") <= 0
