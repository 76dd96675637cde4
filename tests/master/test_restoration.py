"""The operator's order to restore a history, at a master: what it may be given, and what a failure leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast.coordination.interface import CoordinationLost, Term
from holdfast.coordination.memory import MemoryCoordination, MemoryStore
from holdfast.core.rules import Rules
from holdfast.errors import HoldfastError
from holdfast.master import restoration
from holdfast.master.election import candidacy
from holdfast.master.histories import histories, restore_order, snapshot_upkeep
from holdfast.master.histories.histories import Word
from holdfast.master.histories.restore_order import EPOCHS_APART
from holdfast.master.plan import Plan
from holdfast.master.restoration import MEMORY_OF_PROCESS, Restoration
from holdfast.master.roles.master import Master
from holdfast.master.server import RpcServer
from holdfast.messages.of_masters import DescribeHistories, HistoriesDescribed, OfferCatalogue, RestoreHistory
from holdfast.messages.requests import Done
from holdfast.messages.shapes import Message
from holdfast.replication.batches import Position, position_after
from holdfast.replication.carried import batches_of
from holdfast.replication.snapshot_store import SnapshotFailed, SnapshotStore
from holdfast.replication.snapshots import dump
from holdfast.wire.codec import expect
from tests.contract.stories import append_all, soon, until_true
from tests.core.world import World
from tests.master.histories.test_histories import (
    CLUSTER,
    change,
    history_of,
    leads,
    lived,
    running,
    waiting,
    waiting_for_a_word,
)
from tests.master.masters import gate_flush

T = TypeVar("T", bound=Message)
PATIENT_MS = 60_000
"""A term that outlasts the moments in which a busy machine does not run this process."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(snapshot_upkeep, "LOOK_SECONDS", 0.02)


async def ask(master: Master, request: Message, kind: type[T]) -> T:
    """As a connection would, whatever the master's role."""
    if DescribeHistories not in master.server.views:
        Restoration(master)
    answered: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    master.server.views[type(request)](request, answered.set_result)
    return expect(await soon(answered), kind)


def catalogue(objects: int = 5) -> bytes:
    """A snapshot of history 11, epoch 1."""
    world = World()
    world.node("a", size=1 << 24)
    for first in range(0, objects, 8_000):  # As many as one request may name.
        world.put(*[f"k{i}" for i in range(first, min(first + 8_000, objects))])
    return b"".join(dump(world.state, Position(3, world.state.index, b"h" * 16), world.now))


@contextlib.asynccontextmanager
async def leading(store: MemoryStore, folder: Path) -> AsyncIterator[Master]:
    """A master that leads, and keeps its term for long."""
    async with running(store, folder, ttl_ms=PATIENT_MS) as master:
        await until_true(lambda: leads(master), "it leads")
        yield master


async def offer(master: Master, content: bytes) -> None:
    half = len(content) // 2
    assert (await ask(master, OfferCatalogue(0, content[:half]), Done)).count == half
    assert (await ask(master, OfferCatalogue(half, content[half:]), Done)).count == len(content)


async def test_a_waiting_master_restores_what_it_keeps(tmp_path: Path) -> None:
    store = MemoryStore()
    old = await lived(store, tmp_path)
    epoch = store.cluster(CLUSTER).record.epoch  # type: ignore[union-attr]
    store.wipe(CLUSTER)
    async with running(store, tmp_path) as master:
        await until_true(lambda: waiting(master), "it waits for the operator")
        described = await ask(master, DescribeHistories(), HistoriesDescribed)
        (found,) = described.found
        assert (found.log_id, described.log_id, described.role) == (old, 0, "standby")
        await ask(master, RestoreHistory(old, found.where), Done)
        await until_true(lambda: leads(master), "it leads")
        described = await ask(master, DescribeHistories(), HistoriesDescribed)
        assert (described.older, described.restoring, described.failure) == (old, "", "")
        assert history_of(master) not in (0, old)
        assert master.server.engine is not None
        assert master.server.engine.state.changed == {"lease_ttl_ms": 4_005}, "settings come with it"
        assert master.server.engine.state.epoch > epoch + EPOCHS_APART, "I6: ids go on growing"


async def test_a_former_primary_that_nothing_leads_back_to_the_log_is_restored_from_its_memory(tmp_path: Path) -> None:
    """I5: with records that are in no log it must not go on by itself. I1: but it holds all that is left, and keeps it
    for the operator."""
    store = MemoryStore()
    await lived(store, tmp_path, batches=8)
    async with running(store, tmp_path) as master:
        await until_true(lambda: leads(master), "it leads")
        old = history_of(master)
        await master.coordination.trim(store.cluster(CLUSTER).last)  # type: ignore[union-attr]
        for kept in master.store.kept(old):
            kept.path.unlink()
        store.faults.appends.extend(["lost"] * 1_000)
        change(master, 5_001)
        store.expire_leader(CLUSTER)
        await until_true(lambda: "trimmed past it" in master.promotable()[1], "it says why it does not lead")
        store.faults.appends.clear()
        (found,) = (await ask(master, DescribeHistories(), HistoriesDescribed)).found
        assert (found.log_id, found.where) == (old, MEMORY_OF_PROCESS)
        await ask(master, RestoreHistory(old, found.where), Done)
        await until_true(lambda: leads(master), "it leads")
        assert master.server.engine is not None
        assert old in master.server.engine.state.continues
        assert master.server.engine.state.changed == {"lease_ttl_ms": 5_001}


async def test_no_snapshot_ends_between_the_pieces_of_a_carried_catalogue(tmp_path: Path) -> None:
    """I13: whoever started from it would lack the pieces before, and never follow the log again."""
    store = MemoryStore()
    # Without a snapshot nobody trims the log, and a master that keeps nothing can follow it from its beginning.
    await lived(store, tmp_path / "a", snapshots=0)
    writing = MemoryCoordination(store, CLUSTER, 1_000)
    async with running(store, tmp_path / "a", "one") as one:
        await until_true(lambda: leads(one), "it leads")
    term = await soon(writing.campaign("writing:7070"))
    last = await writing.last_index()
    async with contextlib.aclosing(writing.follow(last - 1)) as following:
        position = position_after(*(await anext(following))[-1])
    async with running(store, tmp_path / "b", "two") as two:
        await until_true(lambda: two.standby.position.batch == last, "it follows")
        *pieces, restored = batches_of(catalogue(9_000), 99, b"s", position)
        for after, batch in pieces:
            await append_all(term, after.batch, [batch])
        await until_true(lambda: two.standby.carries, "it has read the pieces")
        with pytest.raises(SnapshotFailed):
            await two.snapshot()
        await append_all(term, restored[0].batch, [restored[1]])
        await until_true(lambda: two.standby.state.log_id == 99, "it has read the restored history")
        assert await two.snapshot() == restored[0].batch
        await soon(term.resign())
    await writing.close()


@contextlib.asynccontextmanager
async def promoting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Master, asyncio.Event]]:
    """A master in the middle of its first promotion, which ends when the event is set."""
    reached, may_go_on = gate_flush(monkeypatch)
    async with running(MemoryStore(), tmp_path, ttl_ms=PATIENT_MS) as master:
        await soon(reached.wait())
        yield master, may_go_on


async def test_an_order_to_a_master_that_is_being_promoted_is_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new cluster, and the order right after its start: it was taken for done when the empty history began."""
    async with promoting(tmp_path, monkeypatch) as (master, may_go_on):
        await offer(master, catalogue())
        order = asyncio.create_task(ask(master, RestoreHistory(11), Done))
        await asyncio.sleep(0.1)  # However far the order gets meanwhile.
        may_go_on.set()
        await order
        await until_true(lambda: leads(master) and history_of(master) != 0 and not master.restoring, "it leads")
        described = await ask(master, DescribeHistories(), HistoriesDescribed)
        assert (described.older, described.restored, described.failure) == (11, 5, "")


async def test_a_primary_whose_term_ran_out_describes_its_history_when_it_has_stepped_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was emptied, and the operator is quick: it said that it knows of no history but what it serves."""
    store = MemoryStore()
    async with leading(store, tmp_path) as master:
        change(master, 5_001)
        await until_true(lambda: not master.server.engine.waits_for_log, "it is durable")  # type: ignore[union-attr]
        old = history_of(master)
        monkeypatch.setattr(Master, "role", property(lambda _: "standby"))
        asked = asyncio.create_task(ask(master, DescribeHistories(), HistoriesDescribed))
        await asyncio.sleep(0.1)  # However far the answer gets meanwhile.
        store.wipe(CLUSTER)
        described = await asked
        assert (old, MEMORY_OF_PROCESS) in [(one.log_id, one.where) for one in described.found]
        assert described.log_id != old


async def test_an_order_that_a_promotion_overtakes_is_said_to_have_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not forgotten without a word, and what it would replace is served."""
    async with promoting(tmp_path, monkeypatch) as (master, may_go_on):
        master.restore(Word(catalogue(), 1, last=0))
        may_go_on.set()
        await until_true(lambda: leads(master), "it leads")
        assert "Order again" in master.restore_failure
        assert master.restoring == ""
        await ask(master, DescribeHistories(), HistoriesDescribed)
        await offer(master, catalogue())
        await ask(master, RestoreHistory(11), Done)
        await until_true(lambda: leads(master) and master.server.engine.state.objects == 5, "restored")  # type: ignore[union-attr]


async def test_a_primary_whose_late_term_is_renewed_after_all_carries_out_orders_and_loses_nothing_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 9004485: the store was slow, the term seemed over for a moment, and the order waited for ever. I1: nor does
    it replace objects without being told to."""
    monkeypatch.setattr(restoration, "SETTLE_SECONDS", 0.05)
    async with leading(MemoryStore(), tmp_path) as master:
        await offer(master, catalogue())
        with monkeypatch.context() as late:
            late.setattr(Master, "role", property(lambda _: "standby"))
            await ask(master, RestoreHistory(11), Done)
        await until_true(lambda: leads(master) and master.server.engine.state.objects == 5, "restored")  # type: ignore[union-attr]
        assert (master.restoring, master.restore_failure) == ("", "")
        await offer(master, catalogue(2))
        with monkeypatch.context() as late:
            late.setattr(Master, "role", property(lambda _: "standby"))
            with pytest.raises(HoldfastError, match="would be lost"):
                await ask(master, RestoreHistory(11), Done)
        assert leads(master)


async def test_an_order_that_was_overtaken_replaces_nothing(tmp_path: Path) -> None:
    """I1: what another master has begun to serve since it was given is not thrown away unasked."""
    async with running(MemoryStore(), tmp_path) as master:
        await until_true(lambda: leads(master), "it leads")
        served = history_of(master)
        master.restore(Word(catalogue(), 1, last=0))
        await until_true(lambda: bool(master.restore_failure), "it is refused")
        assert "since" in master.restore_failure
        await until_true(lambda: leads(master), "it leads again")
        assert history_of(master) == served


async def test_a_primary_whose_order_comes_to_nothing_leads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I15: the term that the restoring one was to replace is given back; nobody would serve under it."""
    store = MemoryStore()
    async with leading(store, tmp_path) as master:
        served = history_of(master)
        monkeypatch.setattr(restore_order, "RESTORE_SECONDS", 0.05 - 2 * PATIENT_MS / 1000)
        store.faults.delay_s = 1.0  # Longer than the order may wait for its term.
        master.restore(Word(catalogue(), 1))
        await until_true(lambda: bool(master.restore_failure), "it is given up")
        store.faults.delay_s = 0.0
        await until_true(lambda: leads(master), "it leads again")
        assert history_of(master) == served


@pytest.mark.parametrize("turns", range(24))
async def test_a_master_that_is_stopped_while_it_gives_way_to_an_order_keeps_no_term(
    tmp_path: Path, turns: int
) -> None:
    """I15: neither the term that ended for the order, which is not resigned at once, nor the one that replaces it.
    Another master leads at once, and does not have to wait until the term has run out."""
    store = MemoryStore()
    coordination = MemoryCoordination(store, CLUSTER, PATIENT_MS)
    plan = Plan(Rules(), CLUSTER, "here:7070", PATIENT_MS, early_takeover=False)
    master = Master(RpcServer("here", ""), coordination, plan, SnapshotStore(tmp_path))
    task = asyncio.create_task(master.run())
    await until_true(lambda: leads(master), "it leads")
    master.restore(Word(catalogue(), 1))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    other = MemoryCoordination(store, CLUSTER, PATIENT_MS)
    try:
        await soon(other.campaign("other:7070"))
    finally:
        await other.close()
        await coordination.close()


async def ordered(master: Master, old: int) -> MemoryCoordination:
    """The operator orders a restore, and the master campaigns to carry it out."""
    await until_true(lambda: waiting(master), "it waits for the operator")
    described = await ask(master, DescribeHistories(), HistoriesDescribed)
    await ask(master, RestoreHistory(old, described.found[0].where), Done)
    coordination = master.coordination
    assert isinstance(coordination, MemoryCoordination)
    await until_true(lambda: coordination.epoch_floor > EPOCHS_APART, "it waits for its term")
    return coordination


async def test_an_order_ends_as_soon_as_another_master_writes_to_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I14: it does not wait for the store's next loss, to bring back then what was older than that store held."""
    monkeypatch.setattr(restore_order, "RESTORE_SECONDS", 600.0)
    store = MemoryStore()
    old = await lived(store, tmp_path)
    store.wipe(CLUSTER)
    other = MemoryCoordination(store, CLUSTER, PATIENT_MS)
    term = await soon(other.campaign("other:7070"))
    async with running(store, tmp_path, ttl_ms=PATIENT_MS) as master:
        await ordered(master, old)
        for position, batch in batches_of(catalogue(), 99, b"s", Position()):
            await append_all(term, position.batch, [batch])
        await until_true(lambda: bool(master.restore_failure), "the order is given up")
        assert "since" in master.restore_failure
        assert master.restoring == ""
        await until_true(lambda: history_of(master) == 99, "it follows the other")
        store.wipe(CLUSTER)
        await until_true(lambda: waiting(master), "it waits for the operator again")
        assert not leads(master)
    await other.close()


async def test_an_order_ends_with_the_store_that_it_was_given_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I14: the master was cut off while another one served, and finds a store that was emptied a second time."""
    store = MemoryStore()
    old = await lived(store, tmp_path)
    store.wipe(CLUSTER)
    other = MemoryCoordination(store, CLUSTER, PATIENT_MS)
    term = await soon(other.campaign("other:7070"))
    async with running(store, tmp_path, ttl_ms=PATIENT_MS) as master:
        coordination = await ordered(master, old)

        async def lost() -> None:
            raise CoordinationLost("cut off, by order of a test")

        with monkeypatch.context() as cut:
            cut.setattr(coordination._link, "arrive", lost)
            for position, batch in batches_of(catalogue(), 99, b"s", Position()):
                await append_all(term, position.batch, [batch])
            store.wipe(CLUSTER)
        await until_true(lambda: not master.restoring, "the order is over")
        assert "since" in master.restore_failure
        await until_true(lambda: waiting(master), "it waits for the operator again")
        assert store.cluster(CLUSTER).last == 0
    await other.close()


async def test_an_order_to_a_primary_ends_when_another_master_came_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: the primary gave way to itself, but another one won first, and its objects are not thrown away unasked."""
    reached, may_go_on = asyncio.Event(), asyncio.Event()
    win = candidacy.win_for_order

    async def gated(*given: Any) -> Term:
        reached.set()
        await may_go_on.wait()
        return await win(*given)

    monkeypatch.setattr(restore_order, "win_for_order", gated)
    store = MemoryStore()
    other = MemoryCoordination(store, CLUSTER, PATIENT_MS)
    async with leading(store, tmp_path) as master:
        await offer(master, catalogue())
        await ask(master, RestoreHistory(11, replace=True), Done)
        await soon(reached.wait())
        led = store.cluster(CLUSTER).record
        assert led is not None
        term = await soon(other.campaign("other:7070", led.epoch))
        last = await other.last_index()
        async with contextlib.aclosing(other.follow(last - 1)) as following:
            end = position_after(*(await anext(following))[-1])
        for position, batch in batches_of(catalogue(7), 99, b"s", end):
            await append_all(term, position.batch, [batch])
        await soon(term.resign())
        may_go_on.set()
        await until_true(lambda: bool(master.restore_failure), "the order is given up")
        assert "since" in master.restore_failure
        await until_true(lambda: leads(master), "it leads again")
        assert history_of(master) == 99
    await other.close()


async def test_a_restore_that_is_repeated_keeps_the_memory_that_nodes_mounted_since(tmp_path: Path) -> None:
    """I14: the first one's history is among those that the second continues, so that nodes do not void their memory."""
    async with waiting_for_a_word(tmp_path) as (old, master):
        (found,) = (await ask(master, DescribeHistories(), HistoriesDescribed)).found
        await ask(master, RestoreHistory(old, found.where), Done)
        await until_true(lambda: leads(master), "it leads")
        first = history_of(master)
        await ask(master, RestoreHistory(old, found.where, replace=True), Done)
        await until_true(lambda: leads(master) and history_of(master) != first, "it leads another history")
        assert master.server.engine is not None
        assert {*master.server.engine.state.continues} == {old, first}


async def test_a_restore_that_broke_off_is_no_history_and_can_be_repeated(tmp_path: Path) -> None:
    """The master that restored died after some pieces: nobody serves that as an empty cluster."""
    store = MemoryStore()
    old = await lived(store, tmp_path)
    store.wipe(CLUSTER)
    dying = MemoryCoordination(store, CLUSTER, 1_000)
    term = await soon(dying.campaign("dying:7070"))
    pieces = list(batches_of(catalogue(9_000), 99, b"s", Position()))[:-1]
    assert len(pieces) > 1
    for position, batch in pieces:
        await append_all(term, position.batch, [batch])
    await soon(term.resign())
    await dying.close()
    async with running(store, tmp_path) as master:
        await until_true(lambda: waiting(master), "it waits for the operator again")
        assert not leads(master)
        described = await ask(master, DescribeHistories(), HistoriesDescribed)
        await ask(master, RestoreHistory(old, described.found[0].where), Done)
        await until_true(lambda: leads(master), "it leads")
        assert (await ask(master, DescribeHistories(), HistoriesDescribed)).older == old


async def test_a_fresh_cluster_gives_way_to_what_is_offered_and_its_standby_follows(tmp_path: Path) -> None:
    """The new history stands behind the empty one in the same log."""
    store = MemoryStore()
    async with running(store, tmp_path / "a", "one") as one, running(store, tmp_path / "b", "two") as two:
        await until_true(lambda: leads(one) or leads(two), "one leads")
        primary, standby = (one, two) if leads(one) else (two, one)
        await until_true(lambda: standby.promotable()[0], "the other follows")
        with pytest.raises(HoldfastError):
            await ask(standby, RestoreHistory(11), Done)
        await offer(primary, catalogue())
        await ask(primary, RestoreHistory(11), Done)

        def restored() -> bool:
            engine = primary.server.engine
            return leads(primary) and engine is not None and 11 in engine.state.continues

        await until_true(restored, "the same master leads on")
        await until_true(lambda: 11 in standby.standby.state.continues, "the standby follows")
        assert primary.server.engine is not None
        assert standby.standby.state.continues == primary.server.engine.state.continues
        assert standby.standby.state.catalogue.count == 5


async def test_objects_that_are_served_are_not_lost_without_being_asked_for(tmp_path: Path) -> None:
    async with running(MemoryStore(), tmp_path) as master:
        await until_true(lambda: leads(master), "it leads")
        await offer(master, catalogue())
        await ask(master, RestoreHistory(11), Done)

        def restored() -> bool:
            return leads(master) and master.server.engine.state.objects == 5  # type: ignore[union-attr]

        await until_true(restored, "it is restored")
        now = history_of(master)
        await offer(master, catalogue(2))
        with pytest.raises(HoldfastError, match="would be lost"):
            await ask(master, RestoreHistory(11), Done)
        assert history_of(master) == now
        await ask(master, RestoreHistory(11, replace=True), Done)
        await until_true(lambda: leads(master) and history_of(master) != now, "it gave way")


async def test_what_is_not_sound_or_not_meant_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad input never begins a history."""
    monkeypatch.setattr(restoration, "MOST_CATALOGUE_BYTES", 1_000_000)
    store = MemoryStore()
    async with running(store, tmp_path) as master:
        await until_true(lambda: leads(master), "it leads")
        before = store.cluster(CLUSTER).last
        spoiled = bytearray(catalogue())
        spoiled[len(spoiled) // 2] ^= 1
        for content, order in (
            (bytes(spoiled), RestoreHistory(11)),
            (catalogue(), RestoreHistory(12)),
            (b"not a snapshot", RestoreHistory(11)),
            (catalogue(), RestoreHistory(11, "memory")),
            (catalogue(), RestoreHistory(11, "no-such-file.hfs")),
        ):
            await offer(master, content)
            with pytest.raises(HoldfastError):
                await ask(master, order, Done)
        with pytest.raises(HoldfastError):
            await ask(master, OfferCatalogue(7, b"out of order"), Done)
        await ask(master, OfferCatalogue(0, bytes(900_000)), Done)
        with pytest.raises(HoldfastError):
            await ask(master, OfferCatalogue(900_000, bytes(200_000)), Done)
        assert store.cluster(CLUSTER).last == before
        assert leads(master)
