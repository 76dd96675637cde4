"""From role to role, on the memory backend: what must not be left behind when one ends in an awkward moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.coordination.interface import Batches, Term
from holdfast.coordination.memory import MemoryCoordination, MemoryStore
from holdfast.core.rules import Rules
from holdfast.master.roles import Master, Plan
from holdfast.master.server import RpcServer
from holdfast.messages.requests import ChangeSettings, SettingsInForce
from holdfast.replication.batches import Position, UnknownRecord, encode_batch, encode_record
from holdfast.replication.snapshot_store import SnapshotStore
from holdfast.replication.standby import Standby
from tests.contract.stories import soon, until
from tests.stories.pair import Pair


class UnreadableLog(MemoryCoordination):
    """The log turns out to be of a newer version in the very moment in which the term is won."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.won = asyncio.Event()

    async def campaign(self, address: str, replacing: int | None = None) -> Term:
        term = await super().campaign(address, replacing)
        self.won.set()
        return term

    async def follow(self, after_index: int) -> AsyncGenerator[Batches, None]:
        await self.won.wait()
        raise UnknownRecord("the log was written by a newer version; nothing was applied. Upgrade this master")
        yield []


@asynccontextmanager
async def running(coordination: MemoryCoordination, folder: Path | None = None) -> AsyncIterator[Master]:
    plan = Plan(Rules(), "holdfast", "here:7070", leader_ttl_ms=5_000, early_takeover=False)
    master = Master(RpcServer("here", ""), coordination, plan, SnapshotStore(folder))
    task = asyncio.create_task(master.run())
    try:
        yield master
    finally:
        task.cancel()
        await asyncio.wait([task])
        await coordination.close()


async def until_true(condition: Callable[[], object], what: str) -> None:
    async def asked() -> object:
        return condition()

    await until(asked, what)


async def test_a_term_won_in_the_moment_in_which_following_fails_is_resigned() -> None:
    """I15: nobody would serve under it, and nobody else could."""
    store = MemoryStore()
    coordination = UnreadableLog(store)
    async with running(coordination) as master:
        await soon(coordination.won.wait())
        other = MemoryCoordination(store)
        try:
            term = await soon(other.campaign("there:7070"))
            assert (term.epoch, term.proof) == (2, "resigned")
        finally:
            await other.close()
        assert master.role == "standby"


async def test_a_promotion_that_fails_resigns_the_term_and_the_next_master_serves(tmp_path: Path) -> None:
    """I9, I15: two objects at one place cannot be served, not even in part; a master that holds them otherwise can."""
    store = MemoryStore()
    pair = Pair()
    pair.node("a", size=1 << 20)
    pair.put("one", "two")
    first = await soon(MemoryCoordination(store).campaign("first:7070"))
    batch, position = encode_batch(Position(), [encode_record(record) for record in pair.primary.records])
    await soon(first.append(1, batch))
    catalogue = pair.state.catalogue
    catalogue.offsets[catalogue.by_key.slot_of("one")] = catalogue.offsets[catalogue.by_key.slot_of("two")]
    snapshots = SnapshotStore(tmp_path)
    snapshots.write(*snapshots.take(Standby(pair.state, position)))
    async with running(MemoryCoordination(store), tmp_path) as spoilt:
        await until_true(lambda: spoilt.promotable()[0], "it would take over, not knowing better")
        async with running(MemoryCoordination(store)) as sound:
            await until_true(lambda: sound.promotable()[0], "so would the other")
            await first.resign()
            await until_true(lambda: sound.role == "primary", "the one that can serve leads")
            engine = sound.server.engine
            assert engine is not None
            assert engine.state.objects == 2
            assert spoilt.role == "standby"
            assert spoilt.server.engine is None


async def test_a_handover_lets_the_append_under_way_come_to_its_end() -> None:
    """I1, I10: whoever waits for it is answered, and the next master has it."""
    store = MemoryStore()
    coordination = MemoryCoordination(store)
    async with running(coordination) as master:
        await until_true(lambda: master.role == "primary", "it leads")
        engine = master.server.engine
        assert engine is not None
        store.faults.delay_s = 0.2
        before = await coordination.last_index()
        reply, after = engine.handle(ChangeSettings({"lease_ttl_ms": 4_000}), 1, 1, 0)
        assert isinstance(reply, SettingsInForce)
        answered = asyncio.Event()
        engine.when_durable(after, answered.set)
        # The writer has taken it, and it is on its way.
        await until_true(lambda: not engine.log.has_more, "the batch is cut")  # type: ignore[union-attr]
        assert not answered.is_set()
        master.hand_over.set()
        await soon(answered.wait())
        await until_true(lambda: master.role == "standby", "it has handed over")
        store.faults.delay_s = 0.0
        assert await coordination.last_index() == before + 1
        other = MemoryCoordination(store)
        try:
            term = await soon(other.campaign("there:7070"))
            assert term.proof == "resigned"
        finally:
            await other.close()
