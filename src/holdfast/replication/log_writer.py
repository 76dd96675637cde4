"""The primary's writer: cuts batches, appends them in order, and says what became durable.

Those whose answers have just gone out often come straight back. Cut without them, the next batch would take the other
half of the crowd only, and each half would wait for two appends. So where an append takes milliseconds the writer
waits a moment until as many are there again. Where it takes longer, as over a network, the next batches are sent
before it is answered, one after another at even distances. Where it takes a moment only, it is made at once, without
a thread.

A batch whose fate is unknown is appended again, byte for byte, until it is known, and so are those that were sent
behind it. A refusal ends the term: what was applied and not made durable is never rolled back; the process starts
over as a standby and follows the log.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.coordination.interface import CoordinationLost, Deposed, Term, full_store
from holdfast.errors import HoldfastError, ReplyLost
from holdfast.instant import now_seconds
from holdfast.outage import Outage
from holdfast.replication.batches import Position
from holdfast.replication.pending_log import PendingLog

log = logging.getLogger("holdfast.log")
PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
GATHER_SECONDS = 0.002
LEAST_APPEND_MS = 1.5
"""A log that takes a batch sooner than this is not waited for: the next batch is soon enough."""
OVERLAP_FROM_MS = 5.0
"""From here on the next batches are sent before this one is answered. Sooner, more of them would cost more than they
save; and four in this time are 800 writes a second, where 1,000 are the most that coordination should have."""
QUICK_MS = 10.0
QUICK_IN_A_ROW = 4
"""So many appends, none of them longer: the log answers at once."""


@dataclass(frozen=True, slots=True)
class Sent:
    batch: bytes
    position: Position
    began: float


UnderWay: TypeAlias = deque[tuple[Sent, asyncio.Task[None]]]


class LogWriter:
    def __init__(
        self, term: Term, pending: PendingLog, most_bytes: int, durable: Callable[[], None], most_under_way: int = 1
    ) -> None:
        self._term = term
        self._pending = pending
        self._most_bytes = most_bytes
        self._durable = durable
        self._most_under_way = most_under_way
        self._wake = asyncio.Event()
        self._at_boundary: list[Callable[[Position], None]] = []
        self._finishing = False
        self._enough: float = 0
        """As many are waited for to wait for the log; 0 while nobody is waited for."""
        self._outage = Outage(log, "the log takes no batch; it is tried again")
        self._quick = 0
        """So many appends one after another took a moment only."""
        self.batches = 0
        self.bytes = 0
        self.append_ms = 0.0
        """How long an append takes, on average lately."""

    def rouse(self) -> None:
        """There is something to write. Whoever will wait for it is counted after this."""
        if self._pending.waiting + 1 >= self._enough:
            self._wake.set()

    def at_boundary(self, then: Callable[[Position], None]) -> None:
        """Call `then` at a moment when the state is exactly what the batches through that position hold; the last of
        them may not be durable yet."""
        self._at_boundary.append(then)
        self.rouse()

    def _boundary(self) -> None:
        if self._at_boundary and not self._pending.has_more:
            waiting, self._at_boundary = self._at_boundary, []
            for then in waiting:
                then(self._pending.position)

    async def run(self) -> None:
        """Write until the term ends (raises Deposed then), or, after `finish`, until nothing is left."""
        while True:
            self._wake.clear()
            await self.flush()
            if self._finishing:
                return
            await self._wake.wait()

    def finish(self) -> None:
        """Let `run` return when everything there is has been written."""
        self._finishing = True
        self._wake.set()

    async def flush(self) -> None:
        """Write everything there is."""
        while self._pending.has_more:
            if self._most_under_way > 1 and self.append_ms >= OVERLAP_FROM_MS:
                await self._overlap()
            else:
                sent = self._cut()
                await self._append(sent, at_once=self._quick >= QUICK_IN_A_ROW)
                await self._gather(self._written(sent))
        self._boundary()

    def _cut(self) -> Sent:
        cut = self._pending.cut(self._most_bytes)
        assert cut is not None, "there is something to write"
        self._boundary()
        return Sent(*cut, now_seconds())

    def _written(self, sent: Sent) -> int:
        """It is durable. How many waited for that."""
        took_ms = (now_seconds() - sent.began) * 1000
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
        """Until those who have just been answered are back, or a moment has passed."""
        if released < 2 or self.append_ms < LEAST_APPEND_MS or self._finishing:
            return
        await self._wait(self._pending.waiting + released, min(GATHER_SECONDS, self.append_ms / 2000))

    async def _wait(self, enough: float, most_seconds: float) -> None:
        """Until so many wait for the log and one of them rouses this, somebody else wakes it, or the time is over."""
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
                self._outage.seen(error)
                self._pending.full = full_store(error)
            at_once = False
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _overlap(self) -> None:
        """Write with several appends under way, until there is nothing left or the log has become quick."""
        under_way: UnderWay = deque()
        last_sent = -math.inf
        try:
            while under_way or self._pending.has_more:
                next_at = last_sent + self.append_ms / 1000 / self._most_under_way
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
            # Whoever ends this does not learn what becomes of them: the log will say.
            for _, append in under_way:
                append.cancel()
            await asyncio.gather(*(append for _, append in under_way), return_exceptions=True)

    def _send(self, under_way: UnderWay) -> float:
        """Begin to append the next batch. When that was."""
        sent = self._cut()
        append = asyncio.create_task(self._term.append(sent.position.batch, sent.batch))
        append.add_done_callback(lambda _: self._wake.set())
        under_way.append((sent, append))
        return sent.began

    async def _until_something_is_to_do(self, under_way: UnderWay, next_at: float) -> None:
        """Until the first append is answered, or it is time for the next one and there is one."""
        if under_way and under_way[0][1].done():
            return
        if not self._pending.has_more:
            await self._wait(0, math.inf)
        elif len(under_way) < self._most_under_way:
            await self._wait(math.inf, max(0.0, next_at - now_seconds()))
        else:
            await self._wait(math.inf, math.inf)

    async def _take_written(self, under_way: UnderWay) -> int:
        """How many waited for what is written now. What failed, and all that was sent behind it, is appended again."""
        released = 0
        while under_way and under_way[0][1].done():
            failure = under_way[0][1].exception()
            if failure is None:
                released += self._written(under_way.popleft()[0])
                continue
            if isinstance(failure, Deposed) or not isinstance(failure, HoldfastError):
                raise failure
            self._outage.seen(failure)
            self._pending.full = full_store(failure)
            await asyncio.gather(*(append for _, append in under_way), return_exceptions=True)
            while under_way:
                await self._append(under_way[0][0])
                released += self._written(under_way.popleft()[0])
        return released
