"""A client for inference engines: every failure is a miss.

An engine can compute what the cache does not give; it must neither end nor wait for long because of it. The cache's
life, as an engine sees it:

1. Working: each call is one batch of the client. A key that fails costs that key.
2. A whole call fails, because no master answers or the deadline passes: its keys are misses, and the cache is away from
   then on (`link`).
3. Away: calls answer misses at once, until a master answers again. What is leased is still read.

So an outage costs an engine's thread one timeout, not one for each request.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import HoldfastError, ObjectNotFound
from holdfast.instant import now_seconds
from holdfast.integrations.link import NO_MASTER, Link, answered

if TYPE_CHECKING:
    from holdfast.client.cache import Cache

log = logging.getLogger("holdfast.integrations")

SAY_AGAIN_SECONDS = 60.0
T = TypeVar("T")


class TolerantCache:
    """A cache whose calls do not raise for failures of the cluster. For any thread."""

    def __init__(self, cache: Cache, engine: str, *, replicas: int = 1, soft_pin: bool = False) -> None:
        self._at_once = cache.exists_at_once
        self._engine = engine
        self._options: dict[str, Any] = {"replicas": replicas, "soft_pin": soft_pin}
        self._lock = threading.Lock()
        self._said: dict[str, float] = {}
        self._link = Link(lambda: cache, engine, log)
        self._link.open()

    @property
    def away(self) -> bool:
        """Calls are answered with misses, until a master answers again."""
        return not self._link.is_up

    def present(self, keys: Sequence[str]) -> list[bool]:
        """Which are stored. Neither leases them nor marks them as used."""
        found = self._ask("reading", keys, lambda cache: cache.exists_many(keys))
        return [False] * len(keys) if found is None else found

    def present_at_once(self, key: str) -> bool | None:
        """Is it stored, as memory of this machine tells? None: a master must be asked. Never waits."""
        return False if self.away else self._at_once(key)

    def load(self, keys: Sequence[str], targets: Sequence[Any], sizes: Sequence[int]) -> list[bool]:
        """Copy each object into its target; True where it was there and has exactly that size."""
        read = self._unless_failed("reading", lambda: self._link.load(keys, targets)) if keys else None
        if read is None:
            return [False] * len(keys)
        self._say_errors("loading", read)
        return [count == size for count, size in zip(read, sizes, strict=True)]

    def store(self, items: Sequence[tuple[str, Any]]) -> list[bool]:
        """Store what is not there yet; True where the key is stored now, by this call or before it."""
        stored = self._ask(
            "storing", items, lambda cache: answered(cache.put_many(items, outcomes=True, **self._options))
        )
        if stored is None:
            return [False] * len(items)
        self._say_errors("storing", stored)
        return [isinstance(outcome, bool) for outcome in stored]

    def use(self, keys: Sequence[str]) -> None:
        """Mark as used, so that eviction takes others first."""
        self._ask("marking", keys, lambda cache: cache.use_many(keys))

    def remove_matching(self, regex: str) -> bool:
        """Remove all keys that match, read or not; False if that failed."""
        try:
            self._link.run(lambda cache: cache.remove_matching(regex, force=True), even_if_down=True)
        except HoldfastError as error:
            self._say("clearing", error)
            return False
        return True

    def close(self) -> None:
        """Closing twice is harmless."""
        self._link.close()

    def _ask(self, what: str, keys: Sequence[object], call: Callable[[Cache], T]) -> T | None:
        """The result of the call, or None if it failed as a whole, was not made because the cache is away, or there is
        nothing to ask for."""
        return None if not keys or self.away else self._unless_failed(what, lambda: self._link.run(call))

    def _unless_failed(self, what: str, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except NO_MASTER:
            # The link has logged it.
            return None
        except HoldfastError as error:
            self._say(what, error)
            return None

    def _say_errors(self, what: str, answers: Sequence[object]) -> None:
        failed = [answer for answer in answers if isinstance(answer, HoldfastError)]
        # An object that was evicted between request and reply need not be reported.
        told = [error for error in failed if not isinstance(error, ObjectNotFound)]
        if told and not self.away:
            self._say(what, told[0], f"{len(told)} of {len(answers)} keys")

    def _say(self, what: str, error: HoldfastError, how_many: str = "the batch") -> None:
        """Log a failure, but each kind at most once per minute: an engine asks many times per second."""
        now = now_seconds()
        kind = f"{what} {error.code}"
        with self._lock:
            if now < self._said.get(kind, 0.0):
                return
            self._said[kind] = now + SAY_AGAIN_SECONDS
        log.warning("%s: %s %s failed and counts as missing: %s", self._engine, what, how_many, error)
