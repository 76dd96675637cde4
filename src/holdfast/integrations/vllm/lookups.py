"""Answers to vLLM's scheduler about single chunks, without ever letting it wait.

On the primary's machine the key index in shared memory answers at once. Elsewhere the life of a question is:

1. Asked: noted, and answered "later" (None).
2. Flushed at the end of the scheduler's step: all questions of the step go out as one batch, on a thread.
3. Answered: the next time the scheduler asks it gets the answer, and every later time until the request ends.

A chunk whose load failed is missing for the requests that wanted it: otherwise the scheduler would load it again for
ever. All methods but `_ask` run on the scheduler's thread, so there is no lock: answers come back by a queue.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from holdfast.instant import now_seconds

DOUBT_SECONDS = 2.0
"""How long a chunk that could not be loaded counts as missing for other requests too."""


class Lookups:
    """Which chunks are there, for one engine."""

    def __init__(
        self,
        at_once: Callable[[str], bool | None],
        present: Callable[[list[str]], list[bool]],
        threads: Executor,
    ) -> None:
        self._at_once = at_once
        self._present = present
        self._threads = threads
        self._asked: dict[str, None] = {}
        """Noted in this step, in order."""
        self._under_way: set[str] = set()
        self._answers: dict[str, bool] = {}
        self._askers: dict[str, set[str]] = {}
        """Request -> the names that it has asked for."""
        self._wanted: dict[str, int] = {}
        """Name -> how many requests have asked for it; its answer is kept as long."""
        self._doubted: dict[str, float] = {}
        self._arrived: queue.SimpleQueue[dict[str, bool]] = queue.SimpleQueue()

    def lookup(self, name: str, request: str) -> bool | None:
        """Is it there? None: ask again in the next step."""
        self._take_answers()
        if self._is_doubted(name):
            return False
        known = self._answers.get(name)
        if known is not None:
            return known
        known = self._at_once(name)
        if known is not None:
            return known
        names = self._askers.setdefault(request, set())
        if name not in names:
            names.add(name)
            self._wanted[name] = self._wanted.get(name, 0) + 1
        if name not in self._under_way:
            self._asked[name] = None
        return None

    def flush(self) -> None:
        """Send what was noted in this step. Called once at its end."""
        self._take_answers()
        names, self._asked = list(self._asked), {}
        if not names:
            return
        self._under_way.update(names)
        try:
            self._threads.submit(self._ask, names)
        except RuntimeError:
            # The threads have ended: the engine is shutting down.
            self._arrived.put(dict.fromkeys(names, False))

    def failed_to_load(self, names: Iterable[str], request: str) -> None:
        """These were there, and could not be read."""
        now = now_seconds()
        self._doubted = {name: until for name, until in self._doubted.items() if until > now}
        asked = self._askers.setdefault(request, set())
        for name in names:
            self._doubted[name] = now + DOUBT_SECONDS
            if name not in asked:
                asked.add(name)
                self._wanted[name] = self._wanted.get(name, 0) + 1
            self._answers[name] = False

    def end(self, request: str) -> None:
        """The request is over: forget what only it has asked for."""
        self._take_answers()
        for name in self._askers.pop(request, ()):
            left = self._wanted[name] - 1
            if left:
                self._wanted[name] = left
            else:
                del self._wanted[name]
                self._answers.pop(name, None)
                self._asked.pop(name, None)

    def _ask(self, names: list[str]) -> None:
        """On a thread. `present` does not raise; if a defect makes it, the names are missing all the same."""
        answers = dict.fromkeys(names, False)
        try:
            answers.update(zip(names, self._present(names), strict=True))
        finally:
            self._arrived.put(answers)

    def _take_answers(self) -> None:
        while not self._arrived.empty():
            answers = self._arrived.get_nowait()
            self._under_way.difference_update(answers)
            self._answers.update((name, there) for name, there in answers.items() if name in self._wanted)

    def _is_doubted(self, name: str) -> bool:
        until = self._doubted.get(name)
        return until is not None and now_seconds() < until
