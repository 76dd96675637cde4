"""Recent events of the cluster: roles, sessions, memory that came and went, snapshots, evictions.

A bounded history (I17), numbered in the order of arrival, so that a reader can ask for events it has not seen. A master
notes its own, most of them from records as they are applied, and adopts those that other masters published
(`master/status/timeline.py`). It is not part of the state, and nothing is decided by it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from holdfast.core.copies.evacuation import left_on
from holdfast.core.state.state import MODES, State
from holdfast.instant import Instant, calendar_seconds, now_ms
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
PUBLISHED_EVENTS = 200
"""Of its own, for the other masters and for the time after a restart."""

NOTABLE = frozenset(
    {
        SessionOpened,
        SessionClosed,
        SegmentMounted,
        SegmentUnmounted,
        MemoryVerified,
        ObjectsRemoved,
        NodeModeChanged,
        NodeDrained,
        SettingsChanged,
    }
)
"""Records that may be events."""
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
    master: str = ""
    """The one that noted it."""
    date_ms: int = 0
    """Milliseconds since 1970, by the calendar of that master; no two events of one master have the same."""
    position: tuple[int, int] = (0, 0)
    """Epoch and index of the record that it is of; zeros: it is of none."""


class _Ring:
    """The latest events. When it is full, the oldest of the most frequent kind goes: a thousand sessions that come and
    go displace no failover."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()
        self.events: list[RecentEvent] = []

    def add(self, event: RecentEvent) -> None:
        self.events.append(event)
        self._counts[event.kind] += 1
        if len(self.events) > self._most:
            [(kind, _)] = self._counts.most_common(1)
            oldest = min((one for one in self.events if one.kind == kind), key=lambda one: one.date_ms)
            self.events.remove(oldest)
            self._counts -= Counter([kind])


class EventHistory:
    """`master`: the name of the one that notes events here."""

    def __init__(self, master: str = "", calendar: Callable[[], float] = calendar_seconds) -> None:
        self._master = master
        self._calendar = calendar
        self._all = _Ring(REMEMBERED_EVENTS)
        self._own = _Ring(PUBLISHED_EVENTS)
        self._followed: deque[RecentEvent] = deque(maxlen=PUBLISHED_EVENTS)
        """Of records that another master logged, as its standby applied them."""
        self._last_date_ms = 0
        self._next = 1
        self.added = asyncio.Event()
        """Set whenever this master has noted an event."""

    def add(self, kind: str, subject: str, text: str, now: Instant) -> None:
        """Note an event of this master."""
        self._keep(self._dated(kind, subject, text, now))
        self.added.set()

    def note(self, state: State, record: Record, now: Instant) -> None:
        """Note the events of a record that this primary is about to apply."""
        for event in self._of_record(state, record, now):
            self._keep(event)
            self.added.set()

    def follow(self, state: State, record: Record, now: Instant) -> None:
        """Remember the events of a record that this standby is about to apply, in case that the primary dies before it
        has told of them."""
        if type(record) in NOTABLE:
            self._followed.extend(self._of_record(state, record, now))

    def adopt_followed(self, told: tuple[int, int]) -> None:
        """Note, as a new primary, the events of records after this position: nobody else has told of them."""
        for event in self._followed:
            if event.position > told:
                self._keep(event)
                self.added.set()
        self._followed.clear()

    def _dated(
        self, kind: str, subject: str, text: str, now: Instant, position: tuple[int, int] = (0, 0)
    ) -> RecentEvent:
        self._last_date_ms = max(self._last_date_ms + 1, int(self._calendar() * 1000))
        return RecentEvent(0, now, kind, subject, text, self._master, self._last_date_ms, position)

    def _of_record(self, state: State, record: Record, now: Instant) -> list[RecentEvent]:
        position = (state.epoch, state.index + 1)
        return [self._dated(*found, now, position) for found in _events_of(state, record)]

    def adopt(self, published: RecentEvent) -> None:
        """Take over an event of another master, or of this one in an earlier life. Its age is as the calendar says."""
        age_ms = max(0, int(self._calendar() * 1000) - published.date_ms)
        self._keep(replace(published, at=now_ms() - age_ms))

    def _keep(self, event: RecentEvent) -> None:
        event = replace(event, number=self._next)
        self._next += 1
        self._all.add(event)
        if event.master == self._master:
            self._own.add(event)

    def own(self) -> list[RecentEvent]:
        """The latest of this master, the oldest first."""
        return sorted(self._own.events, key=lambda event: event.date_ms)

    def after(self, number: int, limit: int) -> list[RecentEvent]:
        """Events after this number, in the order of their arrival; with 0, the newest of all that are remembered."""
        if number:
            return [event for event in self._all.events if event.number > number][:limit]
        newest = sorted(self._all.events, key=lambda event: event.at)[-limit:]
        return sorted(newest, key=lambda event: event.number)


def _events_of(state: State, record: Record) -> Iterator[tuple[str, str, str]]:
    """Kind, subject and text of the events of a record that is about to be applied."""
    match record:
        case SessionOpened():
            yield "session_created", record.name, f"session epoch {record.session_epoch}"
        case SessionClosed():
            kind = "session_expired" if record.cause is SessionEnd.EXPIRED else "session_closed"
            yield kind, state.sessions.get(record.session, ""), _ENDS[record.cause]
        case SegmentMounted():
            yield "segment_mounted", record.name.node, f"{record.size_bytes:,} bytes"
        case SegmentUnmounted():
            gone = state.segments.get(record.handle)
            if gone is not None:
                yield "segment_unmounted", gone.name.node, f"{gone.size_bytes:,} bytes"
        case MemoryVerified():
            for node in sorted({state.segments[handle].name.node for handle in record.handles}):
                yield "memory_verified", node, "compared with the restored catalogue"
        case ObjectsRemoved(cause=Cause.MISMATCH):
            count = (len(record.ids) + len(record.leased)) // 8
            yield "objects_dropped", f"{count} objects", "their bytes are not the ones that were put"
        case NodeModeChanged():
            drain = state.drains.get(record.node)
            kind, text = "node_" + MODES[record.mode], ""
            if drain is not None and not drain.ended:
                objects, size = left_on(state, record.node)
                kind, text = "drain_cancelled", f"{drain}, {objects:,} ({size:,} bytes) left"
            yield kind, record.node, text
        case NodeDrained():
            if (ended := state.drains.get(record.node)) is not None:
                yield "node_drained", record.node, f"{ended}, 0 left; it can be stopped"
        case SettingsChanged():
            for name in sorted({*record.changed, *state.changed}):
                if record.changed.get(name) != state.changed.get(name):
                    value = record.changed.get(name, "as the masters were started with")
                    yield "setting_changed", name, str(value)
        case _:
            pass
