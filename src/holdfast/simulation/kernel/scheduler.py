"""Virtual time: the future events, in order. Nothing here waits, so an hour passes as fast as its events run.

Events at the same moment happen in the order in which they were scheduled. An event of a stopped process waits for it;
one of a dead process never happens. The trace is a running hash of each event's time and owner: two runs of one seed
have the same.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol, TypeAlias

import xxhash

MS = 1_000_000
SECOND = 1_000_000_000


class Owner(Protocol):
    """The owner of an event."""

    name: str
    dead: bool
    paused: bool
    postponed: list[Event]

    def enter(self) -> None:
        """Begin its turn, with its own clock and random numbers."""


class Cancellable(Protocol):
    """Anything that can be cancelled, such as the handle of an asyncio callback."""

    _cancelled: bool


Event: TypeAlias = tuple[int, int, Callable[[], object], Owner | None, Cancellable | None]
"""(time, sequence number, callback, owner, handle that says whether it was cancelled)"""


class Scheduler:
    def __init__(self) -> None:
        self.now_ns = 0
        self.steps = 0
        self.trace = xxhash.xxh3_64()
        self._heap: list[Event] = []
        self._order = 0
        self.owners: list[tuple[int, str]] | None = None
        """(time, owner) of every event so far, if wanted."""
        self._after_steps: dict[int, Callable[[], object]] = {}
        self._entered: Owner | None = None
        """The owner whose clock and random numbers are in place."""

    def at(self, when_ns: int, run: Callable[[], object], owner: Owner | None = None) -> None:
        self.after(max(0, when_ns - self.now_ns), run, owner)

    def after(
        self,
        delay_ns: int,
        run: Callable[[], object],
        owner: Owner | None = None,
        handle: Cancellable | None = None,
    ) -> None:
        self._order += 1
        heappush(self._heap, (self.now_ns + delay_ns, self._order, run, owner, handle))

    def after_steps(self, steps: int, run: Callable[[], object]) -> None:
        """Run this right after the event with that number."""
        self._after_steps[steps] = run

    def run_until(self, when_ns: int, stop: Callable[[], bool] = lambda: False) -> None:
        """Run all events up to that moment; end earlier once `stop` is true."""
        heap = self._heap
        while heap and heap[0][0] <= when_ns:
            self._step(heappop(heap))
            if stop():
                return
        self.now_ns = max(self.now_ns, when_ns)

    def _step(self, event: Event) -> None:
        when_ns, _, run, owner, handle = event
        if (handle is not None and handle._cancelled) or (owner is not None and owner.dead):
            return
        self.now_ns = when_ns
        name = ""
        if owner is not None:
            if owner.paused:
                owner.postponed.append(event)
                return
            if owner is not self._entered:
                self._entered = owner
                owner.enter()
            name = owner.name
        self.steps += 1
        self.trace.update(f"{when_ns}{name}".encode())
        if self.owners is not None:
            self.owners.append((when_ns, name))
        run()
        if self._after_steps and (then := self._after_steps.pop(self.steps, None)) is not None:
            then()

    def resume(self, owner: Owner) -> None:
        """Run the events that came while it was stopped."""
        postponed, owner.postponed = owner.postponed, []
        for _, _, run, _, handle in postponed:
            self.after(0, run, owner, handle)
