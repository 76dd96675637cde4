"""Virtual time: what is to happen, in order. Nothing here waits, so an hour passes as fast as its events run.

Events at the same moment happen in the order in which they were asked for. An event of a process that stands still
waits for it; one of a process that is dead never happens. The trace is a running hash of what happened when to whom:
two runs of one seed have the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

import xxhash

MS = 1_000_000
SECOND = 1_000_000_000


class Owner(Protocol):
    """Whose event it is."""

    name: str
    dead: bool
    paused: bool
    held: list[Event]

    def enter(self) -> None:
        """Its turn begins: clock and chance are its own."""


class Event:
    __slots__ = ("cancelled", "owner", "run")

    def __init__(self, run: Callable[[], object], owner: Owner | None) -> None:
        self.run = run
        self.owner = owner
        self.cancelled = False


class Scheduler:
    def __init__(self) -> None:
        self.now_ns = 0
        self.steps = 0
        self.trace = xxhash.xxh3_64()
        self._heap: list[tuple[int, int, Event]] = []
        self._order = 0
        self.owners: list[tuple[int, str]] | None = None
        """(when, whose) of every event so far, where somebody wants to know."""
        self._after_steps: dict[int, Callable[[], object]] = {}
        self._entered: Owner | None = None
        """Whose clock and chance are in place."""

    def at(self, when_ns: int, run: Callable[[], object], owner: Owner | None = None) -> Event:
        event = Event(run, owner)
        self._order += 1
        heapq.heappush(self._heap, (max(self.now_ns, when_ns), self._order, event))
        return event

    def after(self, delay_ns: int, run: Callable[[], object], owner: Owner | None = None) -> Event:
        return self.at(self.now_ns + delay_ns, run, owner)

    def _push(self, when_ns: int, event: Event) -> None:
        self._order += 1
        heapq.heappush(self._heap, (max(when_ns, self.now_ns), self._order, event))

    def after_steps(self, steps: int, run: Callable[[], object]) -> None:
        """Let it happen right behind the event of that number."""
        self._after_steps[steps] = run

    def run_until(self, when_ns: int, stop: Callable[[], bool] = lambda: False) -> None:
        """Let everything up to that moment happen; earlier, once `stop` says so."""
        heap = self._heap
        while heap and heap[0][0] <= when_ns:
            self._step()
            if stop():
                return
        self.now_ns = max(self.now_ns, when_ns)

    def _step(self) -> None:
        when_ns, _, event = heapq.heappop(self._heap)
        owner = event.owner
        if event.cancelled or (owner is not None and owner.dead):
            return
        self.now_ns = when_ns
        if owner is not None:
            if owner.paused:
                owner.held.append(event)
                return
            if owner is not self._entered:
                self._entered = owner
                owner.enter()
        self.steps += 1
        self.trace.update(b"%d%a" % (when_ns, owner.name if owner is not None else ""))
        if self.owners is not None:
            self.owners.append((when_ns, owner.name if owner is not None else ""))
        event.run()
        if self._after_steps and (then := self._after_steps.pop(self.steps, None)) is not None:
            then()

    def resume(self, owner: Owner) -> None:
        """What came while it stood still happens now."""
        held, owner.held = owner.held, []
        for event in held:
            self._push(self.now_ns, event)
