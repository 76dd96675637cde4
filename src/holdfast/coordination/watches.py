"""Waiting for changes, following the log, and watching the leader: the same on every backend.

A change is only counted; what has changed is always read again. A reader takes the count before it reads and waits for
more than that count, so that it cannot miss a change in between, and it reads again from time to time even if no change
is reported, so that a backend's lost watch costs a moment and not a record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from holdfast.coordination.interface import Batches, CoordinationLost, Leader
from holdfast.errors import Uncertain
from holdfast.outage import Outage

T = TypeVar("T")
log = logging.getLogger("holdfast.coordination")

RETRY_S = 0.2
READ_BYTES = 4 << 20
"""Approximate size of one read by a follower that is behind."""


class Changes:
    """A count that only grows. Lives in one event loop."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.count = 0
        self._sleep = sleep
        # In order of arrival: the order of waking must not depend on memory addresses.
        self._waiting: dict[asyncio.Future[None], None] = {}

    def bump(self) -> None:
        self.count += 1
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def beyond(self, seen: int, wait_s: float) -> None:
        if self.count != seen or wait_s <= 0:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        timer = asyncio.ensure_future(self._sleep(wait_s))
        try:
            await asyncio.wait({waiter, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            self._waiting.pop(waiter, None)


async def follow_log(
    read: Callable[[int], Awaitable[Batches]],
    after_index: int,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncGenerator[Batches, None]:
    """`read(after)` returns the batches that follow, waiting a while if there are none, or raises `Compacted` or
    `LogBehind`: a store may be emptied, or replaced by another, while it is followed."""
    outage = Outage(log, "the log cannot be followed")
    while True:
        try:
            batches = await read(after_index)
        except (CoordinationLost, Uncertain) as error:
            outage.seen(error)
            await sleep(RETRY_S)
            continue
        outage.over()
        if not batches:
            continue
        indexes = [index for index, _ in batches]
        assert indexes == list(range(after_index + 1, after_index + 1 + len(batches))), "a gap in the log"
        after_index = indexes[-1]
        yield batches


async def _read_at_last(
    what: str,
    read: Callable[[], Awaitable[T]],
    changes: Callable[[], int],
    sleep: Callable[[float], Awaitable[None]],
) -> tuple[int, T]:
    """The first answer of coordination, and the count of changes from before it was asked."""
    while True:
        seen = changes()
        try:
            return seen, await read()
        except (CoordinationLost, Uncertain) as error:
            log.debug("watching %s, but coordination fails: %s", what, error)
            await sleep(RETRY_S)


async def watch_leader(
    read: Callable[[], Awaitable[Leader | None]],
    changes: Callable[[], int],
    changed: Callable[[int, float], Awaitable[None]],
    look_every_s: float,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncGenerator[Leader | None, None]:
    told: Leader | None = None
    first = True
    while True:
        seen, leader = await _read_at_last("the leader", read, changes, sleep)
        if first or leader != told:
            first, told = False, leader
            yield leader
        await changed(seen, look_every_s)


async def watch_published(
    read: Callable[[], Awaitable[dict[str, bytes]]],
    changes: Callable[[], int],
    changed: Callable[[int, float], Awaitable[None]],
    look_every_s: float,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncGenerator[dict[str, bytes], None]:
    """`read()` returns the values published since its last call; the first time, all of them."""
    first = True
    while True:
        seen, news = await _read_at_last("what is published", read, changes, sleep)
        if first or news:
            first = False
            yield news
        await changed(seen, look_every_s)
