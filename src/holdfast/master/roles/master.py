"""One master's life: standby, then primary, then standby again, for as long as the process runs.

As a standby it follows the log and campaigns. When it wins, it applies the log to its end, promotes the state, logs the
new epoch, and only then serves (I15). When its term ends, in any way, it closes every connection: changes that are not
durable were acknowledged to nobody, and clients ask the next primary about requests whose fate they do not know. It
then starts over from a snapshot and the log, because its own records that are not durable are in no history.
"""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from holdfast.coordination.interface import Compacted, Coordination, Leader, LogBehind, Term
from holdfast.errors import HoldfastError, LogHeldBack, TryAgain
from holdfast.instant import now_ms, now_seconds
from holdfast.master.announcement import Announcement
from holdfast.master.election.candidacy import give_back, win_unless
from holdfast.master.election.leader_watch import LeaderWatch
from holdfast.master.engine.engine import Engine
from holdfast.master.events import EventHistory
from holdfast.master.histories.histories import Histories, Word
from holdfast.master.histories.restore_order import RestoreOrder
from holdfast.master.histories.snapshot_upkeep import Snapshots
from holdfast.master.object_events.events import ObjectEvents
from holdfast.master.plan import Plan
from holdfast.master.renewals import RenewalFollower, RenewalWriter
from holdfast.master.roles.context import RoleContext
from holdfast.master.roles.figures import RoleFigures
from holdfast.master.roles.primary_role import PrimaryRole, TermFigures, lead_alone
from holdfast.master.roles.standby_role import StandbyRole
from holdfast.master.server import RpcServer
from holdfast.master.succession.held_tail import HeldTail, NotWilling, SuccessorFirst
from holdfast.master.tasks import RoleTasks
from holdfast.messages.log_versions import OLDEST_LOG_VERSION
from holdfast.messages.of_masters import HoldTail, TailHeld
from holdfast.replication.batches import BrokenChain, UnknownRecord
from holdfast.replication.snapshot_store import SnapshotFailed, SnapshotStore
from holdfast.replication.snapshots import version_in
from holdfast.replication.standby import Standby
from holdfast.supervisor import Supervisor

log = structlog.get_logger("holdfast.master")
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
        self.plan = plan
        self.store = store
        self.events = EventHistory(server.name)
        self.figures = RoleFigures()
        self.announcement = Announcement(server.name, plan.address, self.figures.coordination_errors)
        self._object_events = object_events
        self._context = self._context_with(coordination) if coordination is not None else None
        self.standby_role = StandbyRole(self._context) if self._context is not None else None
        self.primary_role: PrimaryRole | None = None
        self._last_term = TermFigures()

    def _context_with(self, coordination: Coordination) -> RoleContext:
        server, plan = self.server, self.plan
        leaders = LeaderWatch(server, plan)
        well = partial(self.supervisor.well, "snapshots")
        snapshots = Snapshots(
            self.store, coordination, server.name, plan.address, server.token, plan.snapshot_bytes, well, self._written
        )
        word = Word() if plan.new_history else None
        histories = Histories(snapshots, coordination, server.name, lambda: leaders.leader, self.events, word)
        return RoleContext(
            server=server,
            coordination=coordination,
            plan=plan,
            snapshots=snapshots,
            histories=histories,
            order=RestoreOrder(coordination, plan, histories),
            leaders=leaders,
            announcement=self.announcement,
            events=self.events,
            object_events=self._object_events,
            figures=self.figures,
            tail=HeldTail(server.name, self._tail_lost),
        )

    # What others may ask of it, whatever its role.

    @property
    def supervisor(self) -> Supervisor:
        return self.server.supervisor

    @property
    def coordination(self) -> Coordination | None:
        return self._context.coordination if self._context is not None else None

    @property
    def snapshots(self) -> Snapshots | None:
        return self._context.snapshots if self._context is not None else None

    @property
    def histories(self) -> Histories | None:
        return self._context.histories if self._context is not None else None

    @property
    def leader(self) -> Leader | None:
        """The last leader that coordination has shown."""
        return self._context.leaders.leader if self._context is not None else None

    @property
    def standby(self) -> Standby:
        """The copy of the state that it has as a standby; empty while it has none."""
        return self.standby_role.standby if self.standby_role is not None else Standby()

    @property
    def engine(self) -> Engine | None:
        """The engine of a primary, while its term lasts by its own clock (I12): a master that was stopped, or cut off
        from coordination, stops being primary then, whether or not it knows of the next one."""
        engine = self.server.engine
        return engine if engine is not None and now_ms() < engine.leads_until() else None

    @property
    def role(self) -> str:
        return "primary" if self.engine is not None else "standby"

    @property
    def leader_address(self) -> str:
        """Who leads, as far as this master knows; empty if nobody does."""
        if self.engine is not None:
            return self.plan.address
        engine, leader = self.server.engine, self.leader
        if leader is None or (engine is not None and leader.epoch <= engine.state.epoch):
            return ""  # Its own term is over, and so is that of whoever led before: it may not have seen itself lead.
        return leader.address

    @property
    def log_index(self) -> int:
        engine = self.server.engine
        return engine.state.index if engine is not None else self.standby.position.index

    @property
    def lag_batches(self) -> int:
        """Batches of the log, as far as known, that this standby has not applied; 0 of a primary."""
        return self.standby_role.lag_batches if self.standby_role is not None and self.engine is None else 0

    @property
    def renewals(self) -> RenewalWriter | RenewalFollower | None:
        """What passes renewed leases beside the log in the current role."""
        if self.primary_role is not None:
            return self.primary_role.renewals
        return self.standby_role.renewals if self.standby_role is not None else None

    @property
    def term_figures(self) -> TermFigures:
        """Figures of the term under which it serves, or served last."""
        figures = self.primary_role.figures if self.primary_role is not None else self._last_term
        return figures if figures.promotion_ms >= 0 else self._last_term

    def promotable(self) -> tuple[bool, str]:
        """Could it take over, and why (not)?"""
        if self.server.engine is not None:
            return False, "it is the primary" if self.engine is not None else TERM_OVER
        if self.standby_role is None:
            return False, "it is alone, and has not begun to serve"
        return self.standby_role.promotable()

    async def snapshot(self) -> int:
        """Write a snapshot now, in any role. Returns the number of its last batch."""
        if self._context is None:
            raise SnapshotFailed("this master's log is in memory only, so there is nothing for a snapshot to serve")
        if self.primary_role is not None:
            # Even before it serves: its state has records that are not durable yet.
            return await self.primary_role.snapshot()
        return await self._context.snapshots.write(self.standby)

    async def settle(self) -> None:
        """Call this before an orderly stop."""
        if self.primary_role is not None:
            await self.primary_role.settle()

    def hand_over(self) -> None:
        """End this master's term, if it has one, once everything that was decided is written."""
        if self.primary_role is not None:
            self.primary_role.hand_over()

    def _tail_lost(self, why: str) -> None:
        self.events.add("tail_lost", self.server.name, why, now_ms())
        log.error("records that puts were acknowledged for are not in the log", why=why)

    @property
    def held_records(self) -> int:
        """Records that it holds until the log has them, as the successor of the primary."""
        return len(self._context.tail) if self._context is not None else 0

    def hold_tail(self, request: HoldTail) -> TailHeld:
        """Hold records of the primary's that are not in the log yet (ADR 70). Raises `NotWilling`."""
        if self.standby_role is None or self.primary_role is not None:
            raise NotWilling("this master is no standby; nothing was kept")
        return self.standby_role.hold_tail(request)

    def _written(self, batch: int) -> None:
        self.events.add("snapshot", self.server.name, f"written, of the log through batch {batch:,}", now_ms())

    # An order to restore a history.

    @property
    def restoring(self) -> str:
        """The current step of a restore; empty if none runs."""
        return self._context.order.step if self._context is not None else ""

    @property
    def restore_failure(self) -> str:
        """Why the last restore failed."""
        return self._context.order.failure if self._context is not None else ""

    def restore(self, word: Word) -> None:
        """Begin a history with this catalogue as soon as the term for it is won. A history that is served ends."""
        assert self._context is not None, "there is coordination"
        self._check_log_version(word)
        self._context.order.give(word)
        if self.server.engine is not None:
            # Also when its term seems over by its clock: a slow store may yet renew it, and then the order would wait.
            self.hand_over()

    def _check_log_version(self, word: Word) -> None:
        needed, read = version_in(word.content) if word.content else OLDEST_LOG_VERSION, self.announcement.versions
        if needed > max(read.common, OLDEST_LOG_VERSION):
            raise LogHeldBack(
                f"this catalogue needs log version {needed}, which is not read by {', '.join(read.held_back_by)}; "
                "nothing was changed. Upgrade these masters first"
            )

    # From role to role.

    async def run(self) -> None:
        """Run until cancelled."""
        context = self._context
        if context is None:
            lead_alone(self.server, self.plan, self.events, self._object_events)
            await asyncio.Event().wait()
            return
        async with RoleTasks(self.supervisor) as tasks:
            tasks.keep("leader watch", lambda: context.leaders.run(context.coordination))
            tasks.keep("announcements", lambda: self.announcement.renew(context.coordination))
            try:
                while True:
                    await self._take_one_turn(context)
            finally:
                self._step_down("the master is stopping")
                await context.order.give_back_replaced()

    async def _take_one_turn(self, context: RoleContext) -> None:
        """Be a standby until a term is won, and the primary until it is over."""
        try:
            term, word = await self._win(context)
            await self._lead(context, term, word)
            return
        except UnknownRecord:
            await asyncio.Event().wait()  # It stays as it is, reports why, and never serves.
        except (BrokenChain, LogBehind) as error:
            log.error("the log does not continue what this master holds; it starts over", why=str(error))
            context.histories.hold(self.standby, self.standby.position)
        except Compacted as error:
            log.warning("the log was trimmed past this master; it looks for a snapshot", why=str(error))
        except (HoldfastError, ValueError) as error:
            # A failed promotion serves nothing, and nothing of the attempt is kept (I15).
            log.error("back to following the log", why=str(error))
        self.standby_role = StandbyRole(context)
        await asyncio.sleep(self.plan.again_seconds)

    async def _win(self, context: RoleContext) -> tuple[Term, Word | None]:
        """Win a term: as a standby that follows the log, or at once for an order to restore, which is returned too."""
        order = context.order
        word = order.word
        if word is None:
            term = await self._stand_by(context)
            if term is not None:
                return term, None
            word = order.word
        if word is None:
            order.fail("another master has begun a history meanwhile")
            raise TryAgain("an order to restore was overtaken; nothing was restored")
        return await order.win(word), word

    async def _stand_by(self, context: RoleContext) -> Term | None:
        """The term that the standby has won; None if an order to restore came before that, or in the same moment."""
        assert self.standby_role is not None, "there is coordination"
        term = await win_unless(self.standby_role.run(), context.order.given())
        if term is not None and context.order.word is not None:
            await give_back(term)  # Its epoch ignores those of the older history.
            return None
        return term

    async def _lead(self, context: RoleContext, term: Term, word: Word | None) -> None:
        """Serve under this term, which was won to follow the log or to restore a history (`word`). On every way out the
        term is resigned, unless another that restores a history replaces it."""
        is_kept = False
        try:
            role = self.primary_role = await self._promoted(context, term, word)
            try:
                await role.run()
            finally:
                is_kept = context.order.keep_term(term, role.last_batch)
        finally:
            if not is_kept:
                await give_back(term)

    async def _promoted(self, context: RoleContext, term: Term, word: Word | None) -> PrimaryRole:
        """Apply the log to its end, or begin a new one with an older history's catalogue, and promote."""
        won_at = now_seconds()
        standby = self.standby_role
        assert standby is not None, "there is coordination"
        try:
            context.tail.seal(term.epoch)
            tail: list[bytes] = []
            if word is not None:
                await standby.carry_over(term, word)
            else:
                await standby.read_to_the_end()
                tail = context.tail.rest(standby.standby.state)
            return PrimaryRole(context, term, standby.standby, won_at, word is not None, self._step_down, tail)
        except BaseException as error:
            if word is not None:
                context.order.fail(str(error) or type(error).__name__)
            # This master cannot serve under this term; another one may be able to.
            if isinstance(error, SuccessorFirst):
                context.leaders.give_way(self.plan.leader_ttl_ms / 1000)
            else:
                context.leaders.back_off()
            raise

    def _step_down(self, why: str) -> None:
        """Drop the primary's state: records that it applied may be in no log, so none may be shown or kept (I5)."""
        if self.server.engine is not None:
            self.events.add("standby", self.server.name, why, now_ms())
            log.warning("this master is a standby now", why=why)
        self._last_term, self.primary_role = self.term_figures, None
        if self._context is not None:
            self.standby_role = StandbyRole(self._context)
        self.server.follow(why)
