"""A client of the cluster for an engine that must not wait: opened when possible, passed over while nobody answers.

1. Opened. Masters that do not answer are no error: the engine starts, and every call is a miss. A wrong token or
   address is an error, because waiting will not mend it.
2. Up: calls run. One that fails because no master answered makes the link *down*, which is logged once.
3. Down: calls are refused at once, so that an outage is paid for once and not by every request. Only what is leased
   is still read (`load`), because that asks no master. A thread asks until a master answers, with pauses that grow.
4. Up again: logged once, and the thread ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import (
    ClientClosed,
    DeadlineExceeded,
    HoldfastError,
    NotLeader,
    Refused,
    ReplyLost,
    Stopping,
    Unreachable,
)
from holdfast.instant import now_seconds
from holdfast.supervisor import Supervisor

if TYPE_CHECKING:
    from holdfast.client.cache import Cache

T = TypeVar("T")
NO_MASTER = (Unreachable, DeadlineExceeded, NotLeader, ReplyLost, Stopping)
"""Errors of a whole call: they say nothing about its keys, and the next call would fail in the same way."""
FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 8.0


def answered(outcomes: list[T]) -> list[T]:
    """These outcomes of a batch. If all of them say that no master answered, that is an error of the whole call."""
    if outcomes and all(isinstance(one, NO_MASTER) for one in outcomes):
        raise outcomes[0]  # type: ignore[misc]
    return outcomes


@dataclass(eq=False)
class Link:
    """For any thread."""

    _connect: Callable[[], Cache]
    """Returns the client when a master answers."""
    _engine: str
    """The engine's name in the log."""
    _log: logging.Logger
    _longest_pause: float = LONGEST_PAUSE_SECONDS
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: threading.Event = field(default_factory=threading.Event)
    _supervisor: Supervisor = field(default_factory=Supervisor)
    _cache: Cache | None = None
    _why: str = "it was not opened yet"
    is_up: bool = False

    def open(self) -> None:
        """Open the link. Raises errors that waiting will not fix."""
        try:
            self._take(self._connect())
        except Refused:
            raise
        except HoldfastError as error:
            self._went_down(error)

    @property
    def why_down(self) -> str:
        return "" if self.is_up else self._why

    def run(self, verb: Callable[[Cache], T], even_if_down: bool = False) -> T:
        """Run this on the client. Unreachable at once while the link is down, unless the verb may need no master."""
        cache = self._cache
        if cache is None or self._closed.is_set() or not (self.is_up or even_if_down):
            raise self._refusal()
        try:
            return verb(cache)
        except NO_MASTER as error:
            with self._lock:
                was_up, self.is_up, self._why = self.is_up, False, str(error)
            if was_up:
                self._went_down(error)
            raise

    def load(self, keys: Sequence[str], targets: Sequence[Any]) -> list[int | HoldfastError]:
        """Read each object into its target: its bytes, 0 if it is not stored, or its error."""
        near = self.within_reach(keys)
        if all(near):
            return self.run(lambda cache: cache.get_many_into(keys, targets), even_if_down=True)
        found: list[int | HoldfastError] = [self._refusal()] * len(keys)
        places = [place for place, is_near in enumerate(near) if is_near]
        if places:
            some, theirs = [keys[place] for place in places], [targets[place] for place in places]
            read = self.run(lambda cache: cache.get_many_into(some, theirs), even_if_down=True)
            for place, outcome in zip(places, read, strict=True):
                found[place] = outcome
        return found

    def within_reach(self, keys: Sequence[str]) -> list[bool]:
        """Which of these may be read now: all of them; while the link is down, those that are leased."""
        cache = self._cache
        if cache is None or self.is_up:
            return [self.is_up] * len(keys)
        return cache.leased_at_once(keys)

    def close(self) -> None:
        """Closing twice is harmless."""
        with self._lock:
            self._closed.set()
            self.is_up, self._why = False, "it was closed"
            cache, self._cache = self._cache, None
        if cache is not None:
            cache.close()

    def _refusal(self) -> HoldfastError:
        if self._closed.is_set():
            return ClientClosed("the connection to holdfast was closed; nothing was done")
        return Unreachable(f"no master has answered since: {self._why}. Nothing was sent")

    def _take(self, cache: Cache) -> None:
        with self._lock:
            closed = self._closed.is_set()
            if not closed:
                self._cache, self.is_up = cache, True
        if closed:
            cache.close()

    def _went_down(self, error: HoldfastError) -> None:
        """Only one thread asks at a time: the next one is started when the last has found a master."""
        if self._closed.is_set():
            return
        self._why = str(error)
        self._log.warning("holdfast is away; %s gets misses until it is back: %s", self._engine, error)
        threading.Thread(
            target=self._supervisor.keep_thread,
            args=("link to holdfast", self._await_return, self._closed.wait),
            name="holdfast-link",
            daemon=True,
        ).start()

    def _await_return(self) -> None:
        began = now_seconds()
        pause = min(FIRST_PAUSE_SECONDS, self._longest_pause)
        while not self._closed.wait(pause):
            pause = min(2 * pause, self._longest_pause)
            cache = self._cache
            try:
                if cache is None:
                    cache = self._connect()
                else:
                    cache.nodes()
            except HoldfastError as error:
                self._why = str(error)
                continue
            self._log.warning("holdfast is back after %.1f s", now_seconds() - began)
            self._take(cache)
            return
