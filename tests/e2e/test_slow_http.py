"""A crowd at the HTTP port of a primary: half-open connections, and headers that come byte by byte.

Clients put and get meanwhile as if nothing happened, and a probe is answered."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.error
import urllib.request

from benchmarks.processes import memory_of
from holdfast.addresses import split_address
from tests.e2e.rig import Rig
from tests.waiting import wait_until

CROWD = 400
ROUNDS = 400
MOST_GROWTH = 64 << 20


class SlowCrowd:
    """Keeps this many connections open or in the making, and sends one byte of a header over each in turn."""

    def __init__(self, address: str, count: int) -> None:
        self._address = split_address(address)
        self._count = count
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.opened = 0
        self.sent = 0

    def __enter__(self) -> SlowCrowd:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(60)

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            crowd = [self._new(stack) for _ in range(self._count)]
            while not self._ends.wait(0.05):
                for place, one in enumerate(crowd):
                    try:
                        one.send(b"G" if place % 2 else b"")
                        self.sent += 1
                    except BlockingIOError:
                        pass
                    except OSError:
                        one.close()
                        crowd[place] = self._new(stack)

    def _new(self, stack: contextlib.ExitStack) -> socket.socket:
        one = stack.enter_context(socket.socket())
        one.setblocking(False)
        one.connect_ex(self._address)
        self.opened += 1
        return one


def is_healthy(http: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{http}/healthz", timeout=20) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):  # Its place was taken, as may happen to anybody there.
        return False


def test_a_slow_crowd_at_the_http_port_costs_clients_nothing() -> None:
    """I10, I17: no failover, no error, bounded memory."""
    with Rig("64MiB", masters=2, coordination="sqlite") as rig, rig.connect() as cache:
        cache.put("first", b"x" * 1000)
        before = cache.status()
        process, facts = rig.masters[before.name]
        memory_before = memory_of(process.pid)
        with SlowCrowd(facts["http"], CROWD) as crowd:
            wait_until(lambda: crowd.opened >= CROWD and crowd.sent > 1000, 60, "the crowd is there")
            for number in range(ROUNDS):
                assert cache.put(f"key/{number}", b"%06d" % number * 100)
                assert cache.get(f"key/{number}") == b"%06d" % number * 100
            wait_until(lambda: is_healthy(facts["http"]), 60, "a probe is answered")
            grown = memory_of(process.pid) - memory_before
        after = cache.status()
    assert (after.name, after.epoch) == (before.name, before.epoch)
    assert grown < MOST_GROWTH
