"""A standby's copy of the state: batches in, checked to be the next ones of one history, applied with `apply`.

It holds no callbacks and no timers (I15): whoever promotes it takes its state and position, and nothing else.
"""

from __future__ import annotations

from holdfast.core.apply import apply
from holdfast.core.state import State
from holdfast.instant import Instant
from holdfast.replication.batches import Position, decode_batch


class Standby:
    def __init__(self, state: State | None = None, position: Position | None = None) -> None:
        self.state = state if state is not None else State()
        self.position = position if position is not None else Position()
        self.stuck = ""
        """Why it cannot go on; empty while it can."""

    def take(self, number: int, batch: bytes, now: Instant) -> None:
        """Apply the next batch. BrokenChain, UnknownRecord: nothing of it was applied (I13)."""
        records, position = decode_batch(self.position, number, batch)
        for record in records:
            apply(self.state, record, now)
        self.position = position
