"""Watching what is published: nothing that stays is missed, on every backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from holdfast.coordination.interface import Coordination, CoordinationLost
from holdfast.errors import Uncertain
from holdfast.instant import now_seconds
from tests.contract.places import Place
from tests.contract.stories import soon, until

KEPT = 1_100
"""More than any backend remembers of what changed."""


class Watcher:
    """Gathers what a watch tells, in the background."""

    def __init__(self, coordination: Coordination, prefix: str) -> None:
        self.told: dict[str, bytes] = {}
        self.times = 0
        self._watch: AsyncGenerator[dict[str, bytes], None] = coordination.watch(prefix)
        self._task = asyncio.create_task(self._gather())

    async def _gather(self) -> None:
        async with aclosing(self._watch) as news:
            async for one in news:
                self.told.update(one)
                self.times += 1

    async def hears(self, expected: dict[str, bytes]) -> None:
        async def heard() -> bool:
            assert not self._task.done() or self._task.result() is None
            return self.told == expected

        await until(heard, f"the watcher has heard of {sorted(expected)[:5]}")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_a_watcher_hears_what_is_there_what_comes_and_what_changes(place: Place) -> None:
    one, two = await place.open(), await place.open()
    await one.publish("renewals/1", b"before", 60_000)
    await one.publish("other/1", b"not this", None)
    watcher = Watcher(two, "renewals/")
    try:
        await watcher.hears({"renewals/1": b"before"})
        await one.publish("renewals/2", b"new", 60_000)
        await watcher.hears({"renewals/1": b"before", "renewals/2": b"new"})
        await one.publish("renewals/1", b"changed", 60_000)
        await one.publish("other/2", b"not this either", 60_000)
        await two.publish("renewals/3", b"from its own side", None)
        expected = {"renewals/1": b"changed", "renewals/2": b"new", "renewals/3": b"from its own side"}
        await watcher.hears(expected)
    finally:
        await watcher.close()


async def test_a_watch_of_nothing_says_so_at_once(place: Place) -> None:
    coordination = await place.open()
    async with aclosing(coordination.watch("renewals/")) as news:
        assert await soon(anext(news)) == {}


async def test_a_watcher_outlasts_an_outage_and_hears_what_came_meanwhile(place: Place) -> None:
    # A third of it is how long a request may take: long enough for a busy machine before the outage.
    one, two = await place.open(leader_ttl_ms=4_500), await place.open(leader_ttl_ms=4_500)
    watcher = Watcher(two, "renewals/")
    try:
        await one.publish("renewals/1", b"before", None)
        await watcher.hears({"renewals/1": b"before"})

        async def published() -> bool:
            try:
                await one.publish("renewals/2", b"after", None)
            except (CoordinationLost, Uncertain):
                return False
            return True

        async def is_out() -> bool:
            return not await published()

        place.stop_answering()
        await until(is_out, "it does not answer")
        place.answer_again()
        await until(published, "it answers again")
        await watcher.hears({"renewals/1": b"before", "renewals/2": b"after"})
    finally:
        await watcher.close()


async def test_a_watcher_that_was_slow_misses_nothing(place: Place) -> None:
    """More comes between two of its looks than a backend keeps a list of."""
    # A third of it is how long a request may take, and here many wait for each other on a machine that may be busy.
    one, two = await place.open(leader_ttl_ms=30_000), await place.open()
    async with aclosing(two.watch("renewals/")) as news:
        assert await soon(anext(news)) == {}
        names = [f"renewals/{number:05d}" for number in range(KEPT)]
        for start in range(0, KEPT, 50):
            await asyncio.gather(*(one.publish(name, name.encode(), 60_000) for name in names[start : start + 50]))
        told: dict[str, bytes] = {}

        async def gather() -> None:
            while len(told) < KEPT:
                told.update(await anext(news))

        await asyncio.wait_for(gather(), 60)
        assert told == {name: name.encode() for name in names}


async def test_values_for_a_time_live_at_least_that_long(place: Place) -> None:
    """Those that share a lease in etcd too: the last to be hung on it has its whole time."""
    one, two = await place.open(), await place.open()
    for number in range(8):
        await one.publish(f"renewals/{number}", b"x", 2_000)
    written_at = now_seconds()
    while True:
        found = await two.list("renewals/")
        if now_seconds() > written_at + 1.9:
            break
        assert "renewals/7" in found
        await asyncio.sleep(0.05)
