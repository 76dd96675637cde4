"""From role to role, on the memory backend: what must not be left behind when one ends in an awkward moment."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.coordination.interface import Batches, Leader, Term
from holdfast.coordination.memory import MemoryCoordination, MemoryStore
from holdfast.core.rules import Rules
from holdfast.core.state.applied import Applied
from holdfast.core.state.renewals import Renewed
from holdfast.core.state.state import State
from holdfast.errors import HoldfastError, NotAuthorized, NotLeader, ReplyLost
from holdfast.master import announcement
from holdfast.master.announcement import MASTERS, Announcement
from holdfast.master.election.leader_watch import LeaderWatch
from holdfast.master.histories import snapshot_upkeep
from holdfast.master.histories.snapshot_upkeep import Snapshots
from holdfast.master.plan import Plan
from holdfast.master.renewals import RenewalFollower, RenewalWriter
from holdfast.master.roles.master import Master
from holdfast.master.server import RpcServer
from holdfast.master.status.view import MasterView
from holdfast.messages.requests import ChangeSettings, Failed, SettingsInForce
from holdfast.messages.shapes import Record
from holdfast.replication.batches import Position, UnknownRecord, encode_batch, encode_record
from holdfast.replication.renewals import PREFIX, RenewalSender
from holdfast.replication.snapshot_store import SnapshotFailed, SnapshotStore
from holdfast.replication.standby import Standby
from tests.contract.stories import soon, until_true
from tests.master.masters import gate_flush, running_master
from tests.stories.pair import Pair


class UnreadableLog(MemoryCoordination):
    """The log turns out to be of a newer version in the very moment in which the term is won, or so many turns of the
    loop before that."""

    def __init__(self, store: MemoryStore, turns: int = 0) -> None:
        super().__init__(store)
        self.won = asyncio.Event()
        self._turns = turns

    async def campaign(self, address: str, replacing: int | None = None) -> Term:
        term = await super().campaign(address, replacing)
        self.won.set()
        try:
            for _ in range(self._turns):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            await term.resign()
            raise
        return term

    async def follow(self, after_index: int) -> AsyncGenerator[Batches, None]:
        await self.won.wait()
        raise UnknownRecord("the log was written by a newer version; nothing was applied. Upgrade this master")
        yield []


class Doubtful(MemoryCoordination):
    """Refuses, or loses the answer to, the first request of each kind that a master makes beside its work."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.failed: list[str] = []

    def _fail_once(self, what: str, error: HoldfastError) -> None:
        if what not in self.failed:
            self.failed.append(what)
            raise error

    async def publish(self, name: str, value: bytes, ttl_ms: int | None) -> None:
        await super().publish(name, value, ttl_ms)
        self._fail_once(f"publish {name}", ReplyLost("no answer came; it may have been written"))

    async def watch_leader(self) -> AsyncGenerator[Leader | None, None]:
        self._fail_once("watch the leader", NotAuthorized("the token is not known here yet"))
        async for leader in super().watch_leader():
            yield leader

    async def watch(self, prefix: str) -> AsyncGenerator[dict[str, bytes], None]:
        self._fail_once(f"watch {prefix}", NotAuthorized("the token is not known here yet"))
        async for news in super().watch(prefix):
            yield news


@asynccontextmanager
async def running(
    coordination: MemoryCoordination, folder: Path | None = None, guesses: bool = False
) -> AsyncIterator[Master]:
    plan = Plan(Rules(), "holdfast", "here:7070", 5_000, early_takeover=guesses, again_seconds=0.02)
    async with running_master(coordination, plan, folder) as master:
        yield master


@pytest.mark.parametrize("guesses", [False, True])
@pytest.mark.parametrize("turns", range(20))
async def test_a_term_won_in_the_moment_in_which_following_fails_is_resigned(turns: int, guesses: bool) -> None:
    """I15: nobody would serve under it, and nobody else could."""
    store = MemoryStore()
    coordination = UnreadableLog(store, turns)
    async with running(coordination, guesses=guesses) as master:
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


async def test_what_fails_once_beside_the_work_of_a_master_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """I10: an answer that was lost, or a refusal that passes, must not end an announcement or a watch for good."""
    monkeypatch.setattr(announcement, "RENEWED_MS", 100)
    store = MemoryStore()
    leader, standby = MemoryCoordination(store), Doubtful(store)
    term = await soon(leader.campaign("there:7070"))
    async with running(standby) as master:
        await until_true(lambda: master.leader is not None, "it sees the leader")
        await until_true(lambda: f"watch {PREFIX}" in standby.failed, "it tried to follow renewals")
        name = f"{MASTERS}here"
        await until_true(lambda: f"publish {name}" in standby.failed, "it said where it is, and heard no answer")
        await leader.unpublish(name)
        await until_true(lambda: name in store.cluster("holdfast").published, "it goes on saying where it is")
        follower = master.renewals
        assert isinstance(follower, RenewalFollower)
        await term.resign()
        await until_true(lambda: master.role == "primary", "it leads, whatever failed beside")
    await leader.close()


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
        master.hand_over()
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


async def test_a_record_that_could_be_applied_in_part_only_ends_the_term(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """I5, I14: what was answered before is in the log and in the next term; nothing of the torn state is served,
    remembered or written to a snapshot."""
    store = MemoryStore()
    async with running(MemoryCoordination(store), tmp_path) as master:
        await until_true(lambda: master.role == "primary", "it leads")
        engine = master.server.engine
        assert engine is not None
        held: list[object] = []
        assert master.histories is not None
        monkeypatch.setattr(master.histories, "hold", lambda *what: held.append(what))
        _, index = engine.handle(ChangeSettings({"lease_ttl_ms": 4_000}), 1, 1, 0)
        written = asyncio.Event()
        engine.when_durable(index, written.set)

        def tear(state: State, record: Record, now: int) -> Applied:
            state.changed = {"lease_ttl_ms": 1_000}
            raise KeyError("a defect")

        with monkeypatch.context() as patched:
            patched.setattr("holdfast.core.primary.primary.apply", tear)
            with pytest.raises(KeyError):
                engine.handle(ChangeSettings({"lease_ttl_ms": 3_000}), 1, 1, 0)
        reply, _ = engine.handle(ChangeSettings({}), 1, 1, 0)
        assert isinstance(reply, Failed)
        assert reply.code == NotLeader.code
        with pytest.raises(SnapshotFailed):
            await soon(master.snapshot())
        await soon(written.wait())
        await until_true(lambda: master.server.engine not in (None, engine), "it leads again, from the log")
        again = master.server.engine
        assert again is not None
        assert again.state.changed == {"lease_ttl_ms": 4_000}
        assert held == []


async def test_whoever_waits_for_a_snapshot_is_told_when_the_term_ends(tmp_path: Path) -> None:
    """I10, I13: and it keeps nobody from writing the next one."""
    store = MemoryStore()
    other = MemoryCoordination(store)
    child_ends = threading.Event()
    async with running(MemoryCoordination(store), tmp_path) as master:
        await until_true(lambda: master.role == "primary", "it leads")
        leads_next = asyncio.create_task(other.campaign("there:7070"))
        assert master.snapshots is not None
        began = asyncio.Event()

        def in_child(store: SnapshotStore, state: State, position: Position) -> Callable[[], int]:
            began.set()
            return lambda: 1 - child_ends.wait(60)

        master.snapshots.in_child = in_child
        try:
            asked = asyncio.create_task(master.snapshot())
            await soon(began.wait())
            master.hand_over()
            with pytest.raises(SnapshotFailed, match="ask again"):
                await soon(asked)
            await soon(leads_next)
            await until_true(lambda: master.promotable()[0], "it follows")
            assert await soon(master.snapshot()) == master.standby.position.batch
        finally:
            child_ends.set()
    await other.close()


async def test_a_standby_whose_snapshot_directory_is_gone_says_so_and_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I15, I18: what fails beside following the log is seen while it fails, and costs no promotion."""
    monkeypatch.setattr(snapshot_upkeep, "LOOK_SECONDS", 0.01)
    store = MemoryStore()
    leader = MemoryCoordination(store)
    term = await soon(leader.campaign("there:7070"))
    folder = tmp_path / "snapshots"
    async with running(MemoryCoordination(store), folder) as master:
        await until_true(lambda: master.promotable()[0], "it could take over")
        folder.rmdir()
        await until_true(folder.is_dir, "the directory is made again")
        folder.rmdir()
        folder.write_text("in the way")
        await until_true(lambda: not master.promotable()[0], "it says that it should not")
        assert "'snapshots' is down" in master.promotable()[1]
        assert str(folder) in master.promotable()[1]
        assert not MasterView(master).ready()[0]
        await term.resign()
        await until_true(lambda: master.role == "primary", "it leads all the same: nobody else does")
        await until_true(lambda: not MasterView(master).ready()[0], "and says what is wrong as a primary too")
        folder.unlink()
        await until_true(lambda: MasterView(master).ready()[0], "all is well")
        assert folder.is_dir()
    await leader.close()


async def test_a_defect_beside_the_log_does_not_cost_the_promotion(monkeypatch: pytest.MonkeyPatch) -> None:
    """I15: the standby is there when it is needed."""

    async def broken(*_: object) -> None:
        raise KeyError("defect")

    monkeypatch.setattr(Snapshots, "keep_for_standby", broken)
    monkeypatch.setattr(Announcement, "renew", broken)
    store = MemoryStore()
    leader = MemoryCoordination(store)
    term = await soon(leader.campaign("there:7070"))
    async with running(MemoryCoordination(store)) as master:
        await until_true(lambda: set(master.supervisor.down()) == {"snapshots", "announcements"}, "both are down")
        assert not master.promotable()[0]
        await term.resign()
        await until_true(lambda: master.role == "primary", "it leads")
        assert master.server.engine is not None
    await leader.close()


class Watched(MemoryCoordination):
    """Sets an event when a term is won."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.won = asyncio.Event()

    async def campaign(self, address: str, replacing: int | None = None) -> Term:
        term = await super().campaign(address, replacing)
        self.won.set()
        return term


@pytest.mark.parametrize("turns", range(40))
async def test_a_master_that_is_stopped_on_its_way_to_leading_keeps_no_term(turns: int) -> None:
    """I15: in whatever step of it; nobody else could lead until the term has run out."""
    store = MemoryStore()
    coordination = Watched(store)
    plan = Plan(Rules(), "holdfast", "here:7070", 3_600_000, early_takeover=False)
    task = asyncio.create_task(Master(RpcServer("here", ""), coordination, plan, SnapshotStore(None)).run())
    await soon(coordination.won.wait())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    other = MemoryCoordination(store)
    try:
        assert (await soon(other.campaign("there:7070"))).proof == "resigned"
    finally:
        await other.close()
        await coordination.close()


async def test_a_snapshot_asked_for_during_a_promotion_has_nothing_that_is_in_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: the new epoch is in the state before it is in the log. If that fails, no snapshot may have it."""
    store = MemoryStore()
    async with running(MemoryCoordination(store), tmp_path) as master:
        await until_true(lambda: master.role == "primary", "it leads")
    reached, may_go_on = gate_flush(monkeypatch)
    async with running(MemoryCoordination(store), tmp_path) as master:
        await soon(reached.wait())
        asked = asyncio.create_task(master.snapshot())
        await asyncio.wait([asked], timeout=0.2)  # However far it gets before the epoch is durable.
        for kept in master.store.kept(master.standby.state.log_id):
            restored = master.store.read(kept)
            assert restored is not None
            assert restored.state.epoch == 1, "the last epoch that is durable"
        may_go_on.set()
        await soon(asked)


async def test_a_master_whose_term_is_late_when_its_epoch_is_durable_serves_once_it_is_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I15, I19: while it was stopped another may have led, with another history (simulated seed 12001075)."""
    reached, may_go_on = gate_flush(monkeypatch)
    async with running(MemoryCoordination(MemoryStore())) as master:
        await soon(reached.wait())
        role = master.primary_role
        assert role is not None
        renewed = role.engine.leads_until
        role.engine.leads_until = lambda: 0
        may_go_on.set()
        await until_true(lambda: role.last_batch > 0, "its epoch is durable")
        for _ in range(20):
            await asyncio.sleep(0)
        assert master.server.engine is None, "it does not call itself the primary"
        role.engine.leads_until = renewed
        await until_true(lambda: master.role == "primary", "its term was renewed, and nobody else led")


async def test_a_former_primary_keeps_nothing_of_its_term(tmp_path: Path) -> None:
    """I17: its catalogue is read from the log again, and is not held twice."""
    store = MemoryStore()
    other = MemoryCoordination(store)
    async with running(MemoryCoordination(store), tmp_path) as master:
        await until_true(lambda: master.role == "primary", "it leads")
        led = weakref.ref(master.server.engine)
        leads_next = asyncio.create_task(other.campaign("there:7070"))
        master.hand_over()
        await soon(leads_next)
        await until_true(lambda: master.promotable()[0], "it follows")

        def is_forgotten() -> bool:
            gc.collect()
            return led() is None

        await until_true(is_forgotten, "its engine is gone")
        assert master.term_figures.log_batches >= 1, "what it wrote is still told"
    await other.close()


async def test_past_its_term_a_primary_names_no_leader_of_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12: nobody is led to a master that may answer nothing. Its watch is late, as over a store that stopped
    answering, and has not yet shown the master itself."""

    async def late(watch: LeaderWatch, _: object) -> None:
        watch.leader = Leader(0, "former:7070")
        await asyncio.Event().wait()

    monkeypatch.setattr(LeaderWatch, "run", late)
    plan = Plan(Rules(), "holdfast", "here:7070")
    async with running_master(MemoryCoordination(MemoryStore()), plan, tmp_path) as master:
        await until_true(lambda: master.engine is not None)
        assert master.leader_address == "here:7070"
        engine = master.server.engine
        assert engine is not None
        engine.leads_until = lambda: 0
        assert (master.role, master.leader_address) == ("standby", "")


async def test_the_writer_of_renewals_goes_on_where_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standbys know the values of an epoch by their numbers: those of a writer that began again would be skipped."""
    take, failed = RenewalSender.take, asyncio.Event()

    def fails_once(sender: RenewalSender, now: int) -> list[tuple[str, bytes, Renewed]]:
        if failed.is_set():
            return take(sender, now)
        failed.set()
        raise RuntimeError("a defect")

    monkeypatch.setattr(RenewalSender, "take", fails_once)
    async with running(MemoryCoordination(MemoryStore())) as master:
        await until_true(failed.is_set, "it has failed")
        writer = master.renewals
        assert isinstance(writer, RenewalWriter)
        written = writer.sender.due_at()
        await until_true(lambda: writer.sender.due_at() > written, "it writes again")
        assert master.renewals is writer
