"""A node's life in a cluster: its session with the primary, its memory mounted under it, and its reports.

Two operations run concurrently over one connection: `belong` follows the primary, mounts the memory and runs commands;
`tell` reports dead writers and cleaned grants at once, and figures at their own interval, while a keepalive is held. A
master that cannot be reached changes nothing: the node goes on serving. When its session is over it opens another and
offers the same memory, which is mounted again if the log still has it. A master with another history, or one whose log
lacks records that the node has heard of, does not know the memory: then the node takes new memory under a new boot id
(I14). If that history was restored from the node's own, the memory stays: the node ends writes for the older history,
then compares every range with the restored catalogue.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from holdfast.errors import Busy, HoldfastError, MemoryVoid, Refused, UnknownNode
from holdfast.ids import GrantId
from holdfast.instant import Instant, now_ms, now_seconds
from holdfast.messages.commands import TicketTerms, decode_body
from holdfast.messages.of_nodes import RangesToVerify, Registered, RegisterNode, ReportGone, ReportUsage, VerifyRanges
from holdfast.messages.requests import Done
from holdfast.node.session.report import Report
from holdfast.node.session.testimony import Testimony
from holdfast.operations.effects import Call, LeaveMaster, Operation, Pause, Work
from holdfast.operations.threads import ThreadRunner
from holdfast.session.follower import Event, Follower, Happening, Perform
from holdfast.session.followers import CLOSED_TEXT
from holdfast.supervisor import Supervisor
from holdfast.wire.codec import expect

CALL_SECONDS = 5.0
CLEAN_SECONDS = 5.0
AGAIN_SECONDS = 0.2
LONGEST_AGAIN_SECONDS = 5.0
LOOK_SECONDS = 0.2
"""How often to check whether the last writer of an older history is gone."""
VERIFIED = -1
STOP_SECONDS = 5.0

log = structlog.get_logger("holdfast.node")


class Lender(Protocol):
    """The node, as its life in the cluster needs it."""

    @property
    def boot(self) -> int: ...

    @property
    def sizes(self) -> list[int]: ...

    def renew_memory(self) -> None:
        """Drop the memory, if any, and have new memory under a new boot id. May take seconds."""

    def trust(self, key: bytes, terms: TicketTerms | None) -> None:
        """Accept grants and tickets with a MAC made with this key."""

    def ticket_terms(self, terms: TicketTerms) -> None:
        """Learn for how long tickets are good from now on."""

    def clean(self, grants: list[GrantId], deadline: float) -> list[GrantId]: ...

    def figures(self) -> dict[str, int]:
        """Its sizes and counters by name."""

    def enter_history(self, history: int, older: list[int], epoch: int) -> None:
        """Note that the memory belongs to this history now, which began with this epoch or an earlier one of its own.
        Writes for older histories end, and clients that map the memory under one of them are told to unmap it."""

    def older_writers(self) -> int:
        """How many may still write to the memory for an older history."""

    def mismatched(self, rows: bytes) -> bytes:
        """Which of these ranges of a restored catalogue do not match it. Blocks."""


@dataclass(frozen=True, slots=True)
class NodeCard:
    """The node's identity and the addresses of its bytes."""

    name: str
    host: str
    data_address: str
    socket_path: str


class NodeLife:
    def __init__(
        self,
        card: NodeCard,
        lender: Lender,
        report: Report,
        perform: Perform,
        when_registered: Callable[[], None],
        clock: Callable[[], Instant] = now_ms,
    ) -> None:
        self._testimony = Testimony()
        self.follower = Follower(
            card.name, perform, self._on_event, self._mount, clock, self._testimony.primary_is_gone
        )
        self._card = card
        self._lender = lender
        self._report = report
        self._when_registered = when_registered
        self._mounted: tuple[int, int] | None = None
        """(session, epoch) under which the master last accepted the memory."""
        self._mounted_under = 0
        self._offered_under = 0
        self.has_been_member = False
        self.happenings: Counter[Happening] = Counter()
        self.voided = 0
        """How often the memory was replaced because a master did not know it."""
        self._reported_at = 0.0
        self._reported_under: tuple[int, int] | None = None
        """The value of `_mounted` at the last report of figures that was answered. Only `tell` writes these two: a
        report counts once it was answered, and for that registration alone."""
        self._older: list[int] = []
        """The histories that the one it is mounted under was restored from."""
        self._verified: tuple[tuple[int, ...], int, bytes] | None = None
        """Progress of comparing the memory with a restored catalogue: (registration as (session, epoch, boot), cursor,
        failures to report). A new primary does not know of it, so it begins again. Only `tell` writes this."""

    def is_stopping(self) -> bool:
        return self.follower.stopping

    def stop(self) -> None:
        self.follower.stopping = True

    @property
    def is_mounted(self) -> bool:
        """Did a master accept the memory, under the session that it has?"""
        return self._mounted is not None

    def belong(self) -> Operation[None]:
        """Run until `stop` or a permanent failure. Restarted after a defect, it offers the memory that it has."""
        if not self._lender.boot:
            yield Work(self._lender.renew_memory)
        yield from self.follower.live()

    def farewell(self) -> Operation[None]:
        yield from self.follower.farewell()

    def _on_event(self, event: Event) -> None:
        self.happenings[event.kind] += 1
        match event.kind:
            case Happening.OPENED:
                log.info("a session is open", epoch=event.epoch)
            case Happening.JEOPARDY:
                log.warning("the session is in jeopardy; serving on and looking for a master", reason=event.text)
            case Happening.SAFE_AGAIN:
                log.info("the session is safe again", epoch=event.epoch)
            case Happening.EXPIRED:
                self._mounted = None
                log.warning("the session is over; serving on and opening another", reason=event.text)
            case Happening.MASTER_CHANGED:
                log.info("another master leads", epoch=event.epoch)
            case Happening.ANSWERED if event.body:
                self._lender.ticket_terms(decode_body(TicketTerms, event.body))
            case _:
                pass

    # Mounting.

    def _mount(self, follower: Follower) -> Operation[None]:
        """Offer the memory, before the first keepalive of a session and the first to another master."""
        here = (follower.session, follower.epoch)
        while self._mounted != here:
            # An offer is enough: its reply may have been lost, and clients of that history may have mapped the memory.
            if self._offered_under not in (0, follower.history, *follower.continues):
                yield from self._renew_memory("the master has another history")
            try:
                registered = expect((yield Call(self._offer(follower), now_seconds() + CALL_SECONDS)), Registered)
            except MemoryVoid as error:
                yield from self._renew_memory(str(error))
                continue
            self._taken(registered, follower.continues)
            self._mounted = here
            self._report.wake()

    def _offer(self, follower: Follower) -> RegisterNode:
        card = self._card
        self._offered_under = follower.history
        heard_epoch, heard_index = follower.heard
        return RegisterNode(
            follower.session,
            self._lender.boot,
            self._mounted_under,
            card.host,
            card.data_address,
            card.socket_path,
            self._lender.sizes,
            self._report.writers_for_registration(),
            heard_epoch,
            heard_index,
        )

    def _taken(self, registered: Registered, older: list[int]) -> None:
        self._mounted_under = self._offered_under = registered.log_id
        self._report.interval_seconds = registered.report_interval_ms / 1000
        self._lender.trust(registered.secret, registered.tickets)
        self._lender.enter_history(registered.log_id, older, registered.epoch)
        self._older = older
        self._testimony.told(registered, now_ms())
        self._report.registered()
        log.info("registered", epoch=registered.epoch, boot=f"{self._lender.boot:016x}")
        if not self.has_been_member:
            self.has_been_member = True
            self._when_registered()

    def _renew_memory(self, reason: str) -> Operation[None]:
        log.warning("the node's memory is void, taking new memory", reason=reason)
        self._mounted = None
        self.voided += 1
        self._mounted_under = self._offered_under = 0
        self.follower.heard = (0, 0)  # Log positions seen with the old memory do not apply to the new.
        yield Work(self._lender.renew_memory)

    # Reporting.

    def tell(self) -> Operation[None]:
        """Report until `stop`: urgent news at once, and figures at their interval."""
        again_seconds = AGAIN_SECONDS
        while not self.is_stopping():
            interval, due = self._report.interval_seconds, self._seconds_until_due()
            yield Pause(
                min(due, self._testimony.pause_seconds(now_ms()), LOOK_SECONDS if self._must_verify() else interval),
                lambda interval=interval: self._has_news() or interval != self._report.interval_seconds,  # type: ignore[misc]
            )
            if self.is_stopping():
                return
            try:
                yield from self._testify()
                yield from self._clean()
                yield from self._tell_once()
                again_seconds = AGAIN_SECONDS
            except HoldfastError as error:
                if not self.is_stopping():
                    log.info("a report was not taken; it is made again", reason=str(error))
                if not isinstance(error, Refused):
                    yield LeaveMaster(error.hint)
                told = self._mounted
                yield Pause(again_seconds, lambda told=told: self.is_stopping() or self._mounted != told)  # type: ignore[misc]
                again_seconds = min(2 * again_seconds, LONGEST_AGAIN_SECONDS)

    def _has_news(self) -> bool:
        if self._mounted is None:
            return self.is_stopping()
        report = self._report
        news = report.must_clean or report.has_news or report.lost_files.has_news
        if self.is_stopping() or news or self._report_is_due():
            return True
        return self._must_verify() and not self._lender.older_writers()

    def _must_verify(self) -> bool:
        """Is there a restored catalogue, and is some memory not yet compared with it under this registration?"""
        here = (*(self._mounted or ()), self._lender.boot)
        return bool(self._older) and (self._verified is None or self._verified[:2] != (here, VERIFIED))

    def _report_is_due(self) -> bool:
        """Are figures due? At once for a master that never got any."""
        return self._reported_under != self._mounted or self._seconds_until_due() == 0.0

    def _seconds_until_due(self) -> float:
        if self._mounted is None:
            return self._report.interval_seconds  # There is no master to report to; mounting ends the pause.
        return max(0.0, self._reported_at + self._report.interval_seconds - now_seconds())

    def _testify(self) -> Operation[None]:
        gone = self._testimony.gone()
        if gone and self._mounted is not None:
            word = ReportGone(self._mounted[0], self._lender.boot, self._testimony.machine(), gone)
            expect((yield Call(word, now_seconds() + CALL_SECONDS)), Done)
            self._testimony.said(gone)

    def _clean(self) -> Operation[None]:
        grants = self._report.grants_to_clean()
        if not grants:
            return
        # Grants that are still being written to are tried again.
        cleaned = yield Work(lambda: self._lender.clean(grants, now_seconds() + CLEAN_SECONDS))
        self._report.grants_cleaned(cleaned)

    def _tell_once(self) -> Operation[None]:
        mounted, boot = self._mounted, self._lender.boot
        if mounted is None:
            return  # There is no master to report to; the report follows after the next registration.
        if self._report.has_news:
            news = self._report.news(mounted[0], boot)
            expect((yield Call(news, now_seconds() + CALL_SECONDS)), Done)
            self._report.acknowledged(news)
        if self._report_is_due():
            began = now_seconds()
            usage = ReportUsage(mounted[0], boot, self._lender.figures(), *self._report.attendance())
            expect((yield Call(usage, began + CALL_SECONDS)), Done)
            self._reported_at, self._reported_under = began, mounted
        if self._must_verify() and not self._lender.older_writers():
            yield from self._verify_some(mounted, boot)
        yield from self._tell_lost_files()

    def _tell_lost_files(self) -> Operation[None]:
        """Report lost files. Done last, so that a master that cannot take it now (it has not mounted the disk yet, or
        waits for its predecessor's end) gets everything else."""
        lost_files = self._report.lost_files
        report = lost_files.report()
        if report is None:
            return
        try:
            expect((yield Call(report, now_seconds() + CALL_SECONDS)), Done)
        except (Busy, UnknownNode) as error:
            log.debug("lost files were not taken note of yet; they are reported again", reason=str(error))
            yield Pause(AGAIN_SECONDS, self.is_stopping)
        else:
            lost_files.answered(report)

    def _verify_some(self, mounted: tuple[int, int], boot: int) -> Operation[None]:
        """Ask for ranges, and compare them; the next request reports those that did not match."""
        here = (*mounted, boot)
        _, cursor, failed = self._verified if self._verified and self._verified[0] == here else (here, 0, b"")
        request = VerifyRanges(mounted[0], boot, cursor, failed)
        answer = expect((yield Call(request, now_seconds() + CALL_SECONDS)), RangesToVerify)
        failed = yield Work(lambda: self._lender.mismatched(answer.rows))
        self._verified = (here, answer.cursor or VERIFIED, failed)
        if failed:
            log.warning("ranges do not hold what the restored catalogue says", ranges=len(failed) // 24)
        if not answer.cursor:
            log.info("all memory was compared with the restored catalogue")


class SessionThreads:
    """Run the node's life from `start` until `stop` or a `failure`: one thread for each of its two operations."""

    def __init__(self, life: NodeLife, runner: ThreadRunner, supervisor: Supervisor) -> None:
        self.failure: HoldfastError | None = None
        """Why the node cannot go on; None while it can."""
        self.life = life
        self._supervisor = supervisor
        self._stopping = threading.Event()
        self._runner = runner
        self._threads = [
            threading.Thread(target=self._run, args=("session", life.belong), name="session", daemon=True),
            threading.Thread(target=self._run, args=("reports", life.tell), name="reports", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads, and say goodbye to the master if it can be reached."""
        self._stopping.set()
        self.life.stop()
        self._runner.rouse()
        try:
            self._runner.run(self.life.farewell())
        except HoldfastError as error:
            log.info("no master heard the goodbye", reason=str(error))
        self._runner.hang_up(CLOSED_TEXT)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(STOP_SECONDS)

    def _run(self, name: str, operation: Callable[[], Operation[None]]) -> None:
        try:
            self._supervisor.keep_thread(name, lambda: self._carry_out(operation()), self._stops)
        finally:
            self.life.stop()
            self._runner.rouse()

    def _stops(self, seconds: float) -> bool:
        return self._stopping.wait(seconds) or self.life.is_stopping()

    def _carry_out(self, operation: Operation[None]) -> None:
        try:
            self._runner.run(operation)
        except HoldfastError as error:
            if not self.life.is_stopping():
                log.error("the node cannot go on", reason=str(error), code=error.code)
            self.failure = error
        except Exception as error:
            if self.life.has_been_member:
                raise  # Its memory is in use: the supervisor tries again.
            log.exception("the node cannot begin")
            self.failure = HoldfastError(f"the node cannot begin ({error!r}); no memory is lent")
