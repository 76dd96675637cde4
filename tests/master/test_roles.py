"""From role to role, on the memory backend: what must not be left behind when one ends in an awkward moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

from holdfast.coordination.interface import Batches, Term
from holdfast.coordination.memory import MemoryCoordination, MemoryStore
from holdfast.core.rules import Rules
from holdfast.master.roles import Master, Plan
from holdfast.master.server import RpcServer
from holdfast.messages.requests import ChangeSettings, SettingsInForce
from holdfast.replication.batches import UnknownRecord
from holdfast.replication.snapshot_store import SnapshotStore
from tests.contract.stories import soon, until


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
async def running(coordination: MemoryCoordination) -> AsyncIterator[Master]:
    plan = Plan(Rules(), "holdfast", "here:7070", leader_ttl_ms=5_000, early_takeover=False)
    master = Master(RpcServer("here", ""), coordination, plan, SnapshotStore(None))
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
