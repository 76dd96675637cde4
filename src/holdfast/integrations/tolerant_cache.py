"""A client for inference engines: every failure is a miss.

An engine can compute what the cache does not give; it must neither end nor wait for long because of it. The cache's
life, as an engine sees it:

1. Working: each call is one batch of the client. A key that fails costs that key.
2. A whole call fails, because no master answers or the deadline passes: its keys are misses, the failure is logged
   once, and the cache is away from then on.
3. Away: calls answer misses at once. A thread asks the masters again, with growing pauses; writes, which nobody waits
   for, try again by themselves after the same pauses.
4. Back: logged once, and calls go through again.

So an outage costs an engine's thread one timeout, not one for each request.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import ClientClosed, HoldfastError, ObjectNotFound, Refused
from holdfast.instant import now_seconds

if TYPE_CHECKING:
    from holdfast.client.blocking import Cache

log = logging.getLogger("holdfast.integrations")

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 8.0
SAY_AGAIN_SECONDS = 60.0
PROBE_KEY = "holdfast/probe"
T = TypeVar("T")


class TolerantCache:
    """A cache whose calls do not raise for what the world may do. For any thread."""

    def __init__(self, cache: Cache, engine: str, *, replicas: int = 1, soft_pin: bool = False) -> None:
        self.cache = cache
        self._engine = engine
        self._options: dict[str, Any] = {"replicas": replicas, "soft_pin": soft_pin}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._probe: threading.Thread | None = None
        """Runs while reads are away."""
        self._write_again_at = 0.0
        self._write_pause = 0.0
        self._said: dict[str, float] = {}

    @property
    def away(self) -> bool:
        """Reads are answered with misses, until a master answers again."""
        return self._probe is not None

    def present(self, keys: Sequence[str]) -> list[bool]:
        """Which are stored. Neither leases them nor marks them as used."""
        if not keys or self.away:
            return [False] * len(keys)
        found = self._read(lambda: self.cache.exists_many(keys))
        return [False] * len(keys) if found is None else found

    def present_at_once(self, key: str) -> bool | None:
        """Is it stored, as memory of this machine tells? None: a master must be asked. Never waits."""
        if self.away:
            return False
        shown = self.cache._core.shown
        return shown.has(key) if shown is not None else None

    def load(self, keys: Sequence[str], targets: Sequence[Any], sizes: Sequence[int]) -> list[bool]:
        """Copy each object into its target; True where it was there and has exactly that size."""
        if not keys or self.away:
            return [False] * len(keys)
        read = self._read(lambda: self.cache.get_many_into(keys, targets))
        if read is None:
            return [False] * len(keys)
        self._say_errors("loading", read)
        return [count == size for count, size in zip(read, sizes, strict=True)]

    def store(self, items: Sequence[tuple[str, Any]]) -> list[bool]:
        """Store what is not there yet; True where the key is stored now, by this call or before it."""
        if not items or now_seconds() < self._write_again_at:
            return [False] * len(items)
        try:
            stored = self.cache.put_many(items, outcomes=True, **self._options)
        except Refused as error:
            self._say("storing", error)
            return [False] * len(items)
        except HoldfastError as error:
            self._say("storing", error)
            self._write_pause = min(max(FIRST_PAUSE_SECONDS, 2 * self._write_pause), LONGEST_PAUSE_SECONDS)
            self._write_again_at = now_seconds() + self._write_pause
            return [False] * len(items)
        self._write_pause = self._write_again_at = 0.0
        self._say_errors("storing", stored)
        return [isinstance(outcome, bool) for outcome in stored]

    def use(self, keys: Sequence[str]) -> None:
        """Mark as used, so that eviction takes others first."""
        if keys and not self.away:
            self._read(lambda: self.cache.use_many(keys))

    def remove_matching(self, regex: str) -> bool:
        """Remove all keys that match, read or not; False if that failed."""
        try:
            self.cache.remove_matching(regex, force=True)
        except HoldfastError as error:
            self._say("clearing", error)
            return False
        return True

    def close(self) -> None:
        """End the probe and the connection. Closing twice is harmless."""
        self._closed.set()
        probe = self._probe
        self.cache.close()
        if probe is not None:
            probe.join(self.cache.timeout)

    def _read(self, call: Callable[[], T]) -> T | None:
        """What the call gives, or None if it failed as a whole."""
        try:
            return call()
        except Refused as error:
            # Wrong in itself: to wait would not help.
            self._say("reading", error)
        except HoldfastError as error:
            self._go_away(error)
        return None

    def _go_away(self, error: HoldfastError) -> None:
        with self._lock:
            if self._probe is not None or self._closed.is_set():
                return
            self._probe = threading.Thread(target=self._await_return, name="holdfast-probe", daemon=True)
            log.warning("holdfast is away; %s gets misses until it is back: %s", self._engine, error)
            self._probe.start()

    def _await_return(self) -> None:
        began = now_seconds()
        pause = FIRST_PAUSE_SECONDS
        while not self._closed.wait(pause):
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            try:
                self.cache.exists(PROBE_KEY)
            except ClientClosed:
                break
            except HoldfastError:
                continue
            log.warning("holdfast is back after %.1f s", now_seconds() - began)
            break
        with self._lock:
            self._probe = None

    def _say_errors(self, what: str, answers: Sequence[object]) -> None:
        failed = [answer for answer in answers if isinstance(answer, HoldfastError)]
        # An object that is evicted between the question and the answer is nothing to report.
        told = [error for error in failed if not isinstance(error, ObjectNotFound)]
        if told:
            self._say(what, told[0], f"{len(told)} of {len(answers)} keys")

    def _say(self, what: str, error: HoldfastError, how_many: str = "the batch") -> None:
        """Log a failure, but one of a kind at most once a minute: an engine asks many times a second."""
        now = now_seconds()
        kind = f"{what} {error.code}"
        with self._lock:
            if now < self._said.get(kind, 0.0):
                return
            self._said[kind] = now + SAY_AGAIN_SECONDS
        log.warning("%s: %s %s failed and counts as missing: %s", self._engine, what, how_many, error)
