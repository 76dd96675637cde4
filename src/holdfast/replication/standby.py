"""A standby's copy of the state: it takes batches, checks that each is the next one of its history, and applies them.

It holds no callbacks and no timers (I15): a promotion takes its state and position, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from holdfast.core.state.apply import apply
from holdfast.core.state.state import State
from holdfast.errors import MALFORMED
from holdfast.instant import Instant
from holdfast.messages.records import HistoryRestored
from holdfast.messages.shapes import Record
from holdfast.replication.batches import AlteredRecord, BrokenChain, Position, UnknownRecord, decode_batch
from holdfast.replication.carried import Carried

Note: TypeAlias = Callable[[State, Record, Instant], None]


class Standby:
    def __init__(self, state: State | None = None, position: Position | None = None) -> None:
        self.state = state if state is not None else State()
        self.position = position if position is not None else Position()
        self.stuck = ""
        """Why it cannot go on; empty while it can."""
        self._carried = Carried()

    @property
    def carries(self) -> bool:
        """Is a history being restored in the log? The pieces read so far are in no snapshot."""
        return self._carried.begun

    def take(self, number: int, batch: bytes, now: Instant, note: Note | None = None) -> None:
        """Apply the next batch; `note` is called before each record. BrokenChain, UnknownRecord: nothing of it was
        applied (I13). AlteredRecord: part of it was, so that this copy is given up; it never serves and is in no
        snapshot."""
        records, position = decode_batch(self.position, number, batch)
        try:
            self._apply(records, position, now, note)
        except (BrokenChain, UnknownRecord):
            raise
        except MALFORMED as error:
            self.state, self.position, self._carried = State(), Position(), Carried()
            raise AlteredRecord(
                f"a record of batch {number} contradicts the catalogue ({type(error).__name__}: {error}): the log was "
                "altered; this master does not serve; restore the cluster from a snapshot (holdfast restore)"
            ) from error
        self.position = position

    def _apply(self, records: list[Record], position: Position, now: Instant, note: Note | None) -> None:
        if records and isinstance(records[0], HistoryRestored):  # It stands alone in its batch.
            self.state = self._carried.restored(records[0], position.index, now)
        else:
            for record in records:
                if self._carried.takes(record):
                    self.state.index += 1
                else:
                    if note is not None:
                        note(self.state, record, now)
                    apply(self.state, record, now)
