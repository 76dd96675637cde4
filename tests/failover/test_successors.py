"""Durability `standby` with real processes over etcd: one of the two that hold a put is killed, or one after the other,
or both."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from holdfast.client.cache import Cache
from holdfast.errors import HoldfastError
from tests.failover.cluster import SETTLE_S, Cluster, Process
from tests.failover.conftest import place_for
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def three(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("successors")
    with Cluster(folder, place_for("etcd", request, folder), masters=3, leader_ttl_ms=3_000) as cluster:
        yield cluster


@pytest.fixture
def cluster(three: Cluster) -> Cluster:
    three.heal()
    return three


class Puts:
    """A thread that puts with durability `standby` until the block ends; what was acknowledged is in `acked`."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.acked: dict[str, bytes] = {}
        self.errors: list[str] = []
        self._cluster = cluster
        self._name = name
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._put)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "a put hangs past its deadline (I10)"

    def go_on_for(self, count: int) -> None:
        wanted = len(self.acked) + count
        wait_until(lambda: len(self.acked) >= wanted or self.errors, SETTLE_S, f"{count} more puts are acknowledged")
        assert not self.errors, self.errors

    def _put(self) -> None:
        try:
            with self._cluster.connect() as cache:
                for number in itertools.count():
                    if self._stopping.is_set():
                        return
                    key = f"{self._name}/{number}"
                    assert cache.put(key, key.encode(), durability="standby") is True
                    self.acked[key] = key.encode()
        except (HoldfastError, AssertionError) as error:
            self.errors.append(f"{type(error).__name__}: {error}")


def successor_of(cluster: Cluster, primary: Process) -> Process:
    """The master that holds the tail of this primary's log, once there is one."""
    name = wait_until(lambda: primary.status().get("successor"), SETTLE_S, "a successor is named")
    return next(one for one in cluster.masters if one.folder.name == name)


def test_the_primary_is_killed_and_what_its_successor_vouched_for_is_there(cluster: Cluster) -> None:
    """I1: nobody but the successor serves, whoever wins the term first."""
    with Puts(cluster, "killed") as puts:
        for _ in range(2):
            primary = cluster.primary()
            successor = successor_of(cluster, primary)
            puts.go_on_for(100)
            primary.kill()
            assert cluster.primary(but=primary) is successor
            puts.go_on_for(50)
            primary.start()
            primary.wait_until_ready()
    cluster.verify(puts.acked, set())


def test_the_successor_is_killed_and_puts_go_on_with_another(cluster: Cluster) -> None:
    primary = cluster.primary()
    with Puts(cluster, "successor") as puts:
        successor = successor_of(cluster, primary)
        puts.go_on_for(50)
        successor.kill()
        puts.go_on_for(50)
        wait_until(
            lambda: primary.status().get("successor") not in (None, "", successor.folder.name),
            SETTLE_S,
            "another is named",
        )
        puts.go_on_for(50)
    assert cluster.primaries() == [primary]
    successor.start()
    successor.wait_until_ready()
    cluster.verify(puts.acked, set())


def test_successor_and_primary_are_killed_in_turn(cluster: Cluster) -> None:
    """Two failures, and not at once: the records are in the log, or with the next successor, before the second."""
    with Puts(cluster, "turn") as puts:
        primary = cluster.primary()
        first = successor_of(cluster, primary)
        puts.go_on_for(50)
        first.kill()
        wait_until(
            lambda: primary.status().get("successor") not in (None, "", first.folder.name), SETTLE_S, "another is named"
        )
        puts.go_on_for(50)
        second = successor_of(cluster, primary)
        primary.kill()
        assert cluster.primary(but=primary) is second
        puts.go_on_for(50)
        for one in (primary, first):
            one.start()
            one.wait_until_ready()
    cluster.verify(puts.acked, set())


def test_when_both_are_killed_another_master_goes_on_and_says_what_that_may_mean(cluster: Cluster) -> None:
    with cluster.connect() as cache:
        cache.put("both/before", b"x")
        primary, successor, third = stopped_with_a_successor(cluster, cache)
    began = time.monotonic()
    successor.kill()  # First: it would take over within milliseconds. The primary is stopped, and cannot name another.
    primary.kill()
    assert cluster.primary(but=primary) is third
    assert time.monotonic() - began > 3 * cluster.leader_ttl_s, "it has given the successor its time"
    assert "who held the tail of the log, did not come back" in third.said()
    for one in (primary, successor):
        one.start()
        one.wait_until_ready()
    cluster.verify({"both/before": b"x"}, set())


def stopped_with_a_successor(cluster: Cluster, cache: Cache) -> tuple[Process, Process, Process]:
    """A primary that was stopped just now, the successor that its log names, and the third master.

    A successor that answers late, as on a busy machine, is given up: so the log is looked at when nobody writes it."""

    def stopped() -> tuple[Process, Process, Process] | None:
        primary = cluster.primary()
        put_until_named(cache, primary)
        primary.pause()
        stopped_at = time.monotonic()
        others = [one for one in cluster.masters if one is not primary]
        said = [one.status() for one in others]
        # Both have read the same log to its end, and none has taken over.
        if said[0].get("log_index") == said[1].get("log_index") and time.monotonic() < stopped_at + 1:
            for successor, third in (others, others[::-1]):
                if all(one.get("successor") == successor.folder.name for one in said):
                    return primary, successor, third
        primary.resume()
        return None

    return wait_until(stopped, SETTLE_S, "a primary is stopped with a successor")


def test_after_an_orderly_hand_over_nobody_waits_for_a_successor(cluster: Cluster) -> None:
    primary = cluster.primary()
    with cluster.connect() as cache:
        put_until_named(cache, primary)
    for master in cluster.masters:
        master.stop()
    third = next(one for one in cluster.masters if one is not primary)
    third.start()
    third.wait_until_ready()
    assert cluster.primary() is third
    assert "did not come back" not in third.said()


def test_a_master_alone_answers_such_puts_when_they_are_in_the_log(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = place_for("etcd", request, tmp_path)
    with Cluster(tmp_path, place, masters=1, leader_ttl_ms=5_000, durability="standby") as cluster:
        with cluster.connect() as cache:
            assert cache.put("alone", b"x") is True
            assert cache.put_many({"many/1": b"y", "many/2": b"z"}, durability="standby") == 2
        status = cluster.primary().status()
        assert status["successor"] == ""
        cluster.verify({"alone": b"x", "many/1": b"y", "many/2": b"z"}, set())


def put_until_named(cache: Cache, primary: Process) -> None:
    numbers = itertools.count()

    def named() -> bool:
        cache.put(f"named/{next(numbers)}", b"x", durability="standby")
        return bool(primary.status().get("successor"))

    wait_until(named, SETTLE_S, "a successor is named")
