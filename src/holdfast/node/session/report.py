"""The node's news for the master: live and dead writers, grants to clean and cleaned, lost files. Pure.

Every report repeats a dead writer and a clean grant until a report that named them was answered. A registration lists
the live writers, and the master takes all others to be gone (I11). A writer that gets its number while a registration
is under way would be missing from it though it is alive: so the list also names the next numbers to be given out, and
no others are given out until the master has replied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.errors import TryAgain
from holdfast.ids import GrantId
from holdfast.messages.of_nodes import ReportWriters
from holdfast.node.disk.lost_files import LostFiles

AHEAD = 64
MOST_SAID_AT_ONCE = 32_768


class Report:
    """Filled by the servers' threads and by commands, sent by the reporting thread, which `wake` wakes."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.interval_seconds = 10.0
        """How often figures are reported."""
        self.lost_files = LostFiles(wake)
        self._lock = threading.Lock()
        self._next_writer = 1
        self._last_listed: int | None = None
        self._live: set[int] = set()
        self._gone: dict[int, None] = {}
        self._to_clean: dict[GrantId, None] = {}
        self._cleaned: dict[GrantId, None] = {}

    def writer_came(self) -> int:
        """A number for a new writer, never given out before."""
        with self._lock:
            if self._last_listed is not None and self._next_writer > self._last_listed:
                raise TryAgain("the node is registering with its master and takes no new writer now; ask again")
            number = self._next_writer
            self._next_writer += 1
            self._live.add(number)
            return number

    def writer_went(self, number: int) -> None:
        with self._lock:
            # A writer that is not live belonged to memory that is void.
            if number not in self._live:
                return
            self._live.remove(number)
            self._gone[number] = None
        self.wake()

    def ask_to_clean(self, grants: list[GrantId]) -> None:
        """The master wants every writer of these grants closed; the reporting thread does it, and tries again."""
        with self._lock:
            self._to_clean.update(dict.fromkeys(grants))
        self.wake()

    @property
    def must_clean(self) -> bool:
        return bool(self._to_clean)

    def grants_to_clean(self) -> list[GrantId]:
        with self._lock:
            return list(self._to_clean)

    def grants_cleaned(self, grants: list[GrantId]) -> None:
        with self._lock:
            for grant in grants:
                self._to_clean.pop(grant, None)
                self._cleaned[grant] = None
        self.wake()

    def report_every(self, interval_ms: int) -> None:
        """Set the interval of the figures, also of the one that passes now."""
        self.interval_seconds = interval_ms / 1000
        self.wake()

    def memory_voided(self) -> None:
        """Forget all news: it was about memory that is gone (I14). Numbers keep growing."""
        with self._lock:
            self._live.clear()
            self._gone.clear()
            self._to_clean.clear()
            self._cleaned.clear()

    def writers_for_registration(self) -> list[int]:
        with self._lock:
            first = self._next_writer
            self._last_listed = first + AHEAD - 1
            return [*sorted(self._live), *range(first, first + AHEAD)]

    def registered(self) -> None:
        with self._lock:
            self._last_listed = None

    @property
    def has_news(self) -> bool:
        return bool(self._gone or self._cleaned)

    @property
    def writers(self) -> int:
        return len(self._live)

    def attendance(self) -> tuple[list[int], int]:
        """The live writers, and the number that the next one will get: any number below it that is not live is gone."""
        with self._lock:
            return sorted(self._live), self._next_writer

    def news(self, session: int, boot: int) -> ReportWriters:
        """The next report, a bounded part of the news at a time."""
        with self._lock:
            gone = list(self._gone)[:MOST_SAID_AT_ONCE]
            cleaned = list(self._cleaned)[:MOST_SAID_AT_ONCE]
            return ReportWriters(session, boot, gone, cleaned)

    def acknowledged(self, news: ReportWriters) -> None:
        with self._lock:
            for number in news.gone_writers:
                self._gone.pop(number, None)
            for grant in news.cleaned:
                self._cleaned.pop(grant, None)
