"""Turns of the loop for connections that have more to do than fits into one.

The life of a connection here:
1. It has more requests than one turn allows, or one that takes several steps: it waits in the queue.
2. Each turn of the loop serves the head of the queue, one step at a time, until the time of the turn is used up. All
   other connections are read between two turns, so a flood delays them by one turn, however many take part in it.
3. A step that took longer than its share is a debt: the connection is passed over until it has paid, so that costly
   requests get no more time than cheap ones. One that waits alone owes nobody.
4. It has nothing more to do, or may not go on (its peer does not read): it leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import structlog

from holdfast.instant import now_seconds

TURN_SECONDS = 100e-6
"""Time of one turn of the loop for those who wait here. A single request takes 10 to 20 us, and the loop itself as
much: so floods cost others little, and the queue is served 80% of the time while nobody else asks."""
log = structlog.get_logger("holdfast.master")


class Waiter(Protocol):
    """A connection that waits for its turn."""

    credit: float
    """Seconds that it may use before others are served; negative: a debt."""

    def take_turn(self) -> bool:
        """Do one step. True: it wants another turn."""

    def give_up(self) -> None:
        """A step failed by a defect."""


class Turns:
    def __init__(self, call_soon: Callable[[Callable[[], None]], object], may_reply: Callable[[], bool]) -> None:
        """`may_reply` is False while too many replies wait for peers that do not read: those who wait here wait on,
        until `go_on` is called."""
        self._call_soon = call_soon
        self._may_reply = may_reply
        self._queue: deque[Waiter] = deque()
        self._is_due = False

    @property
    def is_idle(self) -> bool:
        """Nobody waits."""
        return not self._queue

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def enter(self, waiter: Waiter) -> None:
        """Queue a connection that is not in the queue."""
        waiter.credit = TURN_SECONDS
        self._queue.append(waiter)
        self.go_on()

    def go_on(self) -> None:
        if self._queue and not self._is_due:
            self._is_due = True
            self._call_soon(self._serve)

    def _serve(self) -> None:
        self._is_due = False
        began = now = now_seconds()
        for _ in range(len(self._queue)):
            if now - began >= TURN_SECONDS or not self._may_reply():
                break
            waiter = self._next()
            wants_more = self._step(waiter)
            ended = now_seconds()
            waiter.credit -= ended - now
            now = ended
            if wants_more:
                self._queue.append(waiter)
        if self._may_reply():
            self.go_on()

    def _next(self) -> Waiter:
        """The first that owes nothing. Passing over one pays some of its debt, so this ends."""
        queue = self._queue
        while len(queue) > 1 and queue[0].credit <= 0:
            queue[0].credit += TURN_SECONDS
            queue.rotate(-1)
        waiter = queue.popleft()
        waiter.credit = max(waiter.credit, TURN_SECONDS)
        return waiter

    def _step(self, waiter: Waiter) -> bool:
        try:
            return waiter.take_turn()
        except Exception:
            # A defect must cost its own connection only, not all that wait.
            log.exception("a step of a connection failed unexpectedly; the connection is closed")
            waiter.give_up()
            return False
