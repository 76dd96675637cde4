"""The primary's log: records that are not durable yet (`PendingLog`), and their writer (`LogWriter`).

While an append is under way the next records gather; the next batch takes them all, up to a limit in bytes: group
commit. `PendingLog` does no I/O: the writer cuts the next batch from it, appends it, and reports when it is durable,
which releases the replies that waited for it.

Clients that have just got their replies often come straight back. Cut without them, the next batch would hold only the
other half of the requests, and each half would wait for two appends. So if an append takes milliseconds, the writer
waits briefly until as many requests are waiting again. If it takes longer, as over a network, the next batches are sent
before it is answered, at even intervals. If it is very fast, it is made in the event loop, without a thread.

Records that nobody waits for, such as puts with durability `memory`, gather for LINGER_SECONDS, so that one append
carries many of them. Such a batch is never written in the event loop, which has requests to serve meanwhile (ADR 66).
Whoever begins to wait for one of these records has it written at once.

A batch whose fate is unknown is appended again, byte for byte, until it is known, and so are the batches sent after
it. A refusal ends the term: records that were applied but not made durable are never rolled back; the process starts
over as a standby and follows the log.
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast.coordination.interface import CoordinationLost, Deposed, Term, full_store
from holdfast.errors import HoldfastError, ReplyLost
from holdfast.instant import Instant, now_seconds
from holdfast.messages.log_versions import LOG_VERSION, OLDEST_LOG_VERSION, version_of
from holdfast.messages.shapes import Record
from holdfast.operations.durations import Durations
from holdfast.outage import Outage
from holdfast.replication.batches import HEAD_BYTES, Position, encode_batch, encode_record

log = logging.getLogger("holdfast.log")
PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
GATHER_SECONDS = 0.002
LEAST_APPEND_MS = 1.5
"""If an append is faster than this, do not gather requests: the next batch is soon enough."""
OVERLAP_FROM_MS = 5.0
"""If an append takes at least this long, send the next batches before it is answered. Below this, more batches would
cost more than they save; and four in this time are 800 writes per second, where 1,000 are the most that coordination
should have."""
LINGER_SECONDS = 0.01
"""How long records that nobody waits for may gather: 100 appends per second."""
QUICK_MS = 10.0
QUICK_IN_A_ROW = 4
"""After this many consecutive appends faster than QUICK_MS, append without a thread."""

Released = Callable[[], None]


class PendingReply(ABC):
    """A reply that waits for its record, until it is called (sent) or refused."""

    __slots__ = ("deadline",)

    def __init__(self, deadline: Instant) -> None:
        self.deadline = deadline

    @abstractmethod
    def __call__(self) -> None: ...

    @abstractmethod
    def refuse(self, why: str) -> None:
        """Give up: the deadline has passed, and the record may or may not become durable."""


class PendingLog:
    """Records that were applied but are not durable yet, and everything that waits for their durability."""

    def __init__(self, position: Position, version: int = OLDEST_LOG_VERSION) -> None:
        self.version = version
        """The log version that a reader of all records needs (ADR 64)."""
        self.position = position
        """After the last batch that was cut."""
        self.written = position
        """After the last batch that is durable."""
        self.durable = position.index
        """Index of the last durable record."""
        self.index = position.index
        """Index of the last record."""
        self.bytes = 0
        """Bytes of the records that are not durable."""
        self.full = ""
        """The store's error while it has no room for the next batch; empty while it has."""
        self.on_wait: Callable[[], None] = lambda: None
        """Called when something has begun to wait for a record; set by the writer."""
        self.copied: list[bytes] | None = None
        """Where records go too, as they are encoded; None: nowhere (ADR 70)."""
        self.torn = ""
        """The record that a defect kept from being applied completely: the state has been useless since then."""
        self._records: deque[bytes] = deque()
        self._waiting: deque[tuple[int, Released]] = deque()
        self._keys: dict[str, int] = {}
        self._keys_of: deque[tuple[int, Sequence[str]]] = deque()

    def add(self, record: Record, keys: Sequence[str]) -> int:
        """Add a record; return its index. `keys` are those whose objects it bound or unbound."""
        encoded = encode_record(record)
        if self.version < LOG_VERSION:
            self.version = max(self.version, version_of(record))
        self._records.append(encoded)
        if self.copied is not None:
            self.copied.append(encoded)
        self.bytes += len(encoded)
        self.index += 1
        if keys:
            self._keys_of.append((self.index, keys))
            self._keys.update(dict.fromkeys(keys, self.index))
        return self.index

    def needed_for(self, keys: Iterable[str]) -> int:
        """The index that must be durable before a reply about these keys may be sent."""
        undurable = self._keys
        if not undurable:
            return 0
        return max((undurable.get(key, 0) for key in keys), default=0)

    def when_durable(self, index: int, then: Released) -> None:
        """Call `then` once the record of that index is durable. Callbacks run in the order of registration."""
        if index <= self.durable:
            then()
        else:
            # A reply that waits for an earlier record than the one queued before it waits for both: no harm.
            self._waiting.append((index, then))
            self.on_wait()

    def refuse_late(self, now: Instant) -> None:
        """Refuse overdue replies with the reason that the store is full: a timeout would not tell why."""
        kept: deque[tuple[int, Released]] = deque()
        for index, then in self._waiting:
            if isinstance(then, PendingReply) and now >= then.deadline:
                then.refuse(self.full)
            else:
                kept.append((index, then))
        self._waiting = kept

    @property
    def waiting(self) -> int:
        """Number of replies that wait for a record to be durable."""
        return len(self._waiting)

    @property
    def has_more(self) -> bool:
        """Are there records that are in no batch yet?"""
        return bool(self._records)

    def cut(self, most_bytes: int) -> tuple[bytes, Position] | None:
        """The next batch and the position after it; None if there is nothing to write."""
        if not self._records:
            return None
        taken: list[bytes] = []
        size = HEAD_BYTES
        while self._records and (not taken or size + len(self._records[0]) <= most_bytes):
            record = self._records.popleft()
            size += len(record)
            taken.append(record)
        batch, self.position = encode_batch(self.position, taken, self.version)
        return batch, self.position

    def is_durable(self, position: Position, batch: bytes) -> None:
        """Everything up to this position is durable: release the replies that waited for it."""
        self.written, self.durable = position, position.index
        self.bytes -= len(batch) - HEAD_BYTES
        while self._keys_of and self._keys_of[0][0] <= self.durable:
            index, keys = self._keys_of.popleft()
            for key in keys:
                if self._keys.get(key) == index:
                    del self._keys[key]
        while self._waiting and self._waiting[0][0] <= self.durable:
            self._waiting.popleft()[1]()


@dataclass(frozen=True, slots=True)
class Sent:
    batch: bytes
    position: Position
    began: float


@dataclass(slots=True)
class LogFigures:
    """Figures of all logs that this process has written: for metrics."""

    appends: Durations = field(default_factory=Durations)
    """From sending a batch to knowing that it is durable."""
    bytes: int = 0
    errors: int = 0
    """Appends that failed, and were made again or ended the term."""


UnderWay: TypeAlias = deque[tuple[Sent, asyncio.Task[None]]]


class LogWriter:
    def __init__(
        self,
        term: Term,
        pending: PendingLog,
        most_bytes: int,
        durable: Callable[[], None],
        most_under_way: int = 1,
        figures: LogFigures | None = None,
    ) -> None:
        self._term = term
        self._pending = pending
        pending.on_wait = self._note_wait
        self._most_bytes = most_bytes
        self._durable = durable
        self._most_under_way = most_under_way
        self._figures = figures if figures is not None else LogFigures()
        self._wake = asyncio.Event()
        self._at_boundary: list[Callable[[Position], None]] = []
        self._finishing = False
        self._enough: float = 0
        """Number of waiting replies that wakes the writer; 0 if the next record does."""
        self._outage = Outage(log, "the log takes no batch; it is tried again")
        self._quick = 0
        """Number of consecutive quick appends."""
        self.batches = 0
        self.bytes = 0
        self.append_ms = 0.0
        """Recent average time of an append."""

    def rouse(self) -> None:
        """Wake the writer, unless it gathers: there is something to write."""
        if not self._enough:
            self._wake.set()

    def _note_wait(self) -> None:
        if self._pending.waiting >= self._enough:
            self._wake.set()

    def at_boundary(self, then: Callable[[Position], None]) -> None:
        """Call `then` with a position when the state is exactly that of the batches through it; the last of them may
        not be durable yet."""
        self._at_boundary.append(then)
        self._wake.set()

    def _boundary(self) -> None:
        if self._at_boundary and not self._pending.has_more:
            waiting, self._at_boundary = self._at_boundary, []
            for then in waiting:
                then(self._pending.position)

    async def run(self) -> None:
        """Write until the term ends (raises Deposed then), or, after `finish`, until nothing is left."""
        while True:
            self._wake.clear()
            while self._pending.has_more:
                await self._linger()
                await self._write()
            self._boundary()
            if self._finishing:
                return
            await self._wake.wait()

    def finish(self) -> None:
        """Let `run` return when everything has been written."""
        self._finishing = True
        self._wake.set()

    async def flush(self) -> None:
        """Write all pending records, at once."""
        while self._pending.has_more:
            await self._write()
        self._boundary()

    @property
    def _is_awaited(self) -> bool:
        """Does anybody wait for the next batch, or is there enough for a whole one?"""
        pending = self._pending
        return bool(pending.waiting or self._at_boundary or self._finishing or pending.bytes >= self._most_bytes)

    async def _linger(self) -> None:
        """Let records gather for a moment if nobody waits for them."""
        if not self._is_awaited:
            await self._wait(1, LINGER_SECONDS)

    async def _write(self) -> None:
        """Write the next batch, or several if they overlap."""
        if self._most_under_way > 1 and self.append_ms >= OVERLAP_FROM_MS:
            await self._overlap()
        else:
            at_once = self._pending.waiting > 0 and self._quick >= QUICK_IN_A_ROW
            sent = self._cut()
            await self._append(sent, at_once)
            await self._gather(self._written(sent))

    def _cut(self) -> Sent:
        cut = self._pending.cut(self._most_bytes)
        assert cut is not None, "there is something to write"
        self._boundary()
        return Sent(*cut, now_seconds())

    def _written(self, sent: Sent) -> int:
        """The batch is durable: release the replies that waited for it; return their number."""
        took_seconds = now_seconds() - sent.began
        self._figures.appends.add(int(took_seconds * 1e9))
        self._figures.bytes += len(sent.batch)
        took_ms = took_seconds * 1000
        self._quick = self._quick + 1 if took_ms < QUICK_MS else 0
        self.append_ms = 0.9 * self.append_ms + 0.1 * took_ms if self.batches else took_ms
        self.batches += 1
        self.bytes += len(sent.batch)
        waited = self._pending.waiting
        self._pending.full = ""
        self._pending.is_durable(sent.position, sent.batch)
        self._durable()
        return waited - self._pending.waiting

    async def _gather(self, released: int) -> None:
        """Wait until the clients that just got replies are back, or a moment has passed."""
        if released < 2 or self.append_ms < LEAST_APPEND_MS or self._finishing:
            return
        await self._wait(self._pending.waiting + released, min(GATHER_SECONDS, self.append_ms / 2000))

    async def _wait(self, enough: float, most_seconds: float) -> None:
        """Wait until `enough` replies wait for the log, something else wakes this, or the time is over."""
        self._enough = enough
        self._wake.clear()
        timer = None
        if most_seconds < math.inf:
            timer = asyncio.get_running_loop().call_later(most_seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            self._enough = 0
            if timer is not None:
                timer.cancel()

    async def _append(self, sent: Sent, at_once: bool = False) -> None:
        pause = PAUSE_SECONDS
        number, batch = sent.position.batch, sent.batch
        while True:
            try:
                if not (at_once and self._term.append_at_once(number, batch)):
                    await self._term.append(number, batch)
                self._outage.over()
                return
            except (ReplyLost, CoordinationLost) as error:
                self._failed(error)
            at_once = False
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _failed(self, error: HoldfastError) -> None:
        self._figures.errors += 1
        self._outage.seen(error)
        self._pending.full = full_store(error)

    async def _overlap(self) -> None:
        """Write with several appends under way, until nothing is left or the log has become quick."""
        under_way: UnderWay = deque()
        last_sent = -math.inf
        try:
            while under_way or self._pending.has_more:
                interval = self.append_ms / 1000 / self._most_under_way
                next_at = last_sent + (interval if self._is_awaited else max(interval, LINGER_SECONDS))
                if self._pending.has_more and len(under_way) < self._most_under_way and now_seconds() >= next_at:
                    last_sent = self._send(under_way)
                    continue
                await self._until_something_is_to_do(under_way, next_at)
                released = await self._take_written(under_way)
                if not under_way:
                    await self._gather(released)
                    if self.append_ms < OVERLAP_FROM_MS:
                        return
        finally:
            # On the way out the fate of these appends stays unknown here: the log will tell.
            for _, append in under_way:
                append.cancel()
            await asyncio.gather(*(append for _, append in under_way), return_exceptions=True)

    def _send(self, under_way: UnderWay) -> float:
        """Begin to append the next batch; return when that was."""
        sent = self._cut()
        append = asyncio.create_task(self._term.append(sent.position.batch, sent.batch))
        append.add_done_callback(lambda _: self._wake.set())
        under_way.append((sent, append))
        return sent.began

    async def _until_something_is_to_do(self, under_way: UnderWay, next_at: float) -> None:
        """Wait until the first append is answered, or the next one is due and there is something to write."""
        if under_way and under_way[0][1].done():
            return
        if not self._pending.has_more:
            await self._wait(0, math.inf)
        elif len(under_way) < self._most_under_way:
            await self._wait(math.inf if self._is_awaited else 1, max(0.0, next_at - now_seconds()))
        else:
            await self._wait(math.inf, math.inf)

    async def _take_written(self, under_way: UnderWay) -> int:
        """Take the appends that are written; return how many replies waited for them. An append that failed, and all
        that were sent after it, are retried."""
        released = 0
        while under_way and under_way[0][1].done():
            failure = under_way[0][1].exception()
            if failure is None:
                released += self._written(under_way.popleft()[0])
                continue
            if isinstance(failure, Deposed) or not isinstance(failure, HoldfastError):
                raise failure
            self._failed(failure)
            await asyncio.gather(*(append for _, append in under_way), return_exceptions=True)
            while under_way:
                await self._append(under_way[0][0])
                released += self._written(under_way.popleft()[0])
        return released
