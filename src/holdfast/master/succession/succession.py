"""The primary's side: who its successor is, what it is sent, and the replies that may leave on its word (ADR 70).

A successor's life, of which there may be several in one term:
1. Wanted: somebody puts with durability `standby`. Such puts wait for the log meanwhile.
2. Named: a record in the log says so (`name`). It is sent that record and all later ones, a few at a time.
3. Vouching: that record is durable. Replies leave when the successor holds their records, or the log does, whichever
   comes first, as long as this primary's term is valid (I12).
4. Ended: it did not answer, or this primary hands over (`end`). What waits for its word waits for the log. Nobody is
   named before the record of the end is durable: then so is all that was acknowledged on its word.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from holdfast.instant import Instant
from holdfast.replication.log_writer import PendingLog, Released

WANTED_MS = 60_000
"""How long a successor is kept that nobody needs."""
MOST_SENT_BYTES = 1 << 20
"""Of one request: well below what a frame may have. A longer record goes alone."""
MOST_SENT = 8_192
"""Records of one request: a quarter of what it may list."""

Send: TypeAlias = Callable[[int, list[bytes]], None]
"""Send these records to the successor, of which the first has this index."""
LogName: TypeAlias = Callable[[str, int, Instant], bool]
"""Log who the successor is; False if no such record may be written now (ADR 64)."""


class Succession:
    def __init__(self, log: PendingLog, log_name: LogName, leads_until: Callable[[], Instant]) -> None:
        self.name = ""
        """The successor; empty while there is none."""
        self.held = 0
        """It holds all records through this index."""
        self.on_wanted: Callable[[], None] = lambda: None
        """Called when a successor is needed and there is none."""
        self._log = log
        self._log_name = log_name
        self._leads_until = leads_until
        self._send: Send = lambda first, records: None
        self._named_at = 0
        """Index of the record that names it."""
        self._sent = 0
        """Index of the last record that was sent to it."""
        self._ended_at = 0
        """Index of the record that ended the last one."""
        self._waiting: deque[tuple[int, Released]] = deque()
        self._is_wanted = False
        """Since `is_idle` was last asked, somebody has wanted one."""
        self._wanted_at: Instant = 0

    @property
    def waiting(self) -> int:
        """Replies that wait for the successor's word."""
        return len(self._waiting)

    @property
    def lag(self) -> int:
        """Records that it does not hold yet."""
        return max(0, self._log.index - self.held) if self.name else 0

    @property
    def vouches(self) -> bool:
        return bool(self.name) and self._named_at <= self._log.durable

    # Replies.

    def when_held(self, index: int, then: Released) -> None:
        """Call `then` once the successor holds the record of that index, or the log does."""
        self._is_wanted = True
        if not self.name:
            self._log.when_durable(index, then)
            self.on_wanted()
        elif index <= self._log.durable or (index <= self.held and self.vouches):
            then()  # Decided just now: within the term.
        else:
            self._waiting.append((index, then))

    def release(self, now: Instant) -> None:
        """Records have become durable, or the successor has answered: release what waited for that."""
        through = self._log.durable
        if self.vouches and now < self._leads_until():
            through = max(through, self.held)
        while self._waiting and self._waiting[0][0] <= through:
            self._waiting.popleft()[1]()

    # The successor.

    @property
    def may_name(self) -> bool:
        return not self.name and self._ended_at <= self._log.durable

    def name_one(self, name: str, life: int, send: Send, now: Instant) -> bool:
        """Make this standby the successor. False if none may be named now."""
        if not self.may_name or now >= self._leads_until():
            return False
        before = self._log.index
        self._log.copied = []
        if not self._log_name(name, life, now):
            self._log.copied = None
            return False
        self.name, self._send = name, send
        self._named_at, self._sent, self.held = before + 1, before, before
        self._wanted_at = now
        # Have it written at once: until it is durable the successor's word counts for nothing.
        self._log.when_durable(self._named_at, lambda: None)
        self.send()
        return True

    def send(self) -> None:
        """Send it the new records, if it has answered for the ones before."""
        records = self._log.copied
        if self.name and records and self._sent == self.held:
            count = _fitting(records)
            first = self._sent + 1
            self._sent += count
            self._log.copied = records[count:]
            self._send(first, records[:count])

    def answered(self, through: int, now: Instant) -> bool:
        """It holds all records through this index. False if it does not hold what it was sent."""
        if through != self._sent:
            return False
        self.held = through
        self.release(now)
        self.send()
        return True

    def is_idle(self, now: Instant) -> bool:
        """Has nobody needed the successor for a while?"""
        if self._is_wanted:
            self._is_wanted, self._wanted_at = False, now
        return now - self._wanted_at > WANTED_MS

    def end(self, now: Instant) -> None:
        """Acknowledge nothing more on its word; what waits for it waits for the log."""
        if not self.name:
            return
        self.name, self._log.copied = "", None
        self._log_name("", 0, now)
        self._ended_at = self._log.index
        waiting, self._waiting = self._waiting, deque()
        for index, then in waiting:
            self._log.when_durable(index, then)


def _fitting(records: list[bytes]) -> int:
    """How many of these go with one request."""
    size_bytes = 0
    for count, record in enumerate(records[:MOST_SENT]):
        size_bytes += len(record)
        if count and size_bytes > MOST_SENT_BYTES:
            return count
    return min(len(records), MOST_SENT)
