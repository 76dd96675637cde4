"""A hard pin holds (I8): such an object is never evicted, and removed only by force. And nothing new is placed on a
node that is set aside.

The log does not say which call removed an object. But a removal is answered after its record is durable, so the forced
call must still be open when the record is appended.

A pin counts from its record in the log, and also from the moment in which a client was told of it, whatever the log
says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.core.catalogue.catalogue import HARD_PIN
from holdfast.core.state.packed_numbers import unpack_sorted_ids
from holdfast.core.state.state import State
from holdfast.messages.records import (
    Cause,
    HistoryRestored,
    NodeModeChanged,
    ObjectsCommitted,
    ObjectsEvicted,
    ObjectsRemoved,
    PinsChanged,
    RangesGranted,
)
from holdfast.messages.rows import unpack_ids
from holdfast.messages.shapes import Record
from holdfast.simulation.checks.log_checks import Report
from holdfast.simulation.checks.restore_checks import name_of
from holdfast.simulation.scripts.history import ClientCall, History


@dataclass(slots=True)
class PinChecks:
    history: History
    report: Report
    now_ns: Callable[[], int]
    _pinned: dict[int, str] = field(default_factory=dict)
    """The key of each object under a hard pin."""
    _committed: dict[int, tuple[str, int]] = field(default_factory=dict)
    """The key of each object of this history, and when its record was appended."""
    _aside: dict[str, int] = field(default_factory=dict)
    """Nodes that are set aside as of the record being checked; the state has applied the whole batch already."""

    def wiped(self) -> None:
        """Forget the pins: the next history may reuse ids of the last."""
        self._pinned.clear()
        self._committed.clear()
        self._aside.clear()

    def _restored(self, state: State) -> None:
        """Take over the pins and modes of the restored state. It may be older than pins that clients were told of."""
        self._committed.clear()
        catalogue = state.catalogue
        pinned = [slot for slot in catalogue.live().tolist() if catalogue.flags[slot] & HARD_PIN]
        self._pinned = {catalogue.id_at[slot]: name_of(state, str(catalogue.keys[slot])) for slot in pinned}
        self._aside = dict(state.modes)

    def appended(self, record: Record, state: State) -> None:
        match record:
            case HistoryRestored():
                self._restored(state)
            case ObjectsCommitted():
                named = {record.first_id + i: name_of(state, key) for i, key in enumerate(record.keys)}
                self._committed |= {oid: (key, self.now_ns()) for oid, key in named.items()}
                if record.hard_pin:
                    self._pinned |= named
            case PinsChanged():
                self._changed(unpack_sorted_ids(record.ids).tolist(), record.hard_pin, state)
            case ObjectsEvicted():
                self._evicted(unpack_sorted_ids(record.ids).tolist())
            case ObjectsRemoved():
                self._removed(unpack_ids(record.ids) + unpack_ids(record.leased), record.cause)
            case NodeModeChanged():
                self._aside[record.node] = record.mode
            case RangesGranted():
                self._evicted(unpack_sorted_ids(record.evicted).tolist())
                self._placed(record, state)

    def _changed(self, ids: list[int], is_hard: bool, state: State) -> None:
        for oid in ids:
            self._pinned.pop(oid, None)
            if is_hard:
                slot = state.catalogue.by_id.slot_of(oid)
                # The batch that is checked may have removed it since.
                self._pinned[oid] = name_of(state, str(state.catalogue.keys[slot])) if slot >= 0 else f"{oid:x}"

    def _evicted(self, ids: list[int]) -> None:
        for oid in ids:
            if oid in self._pinned:
                key = self._pinned[oid]
                self.report("I8", f"{key} ({oid:x}) was evicted under a hard pin", key)
            elif oid in self._committed and self._told_of_a_pin(*self._committed[oid]):
                key = self._committed[oid][0]
                self.report("I8", f"{key} ({oid:x}) was evicted after a client was told that it is pinned hard", key)

    def _told_of_a_pin(self, key: str, committed_ns: int) -> bool:
        """Was a client told that this object has a hard pin, and can no other call have changed that since?"""
        changes = [
            call
            for call in self.history.calls
            if call.operation.verb in ("pin", "unpin") and key in call.operation.keys and call.outcome != "refused"
        ]
        return any(
            call.outcome == "done"
            and call.result is True
            and call.called_ns > committed_ns
            and _is_hard(call)
            and all(_is_hard(other) or _ended_before(other, call) for other in changes)
            for call in changes
        )

    def _removed(self, ids: list[int], cause: Cause) -> None:
        by_hand = (Cause.REMOVE, Cause.REMOVE_BY_REGEX, Cause.REMOVE_ALL)
        for oid in ids:
            key = self._pinned.get(oid)
            if key is not None and cause in by_hand and not (cause is Cause.REMOVE and self._forced(key)):
                self.report("I8", f"{key} ({oid:x}) was removed under a hard pin, and nobody forced it", key)

    def _forced(self, key: str) -> bool:
        return any(
            call.operation.verb == "force_remove"
            and key in call.operation.keys
            and call.outcome in ("pending", "unknown")
            for call in self.history.calls
        )

    def _placed(self, record: RangesGranted, state: State) -> None:
        for place in record.ranges:
            segment = state.segments.get(place.segment)
            if segment is not None and self._aside.get(segment.name.node):
                node = segment.name.node
                self.report("drain", f"a grant was placed on {node}, which is set aside", node)


def _is_hard(call: ClientCall) -> bool:
    return call.operation.verb == "pin" and call.operation.pin == "hard"


def _ended_before(earlier: ClientCall, call: ClientCall) -> bool:
    """Without a known outcome a request may take effect at any later time."""
    return earlier.outcome == "done" and earlier.answered_ns < call.called_ns
