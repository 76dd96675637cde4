"""Puts while a node is killed: none is acknowledged into the memory of a process that is dead."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import holdfast
from holdfast import errors
from holdfast.client.cache import Cache
from tests import prefork
from tests.e2e.rig import Rig
from tests.waiting import wait_until

KIB = 1 << 10
MIB = 1 << 20
Put = Callable[..., bool]


@contextmanager
def putting(rig: Rig, shell: str, shared_memory: bool = True, timeout: float = 60) -> Iterator[Put]:
    """`put` of one client of either shell."""
    if shell == "blocking":
        with rig.connect(shared_memory=shared_memory, timeout=timeout) as cache:
            yield cache.put
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(awaitable: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(awaitable, loop).result(90)

    async def connect() -> Any:
        return await holdfast.connect_async(rig.address, shared_memory=shared_memory, timeout=timeout)

    try:
        cache = run(connect())
        try:
            yield lambda *given, **more: run(cache.put(*given, **more))
        finally:
            run(cache.close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def segments_of(cache: Cache, key: str) -> list[int]:
    """Where it lies. A segment's handle is of one boot of its node, and never given to another."""
    return [replica.segment for replica in cache.stat(key).replicas]


def segment_on(cache: Cache, node: str) -> int:
    """A segment of this node, by a put that prefers it."""
    assert cache.put(f"on {node}", b"v", prefer=[node])
    [replica] = cache.stat(f"on {node}").replicas
    assert replica.node == node
    return replica.segment


def test_puts_after_a_nodes_death_are_stored_elsewhere() -> None:
    """They were acknowledged into the rest of the grant that the client held there, and were lost."""
    with Rig("256MiB", nodes=2) as rig, rig.connect() as looking, ExitStack() as open_clients:
        dead = segment_on(looking, "bench-0")
        clients = {
            f"{shell} {mapped} {size}": (open_clients.enter_context(putting(rig, shell, mapped)), b"v" * size)
            for shell in ("blocking", "asyncio")
            for mapped in (True, False)
            for size in (KIB, 2 * MIB)  # In a held grant, and in a row with memory ahead.
        }
        for name, (put, value) in clients.items():
            for i in range(3):
                assert put(f"{name} before {i}", value, prefer=["bench-0"])
            assert segments_of(looking, f"{name} before 2") == [dead]
        rig.kill(rig.nodes[0])
        for name, (put, value) in clients.items():
            for i in range(21 if len(value) == KIB else 3):
                assert put(f"{name} after {i}", value, prefer=["bench-0"])
                assert dead not in segments_of(looking, f"{name} after {i}")
            assert looking.get(f"{name} after 0") == value


@pytest.mark.parametrize("shell", ["blocking", "asyncio"])
def test_without_another_node_they_are_not_acknowledged_until_it_is_back(shell: str) -> None:
    with Rig("64MiB") as rig, rig.connect() as looking, putting(rig, shell, timeout=3) as put:
        assert put("before", b"v" * KIB)
        rig.kill(rig.nodes[0])
        with pytest.raises(errors.TryAgain):
            put("after", b"v" * KIB)
        assert not looking.exists("after")
        rig.add_node("bench-0")
        assert put("again", b"v" * KIB)
        assert looking.get("again") == b"v" * KIB


def test_a_node_killed_under_puts_holds_none_that_began_after_its_death() -> None:
    """The kill falls anywhere in a put; threads share the held grant."""
    with Rig("128MiB", nodes=2) as rig, rig.connect() as looking:
        dead = segment_on(looking, "bench-0")
        acknowledged: list[tuple[float, str]] = []
        ended = threading.Event()

        def loop(cache: Cache, worker: int) -> None:
            number = 0
            while not ended.is_set():
                number += 1
                key, began = f"{worker}/{number}", time.monotonic()
                if cache.put(key, b"v" * KIB, prefer=["bench-0"]):
                    acknowledged.append((began, key))

        with rig.connect() as cache:
            workers = [threading.Thread(target=loop, args=(cache, worker)) for worker in range(2)]
            for worker in workers:
                worker.start()
            try:
                wait_until(lambda: len(acknowledged) > 200, what="puts are under way")
                rig.kill(rig.nodes[0])
                died = time.monotonic()
                wait_until(lambda: len([at for at, _ in acknowledged if at > died]) > 100, what="they go on elsewhere")
            finally:
                ended.set()
                for worker in workers:
                    worker.join(60)
        after = [key for began, key in acknowledged if began > died]
        assert all(dead not in segments_of(looking, key) for key in after)
        assert any(dead in segments_of(looking, key) for began, key in acknowledged if began < died), (
            "it held some before"
        )


def test_a_batch_goes_on_where_nodes_live() -> None:
    with Rig("128MiB", nodes=2) as rig, rig.connect() as cache:
        dead = segment_on(cache, "bench-0")
        assert cache.put("before", b"v" * KIB, prefer=["bench-0"])
        rig.kill(rig.nodes[0])
        batch = {f"b{i}": b"v" * 10_000 for i in range(500)}
        assert cache.put_many(batch, prefer=["bench-0"]) == 500
        assert all(dead not in segments_of(cache, key) for key in batch)


def test_two_replicas_are_two_that_live() -> None:
    """A put that says two has two: with one of its nodes dead it takes another grant, and waits where there is none."""
    with Rig("64MiB", nodes=3) as rig, rig.connect() as cache:
        names = ["bench-0", "bench-1"]
        dead = segment_on(cache, "bench-0")
        assert cache.put("before", b"v" * KIB, replicas=2, prefer=names)
        assert dead in segments_of(cache, "before")
        rig.kill(rig.nodes[0])
        for i in range(5):
            assert cache.put(f"after{i}", b"v" * KIB, replicas=2, prefer=names)
            found = segments_of(cache, f"after{i}")
            assert dead not in found
            assert len(found) == 2


def test_puts_of_two_replicas_while_a_node_is_away_wait_or_go_on_with_one() -> None:
    """They got BadValue once the node was unmounted, as if asking again were of no use. Then with degraded puts."""
    flags = {"session_lease_ms": 1_000, "session_reply_left_ms": 500, "session_jeopardy_ms": 0}
    with Rig("64MiB", nodes=2, **flags) as rig, rig.connect() as cache, rig.connect(timeout=3) as hurried:
        assert cache.put("before", b"v" * KIB, replicas=2)
        rig.kill(rig.nodes[1])
        wait_until(lambda: len(cache.nodes().nodes) == 1, 60, "it is unmounted")
        with pytest.raises(errors.TryAgain, match="1 node"):
            hurried.put("alone", b"v" * KIB, replicas=2)
        with pytest.raises(errors.BadValue, match="never more than 2"):
            hurried.put("more", b"v" * KIB, replicas=3)
        changed = prefork.holdfast("settings", "degraded_puts=true", "--address", rig.address)
        assert changed.returncode == 0, changed.stderr
        assert cache.put("alone", b"v" * KIB, replicas=2)
        assert len(cache.stat("alone").replicas) == 1
        rig.add_node("bench-1")
        wait_until(lambda: len(cache.stat("alone").replicas) == 2, 60, "it is made whole when the node is back")
