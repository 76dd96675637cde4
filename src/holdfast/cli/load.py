"""Clients that write under load and remember what was acknowledged, and the check that all of it is still there.

A value follows from its key, so that the key gives every byte. The writers keep a pace, so that the load
lasts; after a stop they catch up. Each has a connection of its own, as clients in different processes would.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError
from holdfast.instant import now_seconds

if TYPE_CHECKING:
    from holdfast.client.cache import Cache

MOST_FAULTS_KEPT = 20
GET_AT_ONCE_BYTES = 8 << 20


def value_of(key: str, size_bytes: int) -> bytes:
    return random.Random(key).randbytes(size_bytes)


@dataclass(slots=True)
class Load:
    """The writers together."""

    open_cache: Callable[[], Cache]
    objects: int
    value_size: int
    clients: int
    seconds: float
    acknowledged: list[tuple[float, str]] = field(default_factory=list)
    """When, and which key; appended by all writers."""
    slowest_s: float = 0.0
    failed: int = 0
    faults: list[str] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        for number in range(self.clients):
            share = self.objects // self.clients + (number < self.objects % self.clients)
            thread = threading.Thread(target=self._write, args=(number, share), name=f"writer-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def stop(self, within_s: float) -> bool:
        """End the writers. Returns whether all have ended in time."""
        self._stop.set()
        until = now_seconds() + within_s
        for thread in self._threads:
            thread.join(max(0.0, until - now_seconds()))
        return not self.running

    def _write(self, number: int, share: int) -> None:
        try:
            with self.open_cache() as cache:
                began = now_seconds()
                for step in range(share):
                    due = began + self.seconds * step / share
                    if self._stop.wait(max(0.0, due - now_seconds())):
                        return
                    self._put(cache, f"demo/{number}/{step}")
        except HoldfastError as error:
            self._failed(f"a client could not connect: {error}")

    def _put(self, cache: Cache, key: str) -> None:
        value = value_of(key, self.value_size)
        began = now_seconds()
        try:
            cache.put(key, value)
        except HoldfastError as error:
            # Not acknowledged, so nothing was promised about it; it is counted and shown.
            self._failed(f"put {key}: {error}")
            return
        now = now_seconds()
        with self._lock:
            self.acknowledged.append((now, key))
            self.slowest_s = max(self.slowest_s, now - began)

    def _failed(self, text: str) -> None:
        with self._lock:
            self.failed += 1
            if len(self.faults) < MOST_FAULTS_KEPT:
                self.faults.append(text)

    def since_last_s(self, now: float) -> float:
        return now - self.acknowledged[-1][0] if self.acknowledged else 0.0


def longest_gap_s(times: list[float], after: float) -> float | None:
    """The longest time without an acknowledgement that ended after this instant; None where none came after it."""
    gaps = [later - earlier for earlier, later in pairwise(sorted(times)) if later >= after]
    return max(gaps, default=None)


@dataclass(slots=True)
class Verified:
    right: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.lost and not self.wrong


def verify(cache: Cache, keys: list[str], value_size: int, stop: threading.Event) -> Verified:
    """Read every one of them and compare it byte for byte. `stop` ends it as Ctrl-C does."""
    found = Verified()
    at_once = max(1, min(512, GET_AT_ONCE_BYTES // value_size))
    for start in range(0, len(keys), at_once):
        if stop.is_set():
            raise KeyboardInterrupt
        some = keys[start : start + at_once]
        got = cache.get_many(some)
        for key in some:
            data = got.get(key)
            if data is None:
                found.lost.append(key)
            elif data != value_of(key, value_size):
                found.wrong.append(key)
            else:
                found.right += 1
    return found
