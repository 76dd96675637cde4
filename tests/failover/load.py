"""Clients at work while the cluster is tormented: what they were told is remembered, to be held against it later."""

from __future__ import annotations

import itertools
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Self

from holdfast.client.cache import Cache
from holdfast.errors import HoldfastError
from tests.failover.cluster import Cluster
from tests.waiting import wait_until

PAUSE_S = 0.003
LARGE_EVERY = 60


def content_of(key: str) -> bytes:
    chosen = random.Random(key)
    return chosen.randbytes(chosen.randint(1, 3_000))


def put_or_error(cache: Cache, key: str, value: bytes, acked: dict[str, bytes]) -> HoldfastError | None:
    """Put, and remember the value in `acked`; the error if that failed."""
    try:
        assert cache.put(key, value)
    except HoldfastError as error:
        return error
    acked[key] = value
    return None


@dataclass(eq=False)
class Load:
    """Threads with a client each that put, read and remove keys of their own, until the `with` block ends."""

    cluster: Cluster
    name: str
    threads: int = 3
    address: str = ""
    removals: bool = True
    reads: bool = True
    acked: dict[str, bytes] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    done_at: list[float] = field(default_factory=list)
    reader_at: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(self.threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        try:
            self.go_on_for(50)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads), "a call hangs past its deadline (I10)"

    def go_on_for(self, calls: int, within_s: float = 60.0) -> None:
        """Wait until so many more calls have succeeded, or one has failed."""
        wanted = len(self.done_at) + calls
        wait_until(lambda: len(self.done_at) >= wanted or self.errors, within_s, f"{calls} more calls succeed")
        assert not self.errors, self.errors[:3]

    def longest_gap_ms(self) -> int:
        """The longest time in which no put and no read of the one who removes nothing succeeded."""
        times = sorted(self.reader_at)
        return round(1000 * max((after - before for before, after in itertools.pairwise(times)), default=0))

    def _work(self, number: int) -> None:
        chosen = random.Random(f"{self.name} {number}")
        own: list[str] = []
        count = 0
        try:
            with self.cluster.connect(self.address, shared_memory=number % 2 == 0) as cache:
                while not self._stopping.wait(PAUSE_S):
                    count += 1
                    key = f"{self.name}/{number}/{count}"
                    data = content_of(key) * (100 if count % LARGE_EVERY == 0 else 1)
                    assert cache.put(key, data) is True, f"{key} is new, and was said to be there already"
                    self.acked[key] = data
                    self.done_at.append(time.monotonic())
                    own.append(key)
                    if self.reads:
                        older = own[chosen.randrange(len(own))]
                        assert cache.get(older) == self.acked[older], f"{older} has other bytes"
                        self.done_at.append(time.monotonic())
                    if number == 0:  # After a takeover by guess removals wait; somebody must not.
                        self.reader_at.append(time.monotonic())
                    elif self.removals and count % 4 == 0:
                        self._remove(cache, own.pop(chosen.randrange(len(own))))
        except Exception as error:  # noqa: BLE001 - Whatever it is, the story must hear of it.
            self.errors.append(f"{type(error).__name__}: {error}")

    def _remove(self, cache: Cache, key: str) -> None:
        data = self.acked.pop(key)
        assert data
        assert cache.remove(key, force=True) == 1, f"{key} was there to be removed"
        self.removed.add(key)
        self.done_at.append(time.monotonic())
