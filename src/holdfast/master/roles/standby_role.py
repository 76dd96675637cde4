"""The standby role: follow the log, and campaign until a term is won.

The life of one object, a standby from its start to its promotion:

1. `run` starts from the newest snapshot that the log goes through, and follows the log. Beside that, supervised, it
   writes snapshots and follows renewed leases.
2. Once it has read the log to its end and may lead (`Histories.admit`), it campaigns.
3. It wins a term: its tasks end, and `run` returns the term.
4. `read_to_the_end` applies the batches that came meanwhile, or `carry_over` writes an older history's catalogue to
   the log. The copy of the state then goes to a `PrimaryRole`, and this object is dropped.

An error in step 1 or 2 ends the object too; the next one starts over from a snapshot and the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import structlog

from holdfast.coordination.interface import CoordinationLost, LogBehind, Term
from holdfast.entropy import fresh_bytes, fresh_id
from holdfast.errors import HoldfastError
from holdfast.instant import now_ms
from holdfast.master.election.candidacy import check_order, win, withdraw
from holdfast.master.histories.histories import Word
from holdfast.master.renewals import RenewalFollower, keep_evicting_alone
from holdfast.master.roles.context import RoleContext
from holdfast.master.succession.held_tail import NotWilling
from holdfast.master.tasks import RoleTasks, first
from holdfast.messages.of_masters import HoldTail, TailHeld
from holdfast.outage import Outage
from holdfast.replication.batches import UnknownRecord
from holdfast.replication.carried import append_catalogue
from holdfast.replication.chain import goes_through
from holdfast.replication.standby import Standby
from holdfast.supervisor import first_cause

log = structlog.get_logger("holdfast.master")


class StandbyRole:
    """One standby of a cluster, and its copy of the state."""

    def __init__(self, context: RoleContext) -> None:
        self.standby = Standby()
        self.renewals: RenewalFollower | None = None
        self._context = context
        self._caught_up = asyncio.Event()
        self._last_batch = 0
        """The last batch of the log, as far as known."""

    @property
    def lag_batches(self) -> int:
        """Batches of the log, as far as known, that it has not applied."""
        return max(0, self._last_batch - self.standby.position.batch)

    def promotable(self) -> tuple[bool, str]:
        """Could it take over as far as the log is concerned, and why (not)?"""
        histories = self._context.histories
        unable = self.standby.stuck or histories.waits or histories.stuck
        if unable:
            return False, unable
        for name, why in self._context.server.supervisor.down().items():
            return False, f"its background task {name!r} is down: {why}"
        announced = self._context.announcement.outage
        if announced.failures > 1:
            return False, f"coordination does not answer: {announced.why}"
        behind = self.lag_batches
        if not self._caught_up.is_set() or behind > 0:
            return False, f"it has not caught up with the log: {behind} batches behind"
        return True, f"it follows the log at record {self.standby.position.index}"

    def hold_tail(self, request: HoldTail) -> TailHeld:
        """Hold records of the primary's that are not in the log yet (ADR 70). Raises `NotWilling`."""
        able, why = self.promotable()
        if not able:
            raise NotWilling(f"{why}; nothing was kept")
        tail = self._context.tail
        tail.check_willing(request.log_id, request.epoch, self.standby.state)
        if request.records:
            tail.take(request.log_id, request.epoch, request.first, request.records)
        return TailHeld(tail.name, tail.life, tail.through)

    # 1. Follow the log. 2. Campaign. 3. Win.

    async def run(self) -> Term:
        """Follow the log and campaign. Returns the term that was won; if it fails or is cancelled, none is kept."""
        log.info("this master is a standby: it follows the log and takes over when it must")
        context = self._context
        self.standby = await context.histories.start()
        if context.object_events is not None:
            context.object_events.follow(self.standby.state)
        campaigning: asyncio.Task[Term] | None = None
        try:
            async with RoleTasks(context.server.supervisor) as tasks:
                following = tasks.start(self._follow())
                tasks.keep("snapshots", lambda: context.snapshots.keep_for_standby(lambda: self.standby))
                tasks.keep("renewals", self._follow_renewals)
                admitted = tasks.start(self._admit())
                # A master that has not read the log must not win over one that has.
                await first(following, admitted)
                campaigning = tasks.start(self._campaign())
                await first(following, campaigning)
                await self._end(tasks)
            return campaigning.result()
        except BaseException:
            if campaigning is not None:
                await withdraw(campaigning)
            raise

    async def _end(self, tasks: RoleTasks) -> None:
        """End the tasks of a standby that has won. Their errors no longer matter: the log is applied to its end once
        more, and a failure here must not cost the term."""
        try:
            await tasks.end()
        except Exception:
            log.exception("work of this standby ended in an error; it is promoted all the same")

    async def _admit(self) -> None:
        """Return when this master may stand for election."""
        await self._caught_up.wait()
        await self._context.histories.admit(lambda: self.standby)

    async def _campaign(self) -> Term:
        """Wait for the leader's end; a refused connection to its port counts as a guess that it is dead."""
        plan, leaders = self._context.plan, self._context.leaders
        await leaders.backed_off()
        return await win(self._context.coordination, plan.address, lambda: leaders.leader, plan.early_takeover)

    async def _follow_renewals(self) -> None:
        """Follow renewed leases, and evict alone if the rules say so, once the log was read to its end."""
        await self._caught_up.wait()
        rules = self._context.plan.rules
        while True:
            self.renewals = RenewalFollower(self._context.coordination, lambda: self.standby)
            try:
                async with asyncio.TaskGroup() as doing:
                    doing.create_task(self.renewals.run())
                    if rules.standby_eviction == "independent":
                        doing.create_task(keep_evicting_alone(lambda: self.standby, rules))
            except* HoldfastError as errors:
                log.warning("renewals cannot be followed now; they are again soon", why=str(first_cause(errors)))
            await asyncio.sleep(self._context.plan.again_seconds)

    async def _follow(self) -> None:
        """Follow the log. Raises `BrokenChain`, `LogBehind` or `Compacted` if it turns out to be another log, or to be
        trimmed past this master."""
        outage = Outage(logging.getLogger("holdfast.master"), "the log cannot be followed")
        while True:
            try:
                self._last_batch = await self._context.coordination.last_index()
                outage.over()
                if self.standby.position.batch > self._last_batch:
                    raise LogBehind(self._last_batch, self.standby.position.batch)
                if self.standby.position.batch == self._last_batch:
                    self._caught_up.set()
                await self._follow_on()
            except CoordinationLost as error:
                self._context.figures.coordination_errors["follow"] += 1
                outage.seen(error)
            await asyncio.sleep(self._context.plan.again_seconds)

    async def _follow_on(self) -> None:
        coordination = self._context.coordination
        async with contextlib.aclosing(coordination.follow(self.standby.position.batch)) as following:
            async for batches in following:
                self._take(batches)
                if self.standby.position.batch >= self._last_batch:
                    self._caught_up.set()
                await asyncio.sleep(0)

    def _take(self, batches: list[tuple[int, bytes]]) -> None:
        now = now_ms()
        # Before that it reads of what happened long ago, and nobody knows when.
        note = self._context.events.follow if self._caught_up.is_set() else None
        for number, batch in batches:
            try:
                before = self.standby.state.index
                self.standby.take(number, batch, now, note)
                self._context.tail.confirm(before, batch, self.standby.state)
            except UnknownRecord as error:
                self.standby.stuck = str(error)
                log.error("the log cannot be followed further", why=str(error))
                raise
            if self._context.object_events is not None:
                self._context.object_events.taken(number, self.standby.state)
            self._context.snapshots.log_bytes += len(batch)
        self._last_batch = max(self._last_batch, self.standby.position.batch)

    # 4. Get the copy of the state ready to be served.

    async def read_to_the_end(self) -> None:
        """Apply the log to its end: the term is ours, so no other master can add to it. Raises `BrokenChain` or
        `LogBehind` if it is not the log that this master followed: it may have been replaced since (I19)."""
        coordination = self._context.coordination
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

    async def carry_over(self, term: Term, word: Word) -> None:
        """Write the catalogue of an older history into the log, and continue from there."""
        assert term.epoch > word.epoch, "ids only grow (I6)"
        context, plan = self._context, self._context.plan
        await check_order(context.coordination, context.server.name, word.mark, word.last)
        context.order.begin_writing(word, term.epoch)
        served = await self._served_here()
        state, position = await append_catalogue(
            context.coordination, term, word.content, fresh_id(), fresh_bytes(32), now_ms(), plan.piece_bytes, served
        )
        self.standby = Standby(state, position)
        if context.object_events is not None:
            context.object_events.restored(position.batch, state)
        # Have a snapshot of its own soon, for the next restore.
        context.snapshots.log_bytes = max(context.snapshots.log_bytes, 2 * plan.snapshot_bytes)

    async def _served_here(self) -> list[int]:
        """The histories that this master knows of, including the one that is replaced. A node that has mounted its
        memory under one of them keeps it: an operator who restores twice must not lose the cache."""
        try:
            await self.read_to_the_end()  # It may have been started a moment ago.
        except (HoldfastError, ValueError) as error:
            log.info("the log that gives way cannot be read to its end", why=str(error))
        histories, store = self._context.histories, self._context.snapshots.store
        return await histories.known_here(self.standby.state, store)
