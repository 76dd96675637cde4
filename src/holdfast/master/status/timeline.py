"""The events of all masters, those that have died among them, beside the log (ADR 60).

1. Each master publishes its latest events in coordination, at once after one was noted, and keeps them there for a day.
2. Each master reads the others' every few seconds, and at its start its own of an earlier life. So a new primary has
   the events of the one before.
3. A primary may die before it has told of a record. Its standbys have applied the record, and remember its events; the
   new primary notes those that are of later records than any that was told of.
4. A value that cannot be read is none of ours. Nothing is decided by events.

Evictions are noted here, too: one event for all within a minute, because there may be thousands a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter

import msgspec

from holdfast.coordination.interface import Coordination
from holdfast.core.primary.object_counts import EvictionReason, ObjectCounts
from holdfast.instant import Instant, now_ms
from holdfast.master.events import PUBLISHED_EVENTS, RecentEvent
from holdfast.master.roles.master import Master
from holdfast.outage import Outage

EVENTS = "events/"
KEPT_MS = 24 * 3_600_000
AGAIN_MS = KEPT_MS // 4
"""How often it publishes events that others know already, so that they do not end with their time."""
READ_SECONDS = 3.0
SPACING_SECONDS = 0.25
"""Between two values: a thousand nodes that join at once are a few of them."""
EVICTIONS_MS = 60_000
MOST_TEXT = 300
"""Characters of a text; what is longer is cut off."""
MOST_BYTES = 1 << 19
"""Of one value: 200 events of two texts each, every character of four bytes. A longer one is none of ours."""
MOST_MASTERS = 64


class PublishedEvent(msgspec.Struct):
    date_ms: int
    """By the calendar, for people: no clock of a process is told to another (I16)."""
    kind: str
    subject: str
    text: str
    epoch: int = 0
    index: int = 0
    """Of the record that it is of; 0: of none."""


_decode = msgspec.json.Decoder(list[PublishedEvent]).decode


class Timeline:
    """Publishes this master's events, and adopts the others'."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._events = master.events
        self._known: dict[str, set[int]] = {}
        """Master -> the dates of the events in its last value."""
        self._told = (0, 0)
        """The epoch and the index of the last record that any master has told of."""
        self._is_new = False
        """There are events that it has not published."""
        self._publish_again_at: Instant = 0
        self._evictions = _Told(ObjectCounts())
        self._evictions_again_at: Instant = 0
        self._outage = Outage(logging.getLogger("holdfast.master"), "the masters' events are not exchanged")

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._note_evictions(now_ms())
            self._is_new |= self._events.added.is_set()
            self._events.added.clear()
            coordination = self._master.coordination
            if coordination is not None:
                with self._outage.one_try(self._master.figures.coordination_errors, "events"):
                    await self._exchange(coordination)
            await asyncio.sleep(SPACING_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READ_SECONDS):  # `wait_for` may lose a cancellation.
                    await self._events.added.wait()

    async def _exchange(self, coordination: Coordination) -> None:
        """Read first: a value written before its own of an earlier life are known would displace them."""
        name, found = self._master.server.name, await coordination.list(EVENTS)
        for place, content in sorted(found.items())[:MOST_MASTERS]:
            master = place.removeprefix(EVENTS)
            if master != name or name not in self._known:
                self._take(master, content)
        self._known.setdefault(name, set())
        if self._master.engine is not None:
            self._events.adopt_followed(self._told)
        own = self._events.own()
        if own and (self._is_new or EVENTS + name not in found or now_ms() >= self._publish_again_at):
            content = msgspec.json.encode([_published(event) for event in own])
            await coordination.publish(EVENTS + name, content, KEPT_MS)
            self._is_new = False
            self._publish_again_at = now_ms() + AGAIN_MS

    def _take(self, master: str, content: bytes) -> None:
        found, known = _decoded(content), self._known.get(master, set())
        for one in found:
            position = (one.epoch, one.index)
            self._told = max(self._told, position)
            if one.date_ms not in known:
                self._events.adopt(RecentEvent(0, 0, one.kind, one.subject, one.text, master, one.date_ms, position))
        self._known[master] = {one.date_ms for one in found}

    def _note_evictions(self, now: Instant) -> None:
        """Note the evictions since the last event about them, at most once a minute."""
        engine = self._master.engine
        if engine is None or now < self._evictions_again_at:
            return
        counts = engine.primary.counts
        if counts is not self._evictions.counts:
            self._evictions = _Told(counts)
        if text := self._evictions.news():
            self._evictions_again_at = now + EVICTIONS_MS
            self._events.add("evictions", self._master.server.name, text, now)


class _Told:
    """How much of a primary's counts the events have told."""

    def __init__(self, counts: ObjectCounts) -> None:
        self.counts = counts
        self._objects: Counter[EvictionReason] = Counter()
        self._bytes = 0

    def news(self) -> str:
        """The evictions that were not told yet; empty: there are none."""
        new = self.counts.evicted - self._objects
        size = self.counts.evicted_bytes.total() - self._bytes
        self._objects, self._bytes = self.counts.evicted.copy(), self._bytes + size
        reasons = ", ".join(f"{count:,} by {reason.value}" for reason, count in new.most_common())
        return f"{new.total():,} objects, {size:,} bytes: {reasons}" if new else ""


def _published(event: RecentEvent) -> PublishedEvent:
    return PublishedEvent(event.date_ms, event.kind, event.subject[:MOST_TEXT], event.text[:MOST_TEXT], *event.position)


def _decoded(content: bytes) -> list[PublishedEvent]:
    """Empty for what is no list of events: a master of another version may write other ones."""
    if len(content) > MOST_BYTES:
        return []
    try:
        return _decode(content)[-PUBLISHED_EVENTS:]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
