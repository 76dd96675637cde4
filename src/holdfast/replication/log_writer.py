"""The primary's writer: cuts batches, appends them one after another, and says what became durable.

Those whose answers have just gone out often come straight back. Cut without them, the next batch would take the other
half of the crowd only, and each half would wait for two appends. So where an append takes milliseconds the writer
waits a moment until as many are there again.

A batch whose fate is unknown is appended again, byte for byte, until it is known. A refusal ends the term: what
was applied and not made durable is never rolled back; the process starts over as a standby and follows the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from holdfast.coordination.interface import CoordinationLost, Term
from holdfast.errors import ReplyLost
from holdfast.instant import now_seconds
from holdfast.replication.batches import Position
from holdfast.replication.pending import PendingLog

log = structlog.get_logger("holdfast.log")
PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
GATHER_SECONDS = 0.002
LEAST_APPEND_MS = 1.5
"""A log that takes a batch sooner than this is not waited for: the next batch is soon enough."""


class LogWriter:
    def __init__(self, term: Term, pending: PendingLog, most_bytes: int, durable: Callable[[], None]) -> None:
        self._term = term
        self._pending = pending
        self._most_bytes = most_bytes
        self._durable = durable
        self._wake = asyncio.Event()
        self._at_boundary: list[Callable[[Position], None]] = []
        self._finishing = False
        self._enough = 0
        """As many are waited for to wait for the log; 0 while nobody is waited for."""
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
        while (cut := self._pending.cut(self._most_bytes)) is not None:
            batch, position = cut
            self._boundary()
            began = now_seconds()
            await self._append(position.batch, batch)
            took_ms = (now_seconds() - began) * 1000
            self.append_ms = 0.9 * self.append_ms + 0.1 * took_ms if self.batches else took_ms
            self.batches += 1
            self.bytes += len(batch)
            waited = self._pending.waiting
            self._pending.is_durable(position, batch)
            self._durable()
            await self._gather(waited - self._pending.waiting)
        self._boundary()

    async def _gather(self, released: int) -> None:
        """Until those who have just been answered are back, or a moment has passed."""
        if released < 2 or self.append_ms < LEAST_APPEND_MS or self._finishing:
            return
        self._enough = self._pending.waiting + released
        self._wake.clear()
        most = min(GATHER_SECONDS, self.append_ms / 2000)
        timer = asyncio.get_running_loop().call_later(most, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
            self._enough = 0

    async def _append(self, number: int, batch: bytes) -> None:
        pause = PAUSE_SECONDS
        while True:
            try:
                await self._term.append(number, batch)
                return
            except (ReplyLost, CoordinationLost) as error:
                if pause == PAUSE_SECONDS:
                    log.warning("a batch could not be written; it is tried again", batch=number, why=str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
