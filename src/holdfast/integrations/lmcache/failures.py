"""Failures that the engine must not see: each is counted, and logged, but not once per batch of a long outage."""

from __future__ import annotations

import logging
import threading
from collections import Counter

from holdfast.errors import HoldfastError
from holdfast.instant import now_seconds

log = logging.getLogger("holdfast.lmcache")

LOG_AGAIN_S = 10.0


class Failures:
    """Counts by kind of error. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}
        """When each kind was last logged, and how many there have been since."""

    def note(self, doing: str, error: BaseException, count: int = 1) -> None:
        """`doing` is what could not be done, such as 'a lookup'."""
        expected = isinstance(error, HoldfastError)
        kind = error.code if isinstance(error, HoldfastError) else type(error).__name__
        now = now_seconds()
        with self._lock:
            self._counts[kind] += count
            logged_at, since = self._logged.get((doing, kind), (-LOG_AGAIN_S, 0))
            if now - logged_at < LOG_AGAIN_S:
                self._logged[doing, kind] = (logged_at, since + count)
                return
            self._logged[doing, kind] = (now, 0)
        more = f" ({since:,} more since the last such line)" if since else ""
        # A defect is shown with its traceback, once per ten seconds.
        log.warning("%s failed: %s%s", doing, str(error) or kind, more, exc_info=None if expected else error)

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)
