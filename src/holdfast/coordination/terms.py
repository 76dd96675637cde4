"""A term while it lasts: how long it may answer, when it is over, and why.

A leader's deadline counts from before each renewal was sent, and is shortened for clocks that drift apart (ADR 42); a
campaigner that waits for its silence counts the whole `leader_ttl` from when it saw that renewal. So the leader always
stops first (I12), and no clock value leaves a process (I16).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from holdfast.coordination.interface import Coordination, CoordinationLost, Deposed, Proof
from holdfast.errors import BadValue, HoldfastError, ReplyLost, Uncertain
from holdfast.ids import ProcessName
from holdfast.instant import Clock, lengthened, relied_on
from holdfast.witness import this_process

log = logging.getLogger("holdfast.coordination")

MARGIN_S = 0.03
"""Beside the drift: the deadline is compared before a reply leaves, not after."""
BEATS_PER_TTL = 5


class Timing(NamedTuple):
    """Clock, sleep and the leader's time to live: arguments, so that a simulator can drive them."""

    ttl_s: float
    clock: Clock
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    @property
    def beat_s(self) -> float:
        return self.ttl_s / BEATS_PER_TTL

    @property
    def answer_s(self) -> float:
        """Timeout of one request to coordination."""
        return max(0.5, self.ttl_s / 3)


class TermRecord(msgspec.Struct, array_like=True, frozen=True):
    """The record of the last term, kept for the next one: it makes the epoch grow for ever."""

    epoch: int
    address: str
    resigned: bool = False
    doubtful: bool = False
    """Won by deposing a term that may still be answering; cleared once it no longer can be."""


def next_epoch(record: TermRecord | None, floor: int) -> int:
    """The epoch of the next term: larger than this record's, and than any that this process knows of (an emptied store
    has no record, but object ids and nodes go on from a restored history)."""
    return max(record.epoch if record is not None else 0, floor) + 1


class LeaderProcess(msgspec.Struct, array_like=True, frozen=True):
    """The process that leads in an epoch, stored beside the term so that others on its machine can see it end."""

    epoch: int
    process: ProcessName
    suspects: list[ProcessName] | None = []
    """If the term is doubtful: processes of earlier terms that may still be answering. None if not all are known."""


class Verdict(NamedTuple):
    """How the last term ended, as far as known."""

    proof: Proof
    suspects: list[ProcessName] | None = []
    """After a guess: the suspects for the new term, as in `LeaderProcess`."""

    def record(self, previous: TermRecord | None, address: str, epoch_floor: int) -> TermRecord:
        """The record of the new term."""
        return TermRecord(next_epoch(previous, epoch_floor), address, doubtful=self.proof == "guess")

    def leader_process(self, record: TermRecord) -> LeaderProcess:
        return LeaderProcess(record.epoch, this_process(), self.suspects)


class TermSeat(NamedTuple):
    """A term that was won, on whatever backend: its record, how the previous one ended, and the clock it lasts by."""

    record: TermRecord
    verdict: Verdict
    previous: TermRecord | None
    timing: Timing


class Tenure(ABC):
    """The part of a `Term` that is the same on every backend."""

    def __init__(self, seat: TermSeat) -> None:
        self.record = seat.record
        self.epoch = seat.record.epoch
        self.proof: Proof = seat.verdict.proof
        self.suspects = list(seat.verdict.suspects or [])
        self.previous_address = seat.previous.address if seat.previous is not None else ""
        self._timing = seat.timing
        self._valid_until = 0.0
        self._reason = ""
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._appending = 0
        self._appended = asyncio.Event()

    @property
    def valid_until(self) -> float:
        return self._valid_until

    @property
    def over(self) -> bool:
        return self._over.is_set()

    async def ended(self) -> str:
        await self._over.wait()
        return self._reason

    def begin(self, sent_at: float, coordination: Coordination) -> None:
        self.extend(sent_at)
        self._doubt_ends_at = sent_at + lengthened(round(self._timing.ttl_s * 1000)) / 1000
        self._tasks = [
            asyncio.create_task(coordination.supervisor.keep("renewal of the term", self._keep_renewing)),
            asyncio.create_task(
                coordination.supervisor.keep("watch of the term", lambda: self._keep_watching(coordination))
            ),
        ]

    def extend(self, sent_at: float) -> None:
        if not self.over:
            self._valid_until = max(self._valid_until, sent_at + relied_on(self._timing.ttl_s) - MARGIN_S)

    def finish(self, reason: str) -> None:
        """End the term; this may be called from anywhere, and more than once."""
        if self.over:
            return
        log.info("the term of epoch %d is over: %s", self.epoch, reason)
        self._reason = reason
        self._valid_until = min(self._valid_until, self._timing.clock())
        self._over.set()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    def end_doubt(self) -> None:
        """The next renewal stores that the doubt is over."""
        self._doubt_ends_at = min(self._doubt_ends_at, self._timing.clock())

    async def append(self, index: int, batch: bytes) -> None:
        self._appending += 1
        try:
            if not self.over:
                await self._append(index, batch)
            elif not await self._is_written(index, batch):
                raise Deposed(f"the term of epoch {self.epoch} is over; batch {index} was not written")
        except Deposed as error:
            self.finish(str(error))
            raise
        finally:
            self._appending -= 1
            self._appended.set()

    def append_at_once(self, index: int, batch: bytes) -> bool:
        if self.over or self._appending:
            return False
        try:
            return self._append_at_once(index, batch)
        except Deposed as error:
            self.finish(str(error))
            raise

    def _append_at_once(self, index: int, batch: bytes) -> bool:
        return False

    async def resign(self) -> None:
        """Free the leadership at once; if coordination does not answer, it is freed by silence."""
        if self.over:
            return
        # From here on no reply may be sent: the next leader takes the resignation as proof.
        self.finish("resigned")
        while self._appending:
            self._appended.clear()
            await self._appended.wait()
        try:
            await self._resign()
        except (CoordinationLost, Uncertain) as error:
            log.warning("could not resign epoch %d, it will run out instead: %s", self.epoch, error)

    async def _keep_renewing(self) -> None:
        while not self.over:
            sent_at = self._timing.clock()
            try:
                ends_doubt = self.record.doubtful and sent_at >= self._doubt_ends_at
                await self._renew(ends_doubt)
            except Deposed as error:
                self.finish(str(error))
                return
            except HoldfastError as error:
                log.warning("the leadership of epoch %d was not renewed: %s", self.epoch, error)
            else:
                self.extend(sent_at)
                if ends_doubt:
                    self.record = msgspec.structs.replace(self.record, doubtful=False)
            await self._timing.sleep(self._timing.beat_s)

    async def _keep_watching(self, coordination: Coordination) -> None:
        """End the term as soon as another leads. If this fails, the supervisor restarts it; meanwhile the renewals find
        out as well, only later."""
        async with aclosing(coordination.watch_leader()) as leaders:
            async for leader in leaders:
                if leader is None:
                    self.finish("the leadership was lost: it ran out or was revoked")
                    return
                if leader.epoch != self.epoch:
                    self.finish(f"deposed by epoch {leader.epoch} at {leader.address}")
                    return

    @abstractmethod
    async def _append(self, index: int, batch: bytes) -> None: ...

    @abstractmethod
    async def _is_written(self, index: int, batch: bytes) -> bool:
        """Whether this term has written this very batch, according to the log itself."""

    @abstractmethod
    async def _renew(self, ends_doubt: bool) -> None:
        """Prove that this term still leads, or raise `Deposed`. With `ends_doubt`, also store that it is sure."""

    @abstractmethod
    async def _resign(self) -> None: ...


class Tail(NamedTuple):
    """The last batch, the bytes of all batches ever written, and the backend's version of this entry."""

    number: int
    total_bytes: int
    version: int

    def with_batch(self, batch: bytes) -> Tail:
        """The tail after the next batch: the one after that may be sent before this one is answered."""
        return Tail(self.number + 1, self.total_bytes + len(batch), self.version + 1)


class Stored(NamedTuple):
    """A batch as it is in the store."""

    epoch: int
    total_bytes: int
    batch: bytes


class TailTenure(Tenure):
    """A term on a backend that keeps the tail of its log in an entry of its own: etcd and ZooKeeper.

    The transaction that writes a batch compares the tail that this term expects, and moves it. Several appends may be
    under way, each expecting the tail that the one before it leaves. If the tail is another one, or a reply was lost,
    the log itself decides whether the batch was written.

    `fence` is the backend's version of the entry that makes this term the last one.
    """

    def __init__(self, seat: TermSeat, fence: int, tail: Tail, max_batch_bytes: int) -> None:
        super().__init__(seat)
        self._fence = fence
        self._tail = tail
        self._max_batch_bytes = max_batch_bytes
        self._in_doubt = 0
        """The last batch whose reply was lost; 0 if there is none."""

    async def _append(self, index: int, batch: bytes) -> None:
        check_size(batch, self._max_batch_bytes)
        # A full etcd refuses every transaction, even for a batch it has written: so read first.
        if index <= self._in_doubt and await self._is_written(index, batch):
            return
        for _ in range(2):
            if index == self._tail.number + 1 and await self._write_next(batch):
                return
            # The tail is not the expected one, or this batch was sent before: the log decides.
            if await self._is_written(index, batch):
                return
            if index != self._tail.number + 1:
                raise out_of_order(index, self._tail.number)
        raise append_unknown(index, "the tail of the log moved while it was appended")

    async def _write_next(self, batch: bytes) -> bool:
        before, self._tail = self._tail, self._tail.with_batch(batch)
        after = self._tail
        try:
            return await self._put(batch, before, after)
        except ReplyLost as error:
            self._in_doubt = max(after.number, self._in_doubt)
            raise append_unknown(after.number, error) from error

    def _is_of_this_term(self, index: int, batch: bytes, stored: Stored | None, leads: bool) -> bool:
        """Is this very batch in the log, which has `stored` at its place? `Deposed` if not, and no longer can be."""
        if stored is not None and (stored.epoch, stored.batch) == (self.epoch, batch):
            return True
        if not leads:
            raise Deposed(f"epoch {self.epoch} leads no more; batch {index} was not written")
        return False

    @abstractmethod
    async def _put(self, batch: bytes, before: Tail, after: Tail) -> bool:
        """Write the batch and move the tail, in one transaction that compares both the fence and the tail. False if
        either is another one: nothing was written."""


class WonTerms:
    """The terms won through one coordination object; at most one of them lasts."""

    def __init__(self) -> None:
        self._lasting: list[Tenure] = []

    def begin(self, term: Tenure, sent_at: float, coordination: Coordination) -> None:
        """Let the term last from now on. `sent_at`: when the request that won it was sent."""
        self._lasting = [*(term for term in self._lasting if not term.over), term]
        term.begin(sent_at, coordination)

    def finish(self, reason: str) -> None:
        for term in self._lasting:
            term.finish(reason)

    async def resign(self) -> None:
        for term in self._lasting:
            await term.resign()


def check_size(batch: bytes, max_batch_bytes: int) -> None:
    if len(batch) > max_batch_bytes:
        raise BadValue(f"a batch of {len(batch)} bytes is over the limit of {max_batch_bytes}; nothing was written")


def out_of_order(index: int, last_index: int) -> BadValue:
    return BadValue(f"batch {index} cannot follow batch {last_index}, or differs from it; nothing was written")


def append_unknown(index: int, error: object) -> ReplyLost:
    return ReplyLost(f"whether batch {index} was written is not known ({error}); append the same bytes again")


async def unless_cancelled(winning: Awaitable[Tenure | None]) -> Tenure | None:
    """Await an attempt to win. If cancelled, wait for its end, which its own deadline bounds, and resign the term."""
    attempt = asyncio.ensure_future(winning)
    try:
        return await asyncio.shield(attempt)
    except asyncio.CancelledError:
        try:
            term = await attempt
        except HoldfastError as error:
            log.debug("a cancelled campaign had failed anyway: %s", error)
        else:
            if term is not None:
                await term.resign()
        raise
