"""Recent events at this master: roles, sessions and memory that came and went.

A bounded history (I17), numbered so that a reader can ask for events it has not seen. It is taken from the records as
they are applied, and is not part of the state: a master remembers only its own time. It gives ages, not times (I16).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from holdfast.core.copies.evacuation import left_on
from holdfast.core.state.state import MODES, State
from holdfast.instant import Instant
from holdfast.messages.records import (
    Cause,
    MemoryVerified,
    NodeDrained,
    NodeModeChanged,
    ObjectsRemoved,
    SegmentMounted,
    SegmentUnmounted,
    SessionClosed,
    SessionEnd,
    SessionOpened,
    SettingsChanged,
)
from holdfast.messages.shapes import Record

REMEMBERED_EVENTS = 1_000

_ENDS = {
    SessionEnd.GOODBYE: "its follower said goodbye",
    SessionEnd.EXPIRED: "its lease and the time of jeopardy have passed",
    SessionEnd.REPLACED: "its name was opened again",
}


@dataclass(frozen=True, slots=True)
class RecentEvent:
    number: int
    at: Instant
    kind: str
    subject: str
    text: str


class EventHistory:
    def __init__(self) -> None:
        self._events: deque[RecentEvent] = deque(maxlen=REMEMBERED_EVENTS)
        self._next = 1

    def add(self, kind: str, subject: str, text: str, now: Instant) -> None:
        self._events.append(RecentEvent(self._next, now, kind, subject, text))
        self._next += 1

    def after(self, number: int, limit: int) -> list[RecentEvent]:
        """Events after this number, the oldest first; with 0, the newest of all that are remembered."""
        found = [event for event in self._events if event.number > number]
        return found[:limit] if number else found[-limit:]

    def note(self, state: State, record: Record, now: Instant) -> None:
        """Note the event of a record that is about to be applied."""
        match record:
            case SessionOpened():
                self.add("session_created", record.name, f"session epoch {record.session_epoch}", now)
            case SessionClosed():
                kind = "session_expired" if record.cause is SessionEnd.EXPIRED else "session_closed"
                self.add(kind, state.sessions.get(record.session, ""), _ENDS[record.cause], now)
            case SegmentMounted():
                self.add("segment_mounted", record.name.node, f"{record.size_bytes:,} bytes", now)
            case SegmentUnmounted():
                gone = state.segments.get(record.handle)
                if gone is not None:
                    self.add("segment_unmounted", gone.name.node, f"{gone.size_bytes:,} bytes", now)
            case MemoryVerified():
                for node in sorted({state.segments[handle].name.node for handle in record.handles}):
                    self.add("memory_verified", node, "compared with the restored catalogue", now)
            case ObjectsRemoved(cause=Cause.MISMATCH):
                count = (len(record.ids) + len(record.leased)) // 8
                self.add("objects_dropped", f"{count} objects", "their bytes are not the ones that were put", now)
            case NodeModeChanged():
                drain = state.drains.get(record.node)
                kind, text = "node_" + MODES[record.mode], ""
                if drain is not None and not drain.ended:
                    objects, size = left_on(state, record.node)
                    kind, text = "drain_cancelled", f"{drain}, {objects:,} ({size:,} bytes) left"
                self.add(kind, record.node, text, now)
            case NodeDrained():
                if (ended := state.drains.get(record.node)) is not None:
                    self.add("node_drained", record.node, f"{ended}, 0 left; it can be stopped", now)
            case SettingsChanged():
                for name in sorted({*record.changed, *state.changed}):
                    if record.changed.get(name) != state.changed.get(name):
                        value = record.changed.get(name, "as the masters were started with")
                        self.add("setting_changed", name, str(value), now)
            case _:
                pass
