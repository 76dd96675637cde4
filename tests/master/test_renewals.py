"""The shells of renewals on a real coordination backend: written, followed, and written again after an outage."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from holdfast.coordination.memory import MemoryCoordination, MemoryStore
from holdfast.instant import now_ms
from holdfast.master.renewals import RenewalFollower, RenewalWriter, keep_evicting_alone
from holdfast.replication.batches import Position
from holdfast.replication.carried import batches_of
from holdfast.replication.renewals import PREFIX, RenewalSender
from holdfast.replication.snapshots import dump
from holdfast.replication.standby import Standby
from tests.stories.pair import Pair

KIB = 1 << 10


def made() -> Pair:
    """Its clocks are the real one's."""
    pair = Pair("timer", ahead_ms=0, renewal_interval_ms=100)
    pair.now = now_ms()
    # A machine that has just booted is earlier than the time at which the pair's own clock starts.
    pair.sender = RenewalSender(pair.state, pair.rules, 1, pair.now, 1 << 20)
    pair.node("a", size=100 * KIB)
    pair.put(*[f"k{i}" for i in range(50)], size=KIB)
    pair.replicate()
    return pair


async def soon(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for is in columns, which set no event.
            await asyncio.sleep(0.01)
    assert condition(), what


@contextlib.asynccontextmanager
async def running(*coroutines: object) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(one) for one in coroutines]  # type: ignore[arg-type]
    try:
        yield
        assert not [task.exception() for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def lease_of(standby: Standby, key: str) -> int:
    catalogue = standby.state.catalogue
    return catalogue.lease_at[catalogue.by_key.slot_of(key)]


async def test_renewals_pass_from_the_primary_to_its_standby() -> None:
    pair, store = made(), MemoryStore()
    writer = RenewalWriter(RenewalSender(pair.state, pair.rules, 1, now_ms(), 1 << 20), MemoryCoordination(store))
    pair.on_urgent = writer.urge
    follower = RenewalFollower(MemoryCoordination(store), lambda: pair.standby)
    async with running(writer.run(), follower.run()):
        pair.now = now_ms()
        pair.locate("k1")
        await soon(lambda: lease_of(pair.standby, "k1") > 0, "the standby knows of the lease")
        assert lease_of(pair.standby, "k1") <= pair.now + pair.rules.lease_ttl_ms + 5_000
        assert lease_of(pair.standby, "k2") == 0
        assert writer.sender.written == 1
        assert follower.receiver.renewals == 1


async def test_an_outage_delays_renewals_and_loses_none() -> None:
    pair, store = made(), MemoryStore()
    coordination = MemoryCoordination(store)
    writer = RenewalWriter(RenewalSender(pair.state, pair.rules, 1, now_ms(), 1 << 20), coordination)
    follower = RenewalFollower(MemoryCoordination(store), lambda: pair.standby)
    async with running(writer.run(), follower.run()):
        store.faults.outage = True
        pair.locate("k1")
        await soon(lambda: writer.sender.failed > 1, "it was tried again")
        assert lease_of(pair.standby, "k1") == 0
        store.faults.outage = False
        await soon(lambda: lease_of(pair.standby, "k1") > 0, "it was told after all")


async def test_a_standby_that_starts_over_hears_everything_again() -> None:
    pair, store = made(), MemoryStore()
    coordination = MemoryCoordination(store)
    pair.locate("k1", "k2")
    pair.write_renewals()
    for name, value in pair.published.items():
        assert name.startswith(PREFIX)
        await coordination.publish(name, value, 60_000)
    standbys = [pair.standby]
    follower = RenewalFollower(coordination, lambda: standbys[-1])
    async with running(follower.run()):
        await soon(lambda: lease_of(pair.standby, "k1") > 0, "the first standby heard")
        again = Pair("timer", ahead_ms=0)
        again.primary.records = pair.primary.records
        again.replicate()
        standbys.append(again.standby)
        await soon(lambda: lease_of(again.standby, "k2") > 0, "the second one did too")


class CountedReads(MemoryCoordination):
    lists = 0

    async def list(self, prefix: str) -> dict[str, bytes]:
        found = await super().list(prefix)
        self.lists += 1
        return found


async def test_a_standby_whose_log_restores_a_history_hears_everything_again() -> None:
    """A value that came before the objects told it of nothing: it is read again for them (seed 902698)."""
    pair, store = made(), MemoryStore()
    coordination = CountedReads(store)
    content = b"".join(dump(pair.state, Position(), now_ms()))
    pair.state.log_id = 99  # As on the primary that restored it.
    pair.locate("k1", "k2")
    pair.write_renewals()
    for name, value in pair.published.items():
        await coordination.publish(name, value, 60_000)
    standby = Standby()
    follower = RenewalFollower(coordination, lambda: standby)
    async with running(follower.run()):
        await soon(lambda: coordination.lists > 0, "it heard of what it does not have yet")
        assert follower.receiver.renewals == 0
        for position, batch in batches_of(content, 99, b"secret", Position()):
            standby.take(position.batch, batch, now_ms())
        # News for the new state is not all there is for it.
        pair.locate("k3")
        pair.write_renewals()
        name, value = pair.published.popitem()
        await coordination.publish(name, value, 60_000)
        await soon(lambda: lease_of(standby, "k3") > 0, "it goes on hearing news")
        await soon(lambda: lease_of(standby, "k1") > 0 and lease_of(standby, "k2") > 0, "it heard again")


async def test_a_standby_evicts_by_itself_down_to_the_watermark() -> None:
    pair = made()
    pair.put(*[f"more{i}" for i in range(48)], size=KIB)
    pair.replicate()
    async with running(keep_evicting_alone(lambda: pair.standby, pair.rules)):
        await soon(lambda: pair.standby.state.objects == 85, "98 KiB of 100 became 85")
    assert pair.standby.state.catalogue.count == 98, "the catalogue is the log's"
