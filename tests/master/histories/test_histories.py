"""Masters that meet an empty store, or the log of another history: nothing of one history is used under another (I19),
and nothing begins empty where something could be lost by it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from holdfast.coordination.memory import MemoryCoordination, MemoryStore
from holdfast.core.rules import Rules
from holdfast.master import announcement
from holdfast.master.histories import histories, snapshot_upkeep
from holdfast.master.histories.histories import Word
from holdfast.master.histories.snapshot_upkeep import PREFIX
from holdfast.master.plan import Plan
from holdfast.master.roles.master import Master
from holdfast.master.status.view import MasterView
from holdfast.messages.requests import ChangeSettings
from holdfast.replication.batches import NO_HASH, Position, encode_batch, encode_record
from holdfast.replication.chain import first_batch, goes_through
from holdfast.replication.snapshot_store import SnapshotStore
from tests.contract.stories import append_all, soon, until_true
from tests.master.masters import running_master
from tests.stories.pair import Pair

CLUSTER = "holdfast"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(snapshot_upkeep, "LOOK_SECONDS", 0.02)


@asynccontextmanager
async def running(
    store: MemoryStore, folder: Path | None, name: str = "here", new_history: bool = False, ttl_ms: int = 1_000
) -> AsyncIterator[Master]:
    coordination = MemoryCoordination(store, CLUSTER, ttl_ms)
    plan = Plan(
        Rules(), CLUSTER, f"{name}:7070", ttl_ms, early_takeover=False, new_history=new_history, again_seconds=0.02
    )
    async with running_master(coordination, plan, folder, name) as master:
        yield master


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def leads(master: Master) -> bool:
    return master.role == "primary"


def history_of(master: Master) -> int:
    engine = master.server.engine
    return engine.state.log_id if engine is not None else master.standby.state.log_id


def waiting(master: Master) -> str:
    assert master.histories is not None
    return master.histories.waits


def change(master: Master, lease_ttl_ms: int) -> None:
    engine = master.server.engine
    assert engine is not None
    engine.handle(ChangeSettings({"lease_ttl_ms": lease_ttl_ms}), 1, 1, 0)


async def lived(store: MemoryStore, folder: Path, batches: int = 6, snapshots: int = 2) -> int:
    """A history with so many snapshots in the folder, whose master has ended; its name."""
    async with running(store, folder) as master:
        await until_true(lambda: leads(master), "it leads")
        for number in range(batches):
            change(master, 4_000 + number)
            await until_true(lambda: not master.server.engine.waits_for_log, "it is durable")  # type: ignore[union-attr]
            if number >= batches - snapshots:
                await soon(master.snapshot())
        await until_true(lambda: master.store.followed != 0, "it has noted which history it follows")
        return history_of(master)


async def test_a_first_start_ever_begins_a_history_by_itself(tmp_path: Path) -> None:
    async with running(MemoryStore(), tmp_path) as master:
        await until_true(lambda: leads(master), "it leads")
        assert history_of(master)
        assert waiting(master) == ""


@pytest.mark.parametrize("snapshots", [0, 2])
async def test_a_master_that_knows_another_history_waits_and_says_so(tmp_path: Path, snapshots: int) -> None:
    """I19: with snapshots of it, or with no more than the note that there was one."""
    store = MemoryStore()
    old = await lived(store, tmp_path, snapshots=snapshots)
    store.wipe(CLUSTER)
    with structlog.testing.capture_logs() as lines:
        async with running(store, tmp_path) as master:
            await until_true(lambda: waiting(master), "it waits for the operator")
            view = MasterView(master)
            status = view.status()
            for text in (waiting(master), status["promotable_reason"], status["waits"], view.ready()[1]):
                assert f"{old:016x}" in text
                assert "holdfast restore" in text
                assert "--new-history" in text
            assert (status["promotable"], view.ready()[0], status["role"]) == (False, False, "standby")
            assert [event["kind"] for event in view.events(0, 10)] == ["waiting"]
            assert await master.coordination.leader() is None  # type: ignore[union-attr]
    said = [line for line in lines if "waits for the operator" in line["event"]]
    assert len(said) == 1, "once in 30 seconds"
    assert store.cluster(CLUSTER).last == 0


async def test_the_waiting_is_said_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "SAY_AGAIN_SECONDS", 0.05)
    store = MemoryStore()
    await lived(store, tmp_path)
    store.wipe(CLUSTER)
    with structlog.testing.capture_logs() as lines:
        async with running(store, tmp_path):
            await until_true(lambda: sum("waits for the operator" in line["event"] for line in lines) >= 3, "thrice")


async def test_the_operators_word_begins_an_empty_history_and_keeps_the_old_files(tmp_path: Path) -> None:
    """I1, I19: the exact way in which a new log was once trimmed by the numbers of the old one."""
    store = MemoryStore()
    old = await lived(store, tmp_path, batches=40)
    before = files(tmp_path)
    store.wipe(CLUSTER)
    async with running(store, tmp_path, new_history=True) as master:
        await until_true(lambda: leads(master), "it leads by the operator's word")
        new = history_of(master)
        assert new != old
        change(master, 5_001)
        # Snapshots are looked at every 20 ms here: what is trimmed wrongly is trimmed soon.
        await until_true(lambda: master.store.followed == new, "its snapshots were looked after")
        assert min(store.cluster(CLUSTER).batches) == 1, "nothing is trimmed by another history's numbers"
        assert list(await master.coordination.list(PREFIX)) == [], "nor offered"  # type: ignore[union-attr]
    for folder in (tmp_path, tmp_path / "another"):
        async with running(store, folder) as master:
            await until_true(lambda: leads(master), "the next master goes on with the new history")
            assert history_of(master) == new
            engine = master.server.engine
            assert engine is not None
            assert engine.state.changed == {"lease_ttl_ms": 5_001}
    assert before <= files(tmp_path)


async def test_the_operators_word_is_good_for_one_history(tmp_path: Path) -> None:
    store = MemoryStore()
    await lived(store, tmp_path)
    store.wipe(CLUSTER)
    async with running(store, tmp_path, new_history=True) as master:
        await until_true(lambda: leads(master), "it leads by the operator's word")
        store.wipe(CLUSTER)
        await until_true(lambda: waiting(master), "the next emptied store asks for another word")


@asynccontextmanager
async def waiting_for_a_word(folder: Path) -> AsyncIterator[tuple[int, Master]]:
    """A master that holds a history, which it names, and finds the store emptied."""
    store = MemoryStore()
    old = await lived(store, folder)
    store.wipe(CLUSTER)
    async with running(store, folder) as master:
        await until_true(lambda: waiting(master), "it waits for the operator")
        yield old, master


async def test_a_word_given_to_a_waiting_master_is_taken(tmp_path: Path) -> None:
    async with waiting_for_a_word(tmp_path) as (old, master):
        assert master.histories is not None
        master.histories.tell(Word())
        await until_true(lambda: leads(master), "it leads by the operator's word")
        assert history_of(master) not in (0, old)
        assert waiting(master) == ""


async def test_masters_without_a_data_directory_hold_the_history_of_a_store_that_is_emptied_under_them() -> None:
    """I1, I19: the primary's own state and the standby's both know every record."""
    store = MemoryStore()
    async with running(store, None, "one") as one, running(store, None, "two") as two:
        await until_true(lambda: leads(one) or leads(two), "one leads")
        primary, standby = (one, two) if leads(one) else (two, one)
        change(primary, 5_001)
        await until_true(lambda: standby.standby.state.changed == {"lease_ttl_ms": 5_001}, "the standby follows")
        old = history_of(primary)
        store.wipe(CLUSTER)
        await until_true(lambda: waiting(one) and waiting(two), "both wait for the operator")
        for master in (one, two):
            assert master.histories is not None
            assert master.histories.retained is not None
            state = master.histories.retained.standby.state
            assert (state.log_id, state.changed) == (old, {"lease_ttl_ms": 5_001})
            assert f"{old:016x} through record {state.index}" in waiting(master)
        async with running(store, None, "three") as fresh:
            await until_true(lambda: waiting(fresh), "one that knows of no history hears that the others wait")
        assert not leads(one)
        assert not leads(two)


async def test_what_a_master_holds_is_on_its_disk_while_it_waits(tmp_path: Path) -> None:
    """I1: it may be ended before the operator has decided."""
    store = MemoryStore()
    async with running(store, tmp_path) as master:
        await until_true(lambda: leads(master), "it leads")
        change(master, 5_001)
        await until_true(lambda: not master.server.engine.waits_for_log, "it is durable")  # type: ignore[union-attr]
        old = history_of(master)
        store.wipe(CLUSTER)
        await until_true(lambda: waiting(master), "it waits for the operator")
        kept = master.store.kept(old)
        assert len(kept) == 1
    found = SnapshotStore(tmp_path).read(kept[0])
    assert found is not None
    assert found.state.changed == {"lease_ttl_ms": 5_001}


async def test_a_standby_follows_a_store_that_is_replaced_by_another_and_keeps_what_it_held(tmp_path: Path) -> None:
    """I15, I19: it is never promotable with the state of the history that it had before."""
    store, other = MemoryStore(), MemoryStore()
    async with running(other, None, "there") as there:
        await until_true(lambda: leads(there), "another history begins elsewhere")
        for number in range(9):
            change(there, 7_000 + number)
            await until_true(lambda: not there.server.engine.waits_for_log, "it is durable")  # type: ignore[union-attr]
        new = history_of(there)
    leader = MemoryCoordination(store, CLUSTER, 600_000)
    term = await soon(leader.campaign("first:7070"))
    pair = Pair()
    pair.node("a", size=1 << 20)
    pair.put("one", "two")
    batch, _ = encode_batch(Position(), [encode_record(record) for record in pair.primary.records])
    await append_all(term, 1, [batch])
    async with running(store, tmp_path) as master:
        await until_true(lambda: master.promotable()[0], "it follows")
        old = history_of(master)
        ours, theirs = store.cluster(CLUSTER), other.cluster(CLUSTER)
        ours.batches, ours.last = theirs.batches, theirs.last
        ours.changed()
        await until_true(lambda: history_of(master) == new, "it follows the other history")
        await until_true(lambda: master.promotable()[0], "and could lead that one")
        assert master.standby.state.changed == {"lease_ttl_ms": 7_008}
        assert master.standby.state.objects == 0
        await until_true(lambda: master.store.kept(old), "what it held is kept under its history's name")
        kept = master.store.kept(old)
    found = SnapshotStore(tmp_path).read(kept[0])
    assert found is not None
    assert found.state.objects == 2
    await leader.close()


async def test_a_snapshot_of_another_history_that_ends_where_the_log_ends_is_not_taken_for_it(
    tmp_path: Path,
) -> None:
    """I13, I19: with the same number at the end of the log there is no next batch that would not fit."""
    store, other = MemoryStore(), MemoryStore()
    old = await lived(store, tmp_path, batches=5, snapshots=1)
    (kept,) = SnapshotStore(tmp_path).kept(old)
    leader = MemoryCoordination(other, CLUSTER, 600_000)
    term = await soon(leader.campaign("first:7070"))
    pair = Pair()
    position = Position()
    for record in pair.primary.records:
        batch, position = encode_batch(position, [encode_record(record)])
        await append_all(term, position.batch, [batch])
    while position.batch < kept.batch:
        batch, position = encode_batch(position, [])
        await append_all(term, position.batch, [batch])
    assert position.batch == kept.batch
    async with running(other, tmp_path) as master:
        await until_true(lambda: master.promotable()[0], "it has read the log")
        assert history_of(master) == pair.state.log_id != old
    await leader.close()


async def test_a_snapshot_that_the_log_has_lost_is_set_aside_and_the_log_not_trimmed_by_it(tmp_path: Path) -> None:
    """I13: the store was brought back from a backup, and the same history goes on from there in another way."""
    store = MemoryStore()
    old = await lived(store, tmp_path, batches=12, snapshots=1)
    cluster = store.cluster(CLUSTER)
    newest = SnapshotStore(tmp_path).kept(old)[0].batch
    while cluster.last > 4:
        del cluster.batches[cluster.last]
        cluster.last -= 1
    async with running(store, tmp_path) as master:
        await until_true(lambda: leads(master), "it leads from the log's beginning")
        assert history_of(master) == old
        assert master.store.kept(old) == []
        assert [name for name in files(tmp_path) if name.startswith(f"stray-{old:016x}")]
        for number in range(newest):
            change(master, 6_000 + number)
            await until_true(lambda: not master.server.engine.waits_for_log, "it is durable")  # type: ignore[union-attr]
        batch = await soon(master.snapshot())
        assert batch > newest
        assert master.store.trim_through(old) == 0, "one snapshot of this log is there, and not two"


async def test_a_master_that_cannot_follow_is_neither_promotable_nor_ready(tmp_path: Path) -> None:
    """The log was trimmed past everything that anybody has: it waits for a snapshot and does not stand for election."""
    store = MemoryStore()
    await lived(store, tmp_path / "gone", batches=8)
    async with running(store, tmp_path / "gone") as master:
        await until_true(lambda: leads(master), "it leads")
        await master.coordination.trim(100)  # type: ignore[union-attr]
    async with running(store, tmp_path / "new") as master:
        await until_true(lambda: "trimmed past it" in master.promotable()[1], "it says why")
        assert MasterView(master).ready()[0] is False
        assert await master.coordination.leader() is None, "it did not even try"  # type: ignore[union-attr]


async def test_a_former_primary_goes_on_from_its_memory_where_no_snapshot_reaches_the_log(tmp_path: Path) -> None:
    """I13, found by simulation: it threw its memory away, and nobody could lead any more."""
    store = MemoryStore()
    await lived(store, tmp_path, batches=8)
    async with running(store, tmp_path) as master:
        await until_true(lambda: leads(master), "it leads")
        change(master, 5_001)
        engine = master.server.engine
        assert engine is not None
        await until_true(lambda: not engine.waits_for_log, "it is durable")
        old, epoch = history_of(master), engine.state.epoch
        await master.coordination.trim(store.cluster(CLUSTER).last - 1)  # type: ignore[union-attr]
        for kept in master.store.kept(old):
            kept.path.write_bytes(kept.path.read_bytes()[:-1] + b"?")
        store.expire_leader(CLUSTER)
        await until_true(lambda: leads(master) and master.server.engine is not engine, "it leads again")
        again = master.server.engine
        assert again is not None
        assert (again.state.log_id, again.state.changed) == (old, {"lease_ttl_ms": 5_001})
        assert again.state.epoch > epoch


async def test_a_master_whose_coordination_is_silent_for_long_is_not_promotable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcement, "RENEWED_MS", 40)
    store = MemoryStore()
    leader = MemoryCoordination(store, CLUSTER, 600_000)
    await soon(leader.campaign("first:7070"))
    async with running(store, tmp_path) as master:
        await until_true(lambda: master.promotable()[0], "it follows")
        store.faults.outage = True
        await until_true(lambda: "does not answer" in master.promotable()[1], "it says why")
        assert master.promotable()[0] is False
        store.faults.outage = False
        await until_true(lambda: master.promotable()[0], "and follows again")
    await leader.close()


async def test_a_primarys_state_with_records_that_are_not_durable_goes_on_from_nowhere(
    tmp_path: Path,
) -> None:
    """I5, I13: if its history came back from a backup, that state must not pass for a position in it."""
    store = MemoryStore()
    async with running(store, tmp_path) as master:
        await until_true(lambda: leads(master), "it leads")
        store.faults.appends.extend(["lost"] * 1_000)
        change(master, 5_001)
        store.wipe(CLUSTER)
        store.faults.appends.clear()
        await until_true(lambda: waiting(master), "it waits for the operator")
        assert master.histories is not None
        assert master.histories.retained is not None
        assert master.histories.retained.standby.position.hash == NO_HASH
        assert master.histories.retained.standby.state.changed == {"lease_ttl_ms": 5_001}


async def test_whether_the_log_goes_through_a_position() -> None:
    """I13, I19."""
    store = MemoryStore()
    coordination = MemoryCoordination(store, CLUSTER)
    term = await soon(coordination.campaign("first:7070"))
    assert await first_batch(coordination) == 1
    positions = [Position()]
    for number in range(1, 9):
        batch, position = encode_batch(positions[-1], [f"\xa1{number}".encode("latin-1")])
        positions.append(position)
        await append_all(term, number, [batch])
    foreign = Position(5, 5, b"another history!")
    assert [await goes_through(coordination, position) for position in positions] == [True] * 9
    assert await goes_through(coordination, foreign) is False
    await coordination.trim(5)
    assert await first_batch(coordination) == 6
    expected = [True, None, None, None, None, True, True, True, True]
    assert [await goes_through(coordination, position) for position in positions] == expected
    assert await goes_through(coordination, foreign) is False
    assert await goes_through(coordination, Position(9, 9, b"beyond its end !")) is False
    await coordination.close()


async def test_a_standby_that_starts_before_the_first_record_follows_whoever_begins(tmp_path: Path) -> None:
    store = MemoryStore()
    async with running(store, tmp_path / "one", "one") as one, running(store, tmp_path / "two", "two") as two:
        await until_true(lambda: leads(one) or leads(two), "one begins")
        await until_true(lambda: history_of(one) == history_of(two) != 0, "the other follows it")
        await until_true(lambda: one.promotable()[0] or two.promotable()[0], "and could lead")
        await until_true(lambda: one.store.followed == two.store.followed == history_of(one), "both know it later")
