"""Logging of outages: when one begins, again every 30 s while it lasts, and once when it is over (I17)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import HoldfastError
from holdfast.instant import now_seconds

SAID_EVERY_SECONDS = 30.0


class Outage:
    """An outage of one thing that is retried again and again, such as the coordination store."""

    def __init__(self, log: logging.Logger, what: str, level: int = logging.WARNING) -> None:
        self._log = log
        self._what = what
        self._level = level
        self._began_at: float | None = None
        self._due = 0.0
        self.failures = 0
        """Consecutive failures."""
        self.why = ""

    def seen(self, error: object) -> None:
        """Note a failure."""
        now = now_seconds()
        self.failures += 1
        self.why = str(error)
        if self._began_at is None:
            self._began_at = self._due = now
        if now >= self._due:
            lasted = now - self._began_at
            for_how_long = f" (for {lasted:.0f} s now)" if lasted >= 1 else ""
            self._log.log(self._level, "%s%s: %s", self._what, for_how_long, error)
            self._due = now + SAID_EVERY_SECONDS

    def over(self) -> None:
        """Note a success, which ends the outage."""
        if self._began_at is None:
            return
        self._log.log(self._level, "%s: it works again, after %.1f s", self._what, now_seconds() - self._began_at)
        self._began_at = None
        self.failures = 0
        self.why = ""

    @contextmanager
    def one_try(self, failed: Counter[str], kind: str) -> Iterator[None]:
        """One try of something that is tried again later: its HoldfastError is noted here, counted by its kind, and
        goes no further; a try without one is a success."""
        try:
            yield
        except HoldfastError as error:
            failed[kind] += 1
            self.seen(error)
        else:
            self.over()
