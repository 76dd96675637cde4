"""The successor's side: records of the primary that this master holds until they are in the log (ADR 70).

1. Begun: the primary sends the record that names this process as its successor, and all that follow.
2. Confirmed: as this master follows the log, it compares what it holds with what the log has, and drops that. Once the
   log has the first record, the tail counts.
3. Appended: this master has won the term. It takes no more from the older primary, reads the log to its end, and
   appends the rest before its own epoch begins.
   Or dropped: the log went on differently. If the tail counted, that is reported: acknowledged puts may be lost.

It belongs to the process: a role that fails and begins again has the same tail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cached_property

from holdfast.core.state.state import State
from holdfast.entropy import fresh_id
from holdfast.errors import Refused, TryAgain
from holdfast.replication.batches import body_of

MOST_BYTES = 128 << 20
"""A standby that holds more is not willing: it does not follow the log."""
TIMES = 3
"""How often another master gives way to a named successor before it takes that one for dead."""


class NotWilling(Refused):
    """This master holds no tail of that log now; nothing was kept."""

    code = "not_willing"


class SuccessorFirst(TryAgain):
    """Another master holds the tail of the log, and is to lead before this one; nothing was changed."""

    code = "successor_first"


class HeldTail:
    """`on_lost` is called when records are lost, or seem to be, that puts were acknowledged for."""

    def __init__(self, name: str, on_lost: Callable[[str], None] = lambda why: None) -> None:
        self.name = name
        self._on_lost = on_lost
        self._log_id = 0
        self._epoch = 0
        self._first = 1
        """Index of the first record that it holds."""
        self._records: deque[bytes] = deque()
        self._size_bytes = 0
        self._counts = False
        """The log names this process: somebody may have been told that it holds these records."""
        self._sealed_below = 0
        """It takes nothing from primaries of smaller epochs."""
        self._gave_way: tuple[int, int, int] = (0, 0, 0)
        """(epoch, the successor's life in it, how often this master has given way to it since that epoch ended)"""

    @cached_property
    def life(self) -> int:
        """Names this process, among all that had its name."""
        return fresh_id()

    @property
    def through(self) -> int:
        return self._first + len(self._records) - 1

    def __len__(self) -> int:
        return len(self._records)

    # 1. Begun.

    def check_willing(self, log_id: int, epoch: int, state: State) -> None:
        """Raise `NotWilling` if nothing is held for this primary."""
        if epoch < max(self._sealed_below, self._epoch, state.epoch) or log_id != state.log_id:
            raise NotWilling("a later primary has begun, or this master follows another log; nothing was kept")
        if self._size_bytes > MOST_BYTES:
            raise NotWilling(f"{self._size_bytes:,} bytes are held that the log does not have; nothing more was kept")

    def take(self, log_id: int, epoch: int, first: int, records: list[bytes]) -> int:
        """Hold these records. Returns the index through which it holds all. Raises `NotWilling` if it has records of
        these indexes: they were sent over a connection that the primary has given up, and come late."""
        same = (log_id, epoch) == (self._log_id, self._epoch)
        if same and first <= self.through:
            raise NotWilling(f"records through {self.through} are held, and {first} came late; nothing more was kept")
        if not same or first != self.through + 1:
            # A new line, which the primary begins only when all of the one before is in the log.
            self._drop()
            self._log_id, self._epoch, self._first = log_id, epoch, first
        self._records.extend(records)
        self._size_bytes += sum(map(len, records))
        return self.through

    # 2. Confirmed.

    def confirm(self, before: int, batch: bytes, state: State) -> None:
        """The log has this batch, whose first record follows that of index `before`; `state` is after it."""
        after = state.index
        if not self._records or state.log_id != self._log_id:
            self._drop()
            return
        overlap = min(after, self.through) - max(before, self._first - 1)
        if overlap > 0 and not self._agrees(before, after, body_of(batch), overlap):
            why = f"the log differs from what it holds, after record {before}"
            self._lose(f"{why}; {len(self._records)} records were dropped")
            return
        self._drop_through(after)
        self._counts = bool(state.successor.name) and state.successor.life == self.life

    def _agrees(self, before: int, after: int, body: memoryview, overlap: int) -> bool:
        skipped = max(0, before + 1 - self._first)
        held = b"".join([*self._records][skipped : skipped + overlap])
        if self._first <= before + 1:
            return bytes(body[: len(held)]) == held
        if after <= self.through:
            return bytes(body[len(body) - len(held) :]) == held
        return held in bytes(body)

    def _drop_through(self, index: int) -> None:
        while self._records and self._first <= index:
            self._size_bytes -= len(self._records.popleft())
            self._first += 1

    def _drop(self) -> None:
        self._records.clear()
        self._size_bytes, self._counts = 0, False

    def _lose(self, why: str) -> None:
        counted = self._counts
        self._drop()
        if counted:
            self._on_lost(why)

    # 3. Appended.

    def seal(self, epoch: int) -> None:
        """This master has won the term of that epoch: take nothing from earlier primaries."""
        self._sealed_below = max(self._sealed_below, epoch)

    def rest(self, state: State) -> list[bytes]:
        """The records to append to the log, which was read to its end: `state`. Raises `SuccessorFirst` if another
        master is to lead before this one."""
        successor = state.successor
        if not successor.name:
            self._drop()
            return []
        if successor.life == self.life:
            return self._own_rest(state)
        if successor.name != self.name and not self._has_waited_for(state.epoch, successor.life):
            raise SuccessorFirst(f"{successor.name} holds the tail of the log; this master gives way to it")
        self._drop()
        self._on_lost(
            f"{successor.name}, who held the tail of the log, did not come back: puts with durability standby that "
            "were acknowledged in the last moments may be lost"
        )
        return []

    def appended(self) -> None:
        """This master serves: what it held is in the log."""
        self._drop()

    def _own_rest(self, state: State) -> list[bytes]:
        self._drop_through(state.index)
        if self._records and (self._first != state.index + 1 or state.log_id != self._log_id):
            self._lose(f"the log ends with record {state.index}, and it holds those from {self._first} on")
        return [*self._records]

    def _has_waited_for(self, epoch: int, life: int) -> bool:
        """Count one time more that this master gives way. True: it has done so often enough."""
        *known, times = self._gave_way
        times = times + 1 if known == [epoch, life] else 1
        self._gave_way = epoch, life, times
        return times > TIMES
