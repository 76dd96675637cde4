"""Floods against a real master, in short: good clients and nodes are served meanwhile, and it stays the same master.

Counts and survival only; how long good clients wait is measured by `python -m benchmarks --only floods`.
"""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from multiprocessing.pool import ThreadPool

import pytest

from benchmarks.floods import FLOODS, Attacker
from benchmarks.processes import memory_of
from holdfast.addresses import split_address
from holdfast.messages.requests import Exists, Failed, GetStatus, Hello, Welcome
from holdfast.wire.codec import PREAMBLE, encode, frame
from tests.e2e.rig import Rig, raw_connection
from tests.e2e.test_hostile_peers import receive
from tests.waiting import wait_until

SECONDS = 1.0
SHARE = 0.1
"""Of the connections and requests of the benchmark."""
GROWTH = 64 << 20


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig("32MiB") as rig:
        yield rig


def http_of(rig: Rig) -> str:
    return rig.masters["master-0"][1]["http"]


@pytest.mark.parametrize("name", FLOODS)
def test_good_clients_are_served_beside_a_flood_i17(rig: Rig, name: str) -> None:
    master, before = rig.master.pid, rig.master_rss()
    attacker = Attacker(rig.address, http_of(rig), SECONDS, SHARE)
    with rig.connect() as cache, ThreadPool(1) as pool:
        playing = pool.apply_async(FLOODS[name], (attacker,))
        number = 0
        while not playing.ready():
            number += 1
            assert cache.put(f"{name}/{number}", b"good")
            assert cache.get(f"{name}/{number}") == b"good"
            cache.remove(f"{name}/{number}", force=True)
        playing.get()
        attacker.close()
        assert number > 0
    with rig.connect() as late:
        assert late.put("after", b"1") or late.exists("after")
    assert rig.master.poll() is None
    assert rig.master.pid == master
    assert memory_of(master) - before < GROWTH


def test_a_node_and_an_operator_get_in_beside_more_clients_than_there_may_be() -> None:
    """Every client's place is taken by one that does nothing."""
    with Rig("32MiB", max_connections=64) as rig:
        attacker = Attacker(rig.address, http_of(rig), 60, 1.0)
        for _ in range(70):
            attacker.connect()
        with raw_connection(rig.address) as client:
            client.sendall(PREAMBLE + frame(1, 1_000, encode(Hello(98))) + frame(2, 1_000, encode(Exists(["k"]))))
            assert isinstance(receive(client), Welcome)
            refused = receive(client)
            assert isinstance(refused, Failed)
            assert refused.code == "try_again"
        rig.add_node("another")
        with raw_connection(rig.address) as operator:
            operator.sendall(PREAMBLE + frame(1, 1_000, encode(Hello(99, looks=True))))
            assert isinstance(receive(operator), Welcome)
            operator.sendall(frame(2, 1_000, encode(GetStatus())))
            assert not isinstance(receive(operator), Failed)
        attacker.close()
        with rig.connect() as cache:
            assert cache.put("k", b"1")
            wait_until(lambda: len(cache.nodes().nodes) == 2, 60, "both nodes are known")


def test_a_master_without_descriptors_serves_those_whom_it_has_and_others_when_there_are_some() -> None:
    with Rig("32MiB") as rig, rig.connect() as cache:
        cache.put("k", b"1")
        resource.prlimit(rig.master.pid, resource.RLIMIT_NOFILE, (100, 100))
        with contextlib.ExitStack() as held:
            for _ in range(300):
                held.enter_context(socket.create_connection(split_address(rig.address), timeout=30))
            assert cache.put("l", b"2")
            assert cache.get("l") == b"2"
        assert rig.master.poll() is None
        with rig.connect() as other:
            assert other.get("k") == b"1"
