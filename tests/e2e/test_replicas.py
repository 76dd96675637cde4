"""Replicas of real processes: made again when a node dies, moved away when one is drained, under reads all the time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import holdfast
from benchmarks.processes import memory_of
from holdfast.errors import HoldfastError, NoRoom, WouldEvict
from holdfast.messages.requests import ChangeCopying, ChangeMode, NodeInfo, ResizeNode, RevokeWrites
from tests.client.inside import core_of
from tests.e2e.rig import Rig
from tests.waiting import wait_until

KIB, MIB = 1 << 10, 1 << 20
SHORT = {"session_lease_ms": 1_000, "session_reply_left_ms": 500, "session_jeopardy_ms": 500}


def node_of(cache: holdfast.Cache, name: str) -> NodeInfo:
    return next(node for node in cache.nodes().nodes if node.name == name)


def replicas_of(cache: holdfast.Cache, key: str) -> list[tuple[str, str]]:
    return [(replica.kind, replica.node) for replica in cache.stat(key).replicas]


@contextmanager
def reading(rig: Rig, items: dict[str, bytes], shared_memory: bool = True) -> Iterator[list[int]]:
    """Reads all keys over and over in a thread of its own; a failed or wrong read fails the test at the end."""
    stop = threading.Event()
    failures: list[BaseException] = []
    rounds = [0]

    def read() -> None:
        try:
            with rig.connect(shared_memory=shared_memory) as cache:
                while not stop.is_set():
                    for key, data in items.items():
                        assert cache.get(key) == data, f"{key} is another's"
                    rounds[0] += 1
        except (AssertionError, HoldfastError) as error:
            failures.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield rounds
        before = rounds[0]
        wait_until(lambda: rounds[0] > before + 1 or failures, what="reads go on")
    finally:
        stop.set()
        thread.join(60)
    assert not failures, failures[0]
    assert not thread.is_alive()


def test_lost_replicas_are_made_again_while_reads_go_on() -> None:
    with Rig("64MiB", nodes=3, **SHORT) as rig, rig.connect() as cache:
        items = {f"k{i}": os.urandom(64 * KIB) for i in range(150)}
        assert cache.put_many(items, replicas=2) == len(items)
        with reading(rig, items, shared_memory=False):
            rig.kill(rig.nodes[0])
            wait_until(
                lambda: all(len({node for _, node in replicas_of(cache, key)} - {"bench-0"}) == 2 for key in items),
                deadline_s=60,
                what="every object has two replicas again",
            )
        rig.kill(rig.nodes[1])
        with rig.connect() as fresh:
            assert fresh.get_many(items) == items, "the new replicas hold the right bytes"


@pytest.mark.parametrize("signal_sent", [signal.SIGKILL, signal.SIGSTOP])
def test_no_read_waits_for_a_node_that_is_killed_or_stopped(signal_sent: signal.Signals) -> None:
    """I2, I10: a stopped node keeps its connections open and says nothing, for longer than these reads have time."""
    with Rig("64MiB", nodes=2) as rig, rig.connect() as writer:
        items = {f"k{i}": os.urandom(64 * KIB) for i in range(20)}
        assert writer.put_many(items, replicas=2) == len(items)
        hurried = {"timeout": 1.8}
        with (
            rig.connect(shared_memory=False, **hurried) as remote,
            rig.connect(shared_memory=False, **hurried) as batches,
            rig.connect(**hurried) as mapped,
        ):
            assert remote.get_many(items) == batches.get_many(items) == mapped.get_many(items) == items
            rig.nodes[0].send_signal(signal_sent)
            assert {key: remote.get(key) for key in items} == items
            assert batches.get_many(items) == items
            assert mapped.get_many(items) == items
            with rig.connect(**hurried) as fresh:
                assert {key: fresh.get(key) for key in items} == items
        rig.nodes[0].send_signal(signal.SIGCONT)


def test_a_node_is_drained_under_reads_and_ends_empty() -> None:
    """No read fails (I2), the node can be stopped afterwards, and nothing is lost."""
    with Rig("64MiB", nodes=2, lease_ttl_ms=1_000, **SHORT) as rig, rig.connect() as cache:
        items = {f"k{i}": os.urandom(100 * KIB) for i in range(200)}
        assert cache.put_many(items) == len(items)
        assert any(("MEMORY", "bench-0") in replicas_of(cache, key) for key in items)
        with reading(rig, items), reading(rig, items, shared_memory=False), cache.view("k0") as view:
            cache.operate(ChangeMode("bench-0", "draining"))
            # Its readers' leases end, or their ranges stay until they do.
            wait_until(lambda: bytes(view) == items["k0"], what="a view shows its object all along")
            wait_until(
                lambda: all(("MEMORY", "bench-0") not in replicas_of(cache, key) for key in items),
                deadline_s=60,
                what="every object is elsewhere",
            )
            assert bytes(view) == items["k0"]
        wait_until(lambda: node_of(cache, "bench-0").bytes_left == 0, deadline_s=60, what="the node is empty")
        rig.nodes[0].send_signal(signal.SIGTERM)
        rig.nodes[0].wait(30)
        assert cache.get_many(items) == items


def test_a_drain_survives_the_primarys_death_and_can_be_cancelled() -> None:
    """The mode is in the log; a new primary goes on with what is left (I15)."""
    rules = {"lease_ttl_ms": 500, **SHORT}
    with Rig("64MiB", nodes=2, masters=2, coordination="sqlite", **rules) as rig, rig.connect() as cache:
        cache.operate(ChangeCopying(1 * MIB))
        items = {f"k{i}": os.urandom(100 * KIB) for i in range(150)}
        assert cache.put_many(items) == len(items)
        cache.operate(ChangeMode("bench-0", "draining"))
        assert node_of(cache, "bench-0").objects_left > 0
        rig.kill(rig.masters[cache.status().name][0])
        assert node_of(cache, "bench-0").mode == "draining"
        cache.operate(ChangeCopying(0))
        wait_until(lambda: node_of(cache, "bench-0").bytes_left == 0, deadline_s=60, what="the node is empty")
        assert cache.get_many(items) == items
        cache.operate(ChangeMode("bench-0", "open"))
        assert cache.put("new", b"x" * KIB, prefer=["bench-0"])
        assert replicas_of(cache, "new") == [("MEMORY", "bench-0")]


def test_a_drain_with_nowhere_to_go_says_so() -> None:
    with Rig("32MiB", **SHORT) as rig, rig.connect() as cache:
        cache.put("k", b"x" * KIB)
        with pytest.raises(WouldEvict, match="no other node"):
            cache.operate(ChangeMode("bench-0", "draining"))
        cache.operate(ChangeMode("bench-0", "draining", evict=True))
        wait_until(lambda: "nowhere to go" in node_of(cache, "bench-0").waits_for, what="the reason is said")
        assert cache.get("k") == b"x" * KIB
        with rig.connect() as hurried, pytest.raises(NoRoom):
            hurried.timeout = 1.0
            hurried.put("l", b"x")


def test_a_node_grows_and_shrinks_while_it_serves() -> None:
    with Rig("32MiB", lease_ttl_ms=500, **SHORT) as rig, rig.connect() as cache:
        cache.operate(ResizeNode("bench-0", 96 * MIB))
        wait_until(lambda: node_of(cache, "bench-0").capacity_bytes == 96 * MIB, what="another segment is mounted")
        items = {f"k{i}": os.urandom(MIB) for i in range(40)}
        assert cache.put_many(items) == len(items)
        assert cache.get_many(items) == items
        before = memory_of(rig.nodes[0].pid, "RssShmem")
        with reading(rig, items):
            cache.operate(ResizeNode("bench-0", 64 * MIB))
            wait_until(lambda: node_of(cache, "bench-0").bytes_left == 0, deadline_s=60, what="the tail is empty")
            wait_until(lambda: memory_of(rig.nodes[0].pid, "RssShmem") < before - 16 * MIB, what="memory is given back")
        assert node_of(cache, "bench-0").capacity_bytes == 64 * MIB
        assert cache.get_many(items) == items
        cache.timeout = 1.0
        with pytest.raises(NoRoom):
            cache.operate(ResizeNode("bench-0", 4 * MIB))


def test_a_client_whose_writes_are_revoked_is_refused_over_tcp() -> None:
    with Rig("32MiB", **SHORT) as rig, rig.connect() as cache, rig.connect(shared_memory=False) as other:
        assert other.put("k", b"x" * KIB)
        other.timeout = 2.0
        cache.operate(RevokeWrites(core_of(other).grants.client))

        def refused() -> bool:
            try:
                other.put(os.urandom(8).hex(), b"x" * MIB)
            except HoldfastError:
                return True
            return False

        wait_until(refused, what="the node has heard of it")
        assert cache.put("mine", b"x" * MIB), "others write on"
