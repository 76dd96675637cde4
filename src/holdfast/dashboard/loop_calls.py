"""Calls from the HTTP thread into the master's loop: one at a time, each with a deadline, and few that wait.

HTTP has a thread and a loop of its own (ADR 47), but the state that it shows belongs to the master's loop. A call
crosses over in four steps:

1. It waits for its turn. If too many wait already, it is refused at once.
2. The master's loop runs it between two other callbacks. A call is quick: it takes one page, never a whole catalogue.
3. The answer comes back to the HTTP thread. Whoever asked and has given up meanwhile costs nothing more.
4. The next turn begins after a pause of three times what the call took, so that HTTP has at most a quarter of the
   master's loop, whoever asks and however often.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from holdfast.errors import Busy
from holdfast.instant import now_seconds

T = TypeVar("T")
MOST_WAITING = 48
"""More than `access.SHARES` lets those have under way who are no operators."""
ANSWER_SECONDS = 5.0
PAUSE_SHARE = 3.0
FRESH_SECONDS = 0.2
"""For how long an answer about readiness is given again without asking the master."""


class Calls(Protocol):
    """How a route reaches the master."""

    async def ask(self, call: Callable[[], T]) -> T:
        """What the call returns in the master's loop. `Busy`: it did not run, or nobody knows whether it did."""
        ...

    async def begin(self, start: Callable[[Callable[[T], None]], None]) -> T:
        """The same for what is answered later: `start` is given a function that takes the answer."""
        ...

    async def recent(self, call: Callable[[], T]) -> T:
        """The same, or what this call has returned to another caller a moment ago."""
        ...


class LoopCalls:
    """Calls into this loop, from one other that runs in another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._loop = loop
        self._answer_seconds = answer_seconds
        self._here: asyncio.AbstractEventLoop | None = None
        """The loop that calls."""
        self._turn = asyncio.Semaphore(1)
        """Released when a call has run, not when its caller has given up: at most one is ever under way."""
        self._waiting = 0
        self._recent: dict[Callable[[], Any], tuple[float, asyncio.Future[Any]]] = {}
        """Call -> when it was last made, and its answer."""

    def _begin_here(self) -> None:
        """After a restart of the HTTP server another loop calls: what the former one waits for is nobody's."""
        here = asyncio.get_running_loop()
        if here is not self._here:
            self._here, self._turn, self._waiting, self._recent = here, asyncio.Semaphore(1), 0, {}

    async def ask(self, call: Callable[[], T]) -> T:
        return await self.begin(lambda answer: answer(call()))

    async def begin(self, start: Callable[[Callable[[T], None]], None]) -> T:
        self._begin_here()
        if self._waiting >= MOST_WAITING:
            raise Busy(f"{MOST_WAITING} requests wait for the master already; nothing was changed. Try again")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._answer_seconds):
                await self._turn.acquire()
                return await self._cross(start, self._turn.release)
        except TimeoutError:
            raise Busy(f"the master did not answer within {self._answer_seconds:g} s; try again") from None
        finally:
            self._waiting -= 1

    async def recent(self, call: Callable[[], T]) -> T:
        """Anybody may ask for readiness, out of turn: a thousand strangers cost the master one call in 200 ms."""
        self._begin_here()
        at, answered = self._recent.get(call, (0.0, None))
        if answered is None or (answered.done() and now_seconds() - at > FRESH_SECONDS):
            answered = self._cross(lambda answer: answer(call()), lambda: None)
            self._recent[call] = now_seconds(), answered
        try:
            async with asyncio.timeout(self._answer_seconds):
                given: T = await asyncio.shield(answered)
        except TimeoutError:
            raise Busy(f"the master did not answer within {self._answer_seconds:g} s; try again") from None
        return given

    def _cross(self, start: Callable[[Callable[[T], None]], None], has_run: Callable[[], None]) -> asyncio.Future[T]:
        here = asyncio.get_running_loop()
        answered: asyncio.Future[T] = here.create_future()

        def tell(callback: Callable[..., object], *given: object) -> None:
            with contextlib.suppress(RuntimeError):  # The HTTP thread has ended meanwhile, and nobody asks any more.
                here.call_soon_threadsafe(callback, *given)

        def take(value: T) -> None:
            if not answered.done():
                answered.set_result(value)

        def fail(error: Exception) -> None:
            if not answered.done():
                answered.set_exception(error)

        def run() -> None:
            began = now_seconds()
            try:
                if not answered.done():
                    start(lambda value: tell(take, value))
            except Exception as error:  # noqa: BLE001 - It is raised where the call was made.
                tell(fail, error)
            finally:
                tell(here.call_later, PAUSE_SHARE * (now_seconds() - began), has_run)

        self._loop.call_soon_threadsafe(run)
        return answered
