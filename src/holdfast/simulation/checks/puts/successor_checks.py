"""Puts that were acknowledged on a successor's word (ADR 70): which of them may be lost (I1).

One may be lost only if its primary's epoch ended and the successor that the log named at that end was lost too: killed,
stopped, cut off, or so slow that it could not lead while the others waited for it, at some moment between the put
and the first record of the next epoch. Nothing else excuses it: neither what befell the primary alone, nor what befell
other masters.
"""

from __future__ import annotations

from holdfast.master.succession.held_tail import TIMES
from holdfast.messages.records import EpochStarted, SuccessorNamed
from holdfast.messages.shapes import Record
from holdfast.simulation.kernel.scheduler import MS
from holdfast.simulation.scripts.history import ClientCall
from holdfast.simulation.scripts.script import Fault
from holdfast.simulation.world.store import STORE
from holdfast.simulation.world.world import LEADER_TTL_MS

LOSING = frozenset({"kill_master", "pause_master", "partition", "refuse"})
"""Faults by which a master itself is lost: `refuse` takes the store away from it. One that is cut off from the store is
lost too; from anybody else, it is not."""
WORD_MS = 2_000
"""How long an answer may be under way: the successor may have been lost before the client had its answer."""


class SuccessorChecks:
    def __init__(self) -> None:
        self._lost: list[tuple[int, int, str]] = []
        """(from, until, the master) in ms."""
        self._named = ""
        """Who is named in the log."""
        self._ends: list[tuple[int, str]] = []
        """(when a new epoch began in the log, who was named until then)"""

    def struck(self, fault: Fault, now_ms: int) -> None:
        until_ms = now_ms + fault.lasts_ms
        if fault.kind in LOSING or (fault.kind == "slow_threads" and fault.lasts_ms >= TIMES * LEADER_TTL_MS):
            self._lost.append((now_ms, until_ms, fault.one))
        elif fault.kind == "cut" and STORE in (fault.one, fault.other):
            self._lost += [(now_ms, until_ms, name) for name in (fault.one, fault.other)]

    def appended(self, record: Record, now_ms: int) -> None:
        if isinstance(record, SuccessorNamed):
            self._named = record.name
        elif isinstance(record, EpochStarted):
            self._ends.append((now_ms, self._named))
            self._named = ""

    def wiped(self) -> None:
        """What the store has lost is judged elsewhere."""
        self._named = ""

    def may_be_lost(self, call: ClientCall) -> bool:
        if call.operation.durability != "standby":
            return False
        since_ms, answered_ms = call.called_ns // MS, call.answered_ns // MS
        for when_ms, name in self._ends:
            if when_ms >= since_ms and self._was_lost(name, max(since_ms, answered_ms - WORD_MS), when_ms):
                return True
            if when_ms > answered_ms:
                return False
        return False

    def _was_lost(self, name: str, since_ms: int, until_ms: int) -> bool:
        return any(name == one and begins <= until_ms and ends >= since_ms for begins, ends, one in self._lost if name)
