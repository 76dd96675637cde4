"""The primary role: serve under a term that was won, until it ends.

The life of one object, a primary for one term:

1. It is made from a standby's copy of the state, which was read to the end of the log. The state is promoted, and the
   new epoch is logged; nothing of that is durable yet.
2. `run` makes the epoch durable, and only then serves (I15). Beside that, supervised, it writes renewed leases and
   snapshots, and watches earlier primaries that may still answer.
3. The term ends: by itself, because a later one exists, or because this master hands over (`hand_over`). In the last
   case it decides nothing more, but what it has decided is still written.
4. It steps down: the connections are closed, and its tasks end. Changes that are not durable were acknowledged to
   nobody, and its state is dropped, because such records may be in no history (I5).

The term itself is resigned by the `Master`, on every way out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from holdfast.coordination.interface import Deposed, Term
from holdfast.core.primary.primary import Primary
from holdfast.core.promotion import promote
from holdfast.core.state.apply import apply
from holdfast.core.state.state import State
from holdfast.entropy import fresh_bytes, fresh_id
from holdfast.instant import Instant, now_ms, now_seconds
from holdfast.master.election.candidacy import HOW_IT_ENDED, PROVEN
from holdfast.master.election.suspects import watch_suspects
from holdfast.master.engine.engine import Engine
from holdfast.master.engine.shell import EngineShell
from holdfast.master.events import NOTABLE, EventHistory
from holdfast.master.histories.histories import WaitsForOperator
from holdfast.master.object_events.events import ObjectEvents
from holdfast.master.plan import Plan
from holdfast.master.renewals import RenewalWriter
from holdfast.master.roles.context import RoleContext
from holdfast.master.server import RpcServer
from holdfast.master.succession.tail_stream import TailStream
from holdfast.master.tasks import RoleTasks, first
from holdfast.replication.batches import NO_HASH, Position, decode_record
from holdfast.replication.log_writer import LogWriter, PendingLog
from holdfast.replication.renewals import RenewalSender
from holdfast.replication.standby import Standby
from holdfast.witness import this_process

log = structlog.get_logger("holdfast.master")

SETTLE_SECONDS = 2.0
LATE_TERM_SECONDS = 0.02
"""How often a master that could serve looks whether its late term was renewed."""


@dataclass(frozen=True, slots=True)
class TermFigures:
    """Figures of one term of this master."""

    promotion_ms: int = -1
    """Duration of the promotion, from winning the term to serving; -1: it has not served."""
    log_bytes: int = 0
    log_batches: int = 0
    append_ms: float = 0.0


class PrimaryRole:
    """One primary. `restored`: the term was won to restore a history, which is in the state already. `step_down` is
    called once, when this object serves nobody any more. `tail`: records of the primary before, which the log does not
    have yet and continues with (ADR 70)."""

    def __init__(
        self,
        context: RoleContext,
        term: Term,
        standby: Standby,
        won_at: float,
        restored: bool,
        step_down: Callable[[str], None],
        tail: Sequence[bytes] = (),
    ) -> None:
        self._context = context
        self._term = term
        self._won_at = won_at
        self._restored = restored
        self._step_down = step_down
        self._asked_to_hand_over = asyncio.Event()
        self._pending = PendingLog(standby.position, standby.state.log_version)
        self._append_tail(standby.state, tail)
        self._writer = LogWriter(
            term,
            self._pending,
            context.coordination.max_batch_bytes,
            lambda: self.engine.after_durable(now_ms()),
            context.coordination.appends_in_flight,
            context.figures.log,
        )
        self.renewals: RenewalWriter | None = None
        self._promotion_ms = -1
        self.engine = self._engine(standby.state)
        self._begin_epoch()

    # 1. Promote.

    def _append_tail(self, state: State, tail: Sequence[bytes]) -> None:
        """Apply these records and have them written before all others."""
        context, now = self._context, now_ms()
        for encoded in tail:
            record = decode_record(encoded)
            if type(record) in NOTABLE:
                context.events.note(state, record, now)
            apply(state, record, now)
            index = self._pending.add(record, ())
            if context.object_events is not None:
                context.object_events.applied(index, state)
        if tail:
            log.info("the log continues with records that this master held", records=len(tail), epoch=self._term.epoch)

    def _engine(self, state: State) -> Engine:
        context, term = self._context, self._term
        shell = EngineShell(
            leads_until=lambda: int(term.valid_until * 1000),
            clients_wait_until=lambda: int(term.valid_until * 1000),
            on_record=self._writer.rouse,
            on_urgent=self._urge,
            on_durable=context.server.changed,
            on_torn=self.hand_over,
            on_upkeep_failure=context.server.upkeep_failed,
            on_lost_files=partial(note_lost_files, context.events),
            on_tenants_changed=context.server.settle_tenancies,
            note=context.events.note,
        )
        return Engine(self._primary(state), self._pending, context.plan.durability, context.object_events, shell)

    def _primary(self, state: State) -> Primary:
        term, plan, now = self._term, self._context.plan, now_ms()
        # A primary of the older history may believe for that long that it leads: only the lost store knew its name. So
        # only the clock can end the doubt.
        suspects = [] if self._restored else term.suspects if term.proof == "guess" else None
        proven = term.proof in PROVEN and not self._restored
        primary = promote(state, plan.rules, plan.leader_ttl_ms, proven, now, suspects)
        primary.process = this_process()
        primary.read_by_all = lambda: self._context.announcement.versions.common
        primary.doubt.when_over = self._end_doubt
        return primary

    def _begin_epoch(self) -> None:
        now = now_ms()
        if not self.engine.state.log_id:
            if not self._context.histories.may_begin:
                raise WaitsForOperator("the store is empty, and nobody has said that a history may begin in it")
            self.engine.start_log(fresh_id(), self._context.plan.cluster, fresh_bytes(32), now)
        self.engine.start_epoch(self._term.epoch, now)

    def _end_doubt(self, witness: str) -> None:
        self._term.end_doubt()
        self._context.events.add("settled", witness, "it sees that the earlier primary's process has ended", now_ms())
        epoch = self._term.epoch
        log.info("the earlier primary's process has ended: removals are answered", epoch=epoch, witness=witness)

    # 2. Serve.

    async def run(self) -> None:
        """Serve until the term is over, or was handed over."""
        context, engine = self._context, self.engine
        async with RoleTasks(context.server.supervisor) as tasks:
            tasks.keep("renewals", self._write_renewals)
            self._stream_tail(tasks)
            ended = tasks.start(self._term.ended())
            writing = tasks.start(self._write())
            asked = tasks.start(self._asked_to_hand_over.wait())
            snapshots = context.snapshots
            tasks.keep("snapshots", lambda: snapshots.keep_for_primary(engine.state, self._writer, self._pending))
            tasks.keep("suspects", lambda: watch_suspects(engine.primary, context.server.name))
            try:
                await first(ended, writing, asked)
                if asked.done():
                    self._decide_no_more()
                    await first(writing, ended)
                elif ended.done():
                    log.warning("the term ended", epoch=self._term.epoch, why=ended.result())
            except Deposed as error:
                log.warning("this master was deposed", epoch=self._term.epoch, why=str(error))
            finally:
                self._end()

    async def _write(self) -> None:
        await self._writer.flush()
        # The epoch is durable. That may have taken longer than the term, or the process was stopped: another master may
        # lead by now, with another history. Serve only under a term that goes on (I15); `run` ends this one otherwise.
        while now_ms() >= self.engine.leads_until():  # noqa: ASYNC110 - only the time tells.
            await asyncio.sleep(LATE_TERM_SECONDS)
        self._serve()
        await self._writer.run()

    def _serve(self) -> None:
        context, state, term = self._context, self.engine.state, self._term
        if self._restored:
            context.order.end()
            origin = state.origin
            context.events.add("restored", f"{origin.log_id:016x}", f"{origin.objects} objects", now_ms())
        elif context.order.word is not None:
            context.order.fail("this master began to serve while it was ordered; nothing was changed. Order again")
        context.histories.began(state.log_id)
        context.tail.appended()
        took_seconds = now_seconds() - self._won_at
        self._promotion_ms = round(took_seconds * 1000)
        context.figures.promotions.add(int(took_seconds * 1e9))
        knew = HOW_IT_ENDED.get(term.proof, f"the last one was silent for {context.plan.leader_ttl_ms / 1000:g} s")
        said = f"epoch {term.epoch}, {self._promotion_ms} ms after it won the term: {knew}"
        context.events.add("primary", context.server.name, said, now_ms())
        context.server.lead(self.engine)
        log.info(
            "this master is the primary now",
            epoch=term.epoch,
            knew=knew,
            promotion_ms=self._promotion_ms,
            objects=state.catalogue.count,
        )

    async def _write_renewals(self) -> None:
        """Write renewed leases for the standbys, if renewals pass beside the log.

        After a failure the same writer goes on: standbys know the values of an epoch by their numbers, and would skip
        those of one that begins again."""
        rules, coordination = self._context.plan.rules, self._context.coordination
        if rules.lease_sync == "batched":
            if self.renewals is None:
                epoch, most_bytes = self._term.epoch, coordination.max_batch_bytes
                sender = RenewalSender(self.engine.state, rules, epoch, now_ms(), most_bytes)
                self.renewals = RenewalWriter(sender, coordination)
            await self.renewals.run()

    def _stream_tail(self, tasks: RoleTasks) -> None:
        """Have a standby hold the tail of the log as soon as puts want that (ADR 70)."""
        context, engine = self._context, self.engine
        succession = engine.succession
        assert succession is not None, "there is a log"

        def others() -> list[str]:
            return [address for address in context.announcement.known if address != context.plan.address]

        stream = TailStream(succession, engine.state.log_id, self._term.epoch, context.server.token, others)

        def begin() -> None:
            stream.want()
            succession.on_wanted = stream.want
            tasks.keep("tail stream", stream.run)

        succession.on_wanted = begin

    def _urge(self) -> None:
        if self.renewals is not None:
            self.renewals.urge()

    async def snapshot(self) -> int:
        """Write a snapshot now. Returns the number of its last batch."""
        return await self._context.snapshots.write_for_asker(self.engine.state, self._writer, self._pending)

    @property
    def figures(self) -> TermFigures:
        writer = self._writer
        return TermFigures(self._promotion_ms, writer.bytes, writer.batches, writer.append_ms)

    @property
    def last_batch(self) -> int:
        """The last batch of this term that is durable for sure."""
        return self._pending.written.batch

    # 3. The term ends. 4. Step down.

    async def settle(self) -> None:
        """Before the process is stopped: have what was acknowledged on a successor's word written to the log, because
        that one may be stopped at the same time. If the log does not take it in time, the successor has it."""
        succession = self.engine.succession
        if succession is None or not succession.name:
            return
        written = asyncio.Event()
        succession.end(now_ms())
        self._pending.when_durable(self._pending.index, written.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                await written.wait()

    def hand_over(self) -> None:
        """End the term, once everything that was decided is written."""
        self._asked_to_hand_over.set()

    def _decide_no_more(self) -> None:
        torn = {"half_applied": self._pending.torn} if self._pending.torn else {}
        log.info("handing over", epoch=self._term.epoch, **torn)
        if self.engine.succession is not None:
            self.engine.succession.end(now_ms())
        self.engine.stop_deciding()
        self._context.leaders.back_off()
        self._writer.finish()

    def _end(self) -> None:
        if not self._pending.torn:
            self._hold()
        self._step_down("this master is not the primary any more")
        self._context.snapshots.end_term()

    def _hold(self) -> None:
        """Remember the primary's state until its log is seen again: the store may have been emptied."""
        written, index = self._pending.written, self.engine.state.index
        # With records that are not durable, no position in the log continues it, so it gets no hash.
        position = written if written.index == index else Position(self._pending.position.batch, index, NO_HASH)
        self._context.histories.hold(Standby(self.engine.state, position), written)


def lead_alone(server: RpcServer, plan: Plan, events: EventHistory, object_events: ObjectEvents | None) -> None:
    """Serve without coordination: there is no term that could end, and the log is in memory only."""
    now = now_ms()
    shell = EngineShell(
        on_upkeep_failure=server.upkeep_failed,
        on_lost_files=partial(note_lost_files, events),
        on_tenants_changed=server.settle_tenancies,
        note=events.note,
    )
    engine = Engine(Primary(State(), plan.rules), object_events=object_events, shell=shell)
    engine.start_log(fresh_id(), plan.cluster, fresh_bytes(32), now)
    engine.start_epoch(1, now)
    server.lead(engine)


def note_lost_files(events: EventHistory, node: str, count: int, now: Instant) -> None:
    text = f"{count:,} files of its disk were gone or spoiled; their replicas were dropped"
    log.warning("files of a disk were lost", node=node, files=count)
    events.add("files_lost", node, text, now)
