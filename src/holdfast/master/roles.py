"""One master's life: standby, then primary, then standby again, for as long as the process runs.

As a standby it follows the log and campaigns. When it wins, it applies the log to its end, promotes the state, logs the
new epoch, and only then serves (I15). When its term ends, in any way, it closes every connection: changes that are not
durable were acknowledged to nobody, and clients ask the next primary about requests whose fate they do not know. It
then starts over from a snapshot and the log, because its own records that are not durable are in no history.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import structlog

from holdfast.coordination.interface import (
    Compacted,
    Coordination,
    CoordinationLost,
    Deposed,
    Leader,
    LogBehind,
    Term,
)
from holdfast.core.primary.primary import Primary
from holdfast.core.promotion import promote
from holdfast.core.state.state import State
from holdfast.entropy import fresh_bytes, fresh_id
from holdfast.errors import HoldfastError, TryAgain
from holdfast.instant import Instant, now_ms, now_seconds
from holdfast.master.announcement import Announcement
from holdfast.master.election.candidacy import (
    HOW_IT_ENDED,
    PROVEN,
    check_order,
    give_back,
    win,
    win_for_order,
    withdraw,
)
from holdfast.master.election.suspects import watch_suspects
from holdfast.master.engine import Engine
from holdfast.master.events import EventHistory
from holdfast.master.histories.histories import Histories, WaitsForOperator, Word
from holdfast.master.histories.snapshot_upkeep import Snapshots
from holdfast.master.object_events.events import ObjectEvents
from holdfast.master.plan import Plan
from holdfast.master.renewals import RenewalFollower, RenewalWriter, keep_evicting_alone
from holdfast.master.server import RpcServer
from holdfast.master.tasks import first, until_ended
from holdfast.outage import Outage
from holdfast.replication.batches import NO_HASH, BrokenChain, Position, UnknownRecord
from holdfast.replication.carried import append_catalogue
from holdfast.replication.chain import goes_through
from holdfast.replication.log_writer import LogWriter
from holdfast.replication.pending_log import PendingLog
from holdfast.replication.renewals import RenewalSender
from holdfast.replication.snapshot_store import SnapshotFailed, SnapshotStore
from holdfast.replication.standby import Standby
from holdfast.supervisor import Supervisor, first_cause
from holdfast.witness import this_process

log = structlog.get_logger("holdfast.master")
AGAIN_SECONDS = 0.5
MODEST_SECONDS = 3.0
RESTORE_SECONDS = 10.0
EPOCHS_APART = 4_096
"""Ids are made from epochs, and a snapshot does not know the epochs after it: there were surely fewer than this."""
TERM_OVER = "its term is over"


class Master:
    """The roles over one server. Without coordination it leads alone, and its log is in memory."""

    def __init__(
        self,
        server: RpcServer,
        coordination: Coordination | None,
        plan: Plan,
        store: SnapshotStore,
        object_events: ObjectEvents | None = None,
    ) -> None:
        self.server = server
        self.supervisor: Supervisor = server.supervisor
        self.coordination = coordination
        self.plan = plan
        self.cluster = plan.cluster
        self.store = store
        self.snapshots = self._snapshots(coordination)
        self.events = EventHistory()
        self.object_events = object_events
        self.histories = self._histories(coordination)
        self.standby = Standby()
        self.leader: Leader | None = None
        self.announcement = Announcement(server.name, plan.address)
        self.hand_over = asyncio.Event()
        self.restoring = ""
        """The current step of a restore; empty if none runs."""
        self.restore_failure = ""
        """Why the last restore failed."""
        self._replacing: Term | None = None
        """This master's own term, which the term that restores a history replaces."""
        self.promotion_ms = -1
        """Duration of the last promotion, from winning the term to serving."""
        self.writer: LogWriter | None = None
        self.renewals: RenewalWriter | RenewalFollower | None = None
        self._caught_up = asyncio.Event()
        self._last_batch = 0
        self._won_at = 0.0
        self._modest_until = 0.0
        self._another_leads = asyncio.Event()

    @property
    def engine(self) -> Engine | None:
        """The engine of a primary, while its term lasts by its own clock (I12): a master that was stopped, or cut off
        from coordination, stops being primary then, whether or not it knows of the next one."""
        engine = self.server.engine
        return engine if engine is not None and now_ms() < engine.leads_until() else None

    @property
    def role(self) -> str:
        return "primary" if self.engine is not None else "standby"

    def _snapshots(self, coordination: Coordination | None) -> Snapshots | None:
        if coordination is None:
            return None
        plan, server = self.plan, self.server
        well = partial(self.supervisor.well, "snapshots")
        return Snapshots(self.store, coordination, server.name, plan.address, server.token, plan.snapshot_bytes, well)

    def _histories(self, coordination: Coordination | None) -> Histories | None:
        if coordination is None or self.snapshots is None:
            return None
        word = Word() if self.plan.new_history else None
        return Histories(self.snapshots, coordination, self.server.name, lambda: self.leader, self.events, word)

    @property
    def leader_address(self) -> str:
        if self.engine is not None:
            return self.plan.address
        if self.leader is None or (self.server.engine is not None and self.leader.address == self.plan.address):
            return ""  # The last leader that it saw was itself, and its term is over.
        return self.leader.address

    @property
    def log_index(self) -> int:
        engine = self.server.engine
        return engine.state.index if engine is not None else self.standby.position.index

    def promotable(self) -> tuple[bool, str]:
        """Could it take over, and why (not)?"""
        if self.server.engine is not None:
            return False, "it is the primary" if self.engine is not None else TERM_OVER
        histories = self.histories
        unable = self.standby.stuck or (histories.waits or histories.stuck if histories is not None else "")
        if unable:
            return False, unable
        for name, why in self.supervisor.down().items():
            return False, f"its background task {name!r} is down: {why}"
        if self.announcement.outage.failures > 1:
            return False, f"coordination does not answer: {self.announcement.outage.why}"
        behind = self._last_batch - self.standby.position.batch
        if not self._caught_up.is_set() or behind > 0:
            return False, f"it has not caught up with the log: {max(0, behind)} batches behind"
        return True, f"it follows the log at record {self.standby.position.index}"

    async def run(self) -> None:
        """Run until cancelled."""
        if self.coordination is None or self.histories is None:
            self._lead_alone()
            await asyncio.Event().wait()
            return
        coordination = self.coordination
        watching = self._background("leader watch", lambda: self._watch_leader(coordination))
        announcing = self._background("announcements", lambda: self.announcement.renew(coordination))
        try:
            while True:
                try:
                    await self._as_primary(coordination, *await self._term(coordination))
                except UnknownRecord:
                    await asyncio.Event().wait()  # It stays as it is, reports why, and never serves.
                except (BrokenChain, LogBehind) as error:
                    log.error("the log does not continue what this master holds; it starts over", why=str(error))
                    self.histories.hold(self.standby, self.standby.position)
                    self._forget()
                    await asyncio.sleep(AGAIN_SECONDS)
                except Compacted as error:
                    log.warning("the log was trimmed past this master; it looks for a snapshot", why=str(error))
                    self._forget()
                    await asyncio.sleep(AGAIN_SECONDS)
                except (HoldfastError, ValueError) as error:
                    # A failed promotion serves nothing, and nothing of the attempt is kept (I15).
                    log.error("back to following the log", why=str(error))
                    self._forget()
                    await asyncio.sleep(AGAIN_SECONDS)
        finally:
            self._serve_nobody("the master is stopping")
            await until_ended(watching, announcing)

    def _background(self, name: str, work: Callable[[], Awaitable[object]]) -> asyncio.Task[None]:
        """Run background work of the role. Its failure is logged, and does not end the role."""
        return asyncio.create_task(self.supervisor.keep(name, work), name=name)

    def _lead_alone(self) -> None:
        now = now_ms()
        engine = Engine(Primary(State(), self.plan.rules), object_events=self.object_events)
        engine.note = self.events.note
        engine.on_lost_files = self._note_lost_files
        engine.start_log(fresh_id(), self.cluster, fresh_bytes(32), now)
        engine.start_epoch(1, now)
        self.server.lead(engine)

    async def _watch_leader(self, coordination: Coordination) -> None:
        while True:
            try:
                async with contextlib.aclosing(coordination.watch_leader()) as leaders:
                    async for leader in leaders:
                        self.leader = leader
                        other = leader is not None and leader.address != self.plan.address
                        self.server.leader_hint = leader.address if leader is not None and other else ""
                        (self._another_leads.set if other else self._another_leads.clear)()
            except HoldfastError as error:
                log.warning("who leads cannot be seen now; it is looked at again", why=str(error))
            await asyncio.sleep(AGAIN_SECONDS)

    async def _term(self, coordination: Coordination) -> tuple[Term, Word | None]:
        """Win a term: as a standby that follows the log, or at once for an order to restore, which is returned too."""
        histories = self.histories
        assert histories is not None, "there is coordination"
        if histories.restores is None:
            standing_by = asyncio.create_task(self._as_standby(coordination))
            asked = asyncio.create_task(histories.restore_asked.wait())
            try:
                await first(standing_by, asked)
            except BaseException:
                await withdraw(standing_by, asked)
                raise
            if standing_by.done() and histories.restores is None:
                await until_ended(asked)
                return standing_by.result(), None
            # A term won at this moment has an epoch that ignores those of the older history.
            await withdraw(standing_by, asked)
            if histories.restores is None:
                self._restore_failed("another master has begun a history meanwhile")
                raise TryAgain("an order to restore was overtaken; nothing was restored")
        word = histories.restores
        return await self._campaign_to_restore(coordination, word), word

    def restore(self, word: Word) -> None:
        """Begin a history with this catalogue as soon as the term for it is won. A history that is served ends."""
        assert self.histories is not None, "there is coordination"
        self.restoring, self.restore_failure = "winning a term", ""
        self.histories.tell(word)
        if self.role == "primary":
            self.hand_over.set()

    async def _campaign_to_restore(self, coordination: Coordination, word: Word) -> Term:
        """Win a term whose epoch is larger than any that the older history can have had since its snapshot."""
        coordination.epoch_floor = max(coordination.epoch_floor, word.epoch + EPOCHS_APART)
        replacing, self._replacing = self._replacing, None
        seconds = RESTORE_SECONDS + 2 * self.plan.leader_ttl_ms / 1000
        try:
            term = await win_for_order(coordination, self.plan.address, replacing, word.last, seconds)
        except (TimeoutError, HoldfastError) as error:
            why = str(error) or f"no term was won within {seconds:.0f} s; another master may lead"
            self._restore_failed(why)
            raise TryAgain(f"the restore was given up: {why}") from None
        self._won_at = now_seconds()
        return term

    def _restore_failed(self, why: str) -> None:
        assert self.histories is not None, "there is coordination"
        self.histories.end_restore()
        self.restoring, self.restore_failure = "", why
        log.error("no history was restored", why=why)

    async def _carry_over(self, coordination: Coordination, term: Term, word: Word) -> None:
        """Write the catalogue into the log, and continue from there."""
        assert term.epoch > word.epoch, "ids only grow (I6)"
        await check_order(coordination, self.server.name, word.mark, word.last)
        self.restoring = f"writing {len(word.content):,} bytes of catalogue to the log"
        log.info("restoring a history", epoch=term.epoch, bytes=len(word.content))
        served = await self._served_here(coordination)
        state, position = await append_catalogue(
            coordination, term, word.content, fresh_id(), fresh_bytes(32), now_ms(), self.plan.piece_bytes, served
        )
        self.standby = Standby(state, position)
        if self.object_events is not None:
            self.object_events.restored(position.batch, state)
        if self.snapshots is not None:
            # Have a snapshot of its own soon, for the next restore.
            self.snapshots.log_bytes = max(self.snapshots.log_bytes, 2 * self.plan.snapshot_bytes)

    async def _served_here(self, coordination: Coordination) -> list[int]:
        """The histories that this master knows of, including the one that is replaced. A node that has mounted its
        memory under one of them keeps it: an operator who restores twice must not lose the cache."""
        try:
            await self._drain(coordination)  # It may have been started a moment ago.
        except (HoldfastError, ValueError) as error:
            log.info("the log that gives way cannot be read to its end", why=str(error))
        assert self.histories is not None, "there is coordination"
        return await self.histories.known_here(self.standby.state, self.store)

    async def _as_standby(self, coordination: Coordination) -> Term:
        """Follow the log and campaign. Returns the term that was won."""
        self._caught_up.clear()
        log.info("this master is a standby: it follows the log and takes over when it must")
        snapshots, histories = self.snapshots, self.histories
        assert snapshots is not None, "there is coordination"
        assert histories is not None, "there is coordination"
        self.standby = await histories.start()
        if self.object_events is not None:
            self.object_events.follow(self.standby.state)
        following = asyncio.create_task(self._follow(coordination))
        keeping = self._background("snapshots", lambda: snapshots.keep_for_standby(lambda: self.standby))
        aside = self._background("renewals", lambda: self._follow_aside(coordination))
        admitted = asyncio.create_task(self._admit(histories))
        beside = (following, keeping, aside, admitted)
        try:
            # A master that has not read the log must not win over one that has.
            await first(following, admitted)
        except BaseException:
            await until_ended(*beside)
            raise
        campaigning = asyncio.create_task(self._campaign(coordination))
        try:
            await first(following, campaigning)
            await self._end_standby(*beside)
            self._won_at = now_seconds()
        except BaseException:
            await withdraw(campaigning, *beside)
            raise
        return campaigning.result()

    async def _end_standby(self, *tasks: asyncio.Task[Any]) -> None:
        """End the tasks of a standby that has won. Their errors no longer matter: the log is applied to its end once
        more, and a failure here must not cost the term."""
        try:
            await until_ended(*tasks)
        except Exception:
            log.exception("work of this standby ended in an error; it is promoted all the same")

    async def _admit(self, histories: Histories) -> None:
        """Return when this master may stand for election."""
        await self._caught_up.wait()
        await histories.admit(lambda: self.standby)

    async def _follow_aside(self, coordination: Coordination) -> None:
        """A standby's other work, once it has read the log to its end."""
        await self._caught_up.wait()
        rules = self.plan.rules
        while True:
            self.renewals = RenewalFollower(coordination, lambda: self.standby)
            try:
                async with asyncio.TaskGroup() as doing:
                    doing.create_task(self.renewals.run())
                    if rules.standby_eviction == "independent":
                        doing.create_task(keep_evicting_alone(lambda: self.standby, rules))
            except* HoldfastError as errors:
                log.warning("renewals cannot be followed now; they are again soon", why=str(first_cause(errors)))
            await asyncio.sleep(AGAIN_SECONDS)

    async def _follow(self, coordination: Coordination) -> None:
        """Follow the log. Raises `BrokenChain`, `LogBehind` or `Compacted` if it turns out to be another log, or to be
        trimmed past this master."""
        outage = Outage(logging.getLogger("holdfast.master"), "the log cannot be followed")
        while True:
            try:
                self._last_batch = await coordination.last_index()
                outage.over()
                if self.standby.position.batch > self._last_batch:
                    raise LogBehind(self._last_batch, self.standby.position.batch)
                if self.standby.position.batch == self._last_batch:
                    self._caught_up.set()
                await self._follow_on(coordination)
            except CoordinationLost as error:
                outage.seen(error)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _follow_on(self, coordination: Coordination) -> None:
        async with contextlib.aclosing(coordination.follow(self.standby.position.batch)) as following:
            async for batches in following:
                self._take(batches)
                if self.standby.position.batch >= self._last_batch:
                    self._caught_up.set()
                await asyncio.sleep(0)

    def _take(self, batches: list[tuple[int, bytes]]) -> None:
        now = now_ms()
        for number, batch in batches:
            try:
                self.standby.take(number, batch, now)
            except UnknownRecord as error:
                self.standby.stuck = str(error)
                log.error("the log cannot be followed further", why=str(error))
                raise
            if self.object_events is not None:
                self.object_events.taken(number, self.standby.state)
            if self.snapshots is not None:
                self.snapshots.log_bytes += len(batch)
        self._last_batch = max(self._last_batch, self.standby.position.batch)

    async def _campaign(self, coordination: Coordination) -> Term:
        """Wait for the leader's end; a refused connection to its port counts as a guess that it is dead."""
        # A master that handed over lets another one win.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._another_leads.wait(), max(0.0, self._modest_until - now_seconds()))
        return await win(coordination, self.plan.address, lambda: self.leader, self.plan.early_takeover)

    async def _drain(self, coordination: Coordination) -> None:
        """Apply the log to its end: the term is ours, so no other master can add to it. Raises `BrokenChain` or
        `LogBehind` if it is not the log that this master followed: it may have been replaced since (I19)."""
        last = await coordination.last_index()
        if self.standby.position.batch >= last:
            if not await goes_through(coordination, self.standby.position):
                raise LogBehind(last, self.standby.position.batch)
            return
        async with contextlib.aclosing(coordination.follow(self.standby.position.batch)) as following:
            async for batches in following:
                self._take(batches)
                if self.standby.position.batch >= last:
                    return

    async def _ready_to_serve(
        self, coordination: Coordination, term: Term, word: Word | None
    ) -> tuple[Engine, PendingLog]:
        """Apply the log to its end, or begin a new one with an older history's catalogue, and promote. If that fails,
        the term is resigned."""
        try:
            if word is not None:
                await self._carry_over(coordination, term, word)
            else:
                await self._drain(coordination)
            return self._promoted(term, restored=word is not None)
        except BaseException as error:
            if word is not None:
                self._restore_failed(str(error) or type(error).__name__)
            # This master cannot serve under this term; another one may be able to.
            self._modest_until = now_seconds() + MODEST_SECONDS
            await give_back(term)
            raise

    async def _as_primary(self, coordination: Coordination, term: Term, word: Word | None) -> None:
        """Serve under this term, which was won to follow the log or to restore a history (`word`)."""
        assert self.histories is not None, "there is coordination"
        engine, pending = await self._ready_to_serve(coordination, term, word)
        writer = self.writer = LogWriter(
            term,
            pending,
            coordination.max_batch_bytes,
            lambda: engine.after_durable(now_ms()),
            coordination.appends_in_flight,
        )
        engine.on_record = writer.rouse
        renewing = self._background("renewals", lambda: self._write_renewals(coordination, engine, term))
        ended = asyncio.create_task(term.ended())
        writing = asyncio.create_task(self._write(writer, engine, term, restored=word is not None))
        giving_up = asyncio.create_task(self.hand_over.wait())
        snapshots = self.snapshots
        assert snapshots is not None, "there is coordination"
        keeping = self._background("snapshots", lambda: snapshots.keep_for_primary(engine.state, writer, pending))
        watching = self._background("suspects", lambda: watch_suspects(engine.primary, self.server.name))
        try:
            await first(ended, writing, giving_up)
            if giving_up.done():
                log.info("handing over", epoch=term.epoch, **({"half_applied": pending.torn} if pending.torn else {}))
                engine.leads_until = lambda: 0
                self._modest_until = now_seconds() + MODEST_SECONDS
                writer.finish()
                await first(writing, ended)
            elif ended.done():
                log.warning("the term ended", epoch=term.epoch, why=ended.result())
        except Deposed as error:
            log.warning("this master was deposed", epoch=term.epoch, why=str(error))
        finally:
            if not pending.torn:
                self._hold(engine, pending)
            self._serve_nobody("this master is not the primary any more")
            self.hand_over.clear()
            snapshots.end_term()
            try:
                await until_ended(writing, keeping, watching, renewing, ended, giving_up)
            finally:
                if self.histories.gives_way(pending.written.batch):
                    self._replacing = term  # No other master may lead in between.
                else:
                    await give_back(term)

    def _promoted(self, term: Term, restored: bool = False) -> tuple[Engine, PendingLog]:
        now, plan = now_ms(), self.plan
        # A primary of the older history may believe for that long that it leads: only the lost store knew its name. So
        # only the clock can end the doubt.
        suspects = [] if restored else term.suspects if term.proof == "guess" else None
        proven = term.proof in PROVEN and not restored
        primary = promote(self.standby.state, plan.rules, plan.leader_ttl_ms, proven, now, suspects)
        primary.process = this_process()
        primary.doubt.when_over = partial(self._end_doubt, term)
        pending = PendingLog(self.standby.position)
        engine = Engine(primary, pending, plan.durability, self.object_events)
        engine.note = self.events.note
        engine.on_lost_files = self._note_lost_files
        engine.on_torn = self.hand_over.set
        engine.leads_until = engine.clients_wait_until = lambda: int(term.valid_until * 1000)
        if not engine.state.log_id:
            assert self.histories is not None, "there is coordination"
            if not self.histories.may_begin:
                raise WaitsForOperator("the store is empty, and nobody has said that a history may begin in it")
            engine.start_log(fresh_id(), self.cluster, fresh_bytes(32), now)
        engine.start_epoch(term.epoch, now)
        return engine, pending

    def _note_lost_files(self, node: str, count: int, now: Instant) -> None:
        text = f"{count:,} files of its disk were gone or spoiled; their replicas were dropped"
        log.warning("files of a disk were lost", node=node, files=count)
        self.events.add("files_lost", node, text, now)

    def _end_doubt(self, term: Term, witness: str) -> None:
        term.settle()
        self.events.add("settled", witness, "it sees that the earlier primary's process has ended", now_ms())
        log.info("the earlier primary's process has ended: removals are answered", epoch=term.epoch, witness=witness)

    async def _write(self, writer: LogWriter, engine: Engine, term: Term, restored: bool) -> None:
        await writer.flush()
        # The epoch is durable: from here on this master is the primary.
        assert self.histories is not None, "there is coordination"
        if not restored and self.histories.restores is not None:
            self._restore_failed("this master began to serve while it was ordered; nothing was changed. Order again")
        elif restored:
            self.histories.end_restore()
            self.restoring = ""
            origin = engine.state.origin
            self.events.add("restored", f"{origin.log_id:016x}", f"{origin.objects} objects", now_ms())
        self.histories.began(engine.state.log_id)
        self.promotion_ms = round((now_seconds() - self._won_at) * 1000)
        knew = HOW_IT_ENDED.get(term.proof, f"the last one was silent for {self.plan.leader_ttl_ms / 1000:g} s")
        said = f"epoch {term.epoch}, {self.promotion_ms} ms after it won the term: {knew}"
        self.events.add("primary", self.server.name, said, now_ms())
        self.server.lead(engine)
        log.info(
            "this master is the primary now",
            epoch=term.epoch,
            knew=knew,
            promotion_ms=self.promotion_ms,
            objects=engine.state.catalogue.count,
        )
        await writer.run()

    async def _write_renewals(self, coordination: Coordination, engine: Engine, term: Term) -> None:
        """Write renewed leases for the standbys, if renewals pass beside the log."""
        rules, self.renewals = self.plan.rules, None
        if rules.lease_sync == "batched":
            sender = RenewalSender(engine.state, rules, term.epoch, now_ms(), coordination.max_batch_bytes)
            self.renewals = RenewalWriter(sender, coordination)
            engine.on_urgent = self.renewals.urge
            await self.renewals.run()

    async def snapshot(self) -> int:
        """Write a snapshot now, in any role. Returns the number of its last batch."""
        if self.snapshots is None:
            raise SnapshotFailed("this master's log is in memory only, so there is nothing for a snapshot to serve")
        engine = self.server.engine
        if engine is not None and engine.log is not None and self.writer is not None:
            return await self.snapshots.write_for_asker(engine.state, self.writer, engine.log)
        return await self.snapshots.write(self.standby)

    def _serve_nobody(self, why: str) -> None:
        if self.server.engine is not None:
            self.events.add("standby", self.server.name, why, now_ms())
            log.warning("this master is a standby now", why=why)
        self._forget()
        self.server.follow(why)

    def _hold(self, engine: Engine, pending: PendingLog) -> None:
        """Remember the primary's state until its log is seen again: the store may have been emptied."""
        assert self.histories is not None, "there is coordination"
        written, index = pending.written, engine.state.index
        # With records that are not durable, no position in the log continues it, so it gets no hash.
        position = written if written.index == index else Position(pending.position.batch, index, NO_HASH)
        self.histories.hold(Standby(engine.state, position), written)

    def _forget(self) -> None:
        """Drop the primary's state: records that it applied may be in no log, so none may be shown or kept (I5)."""
        self.standby = Standby()
        self._caught_up.clear()
