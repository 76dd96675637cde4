"""What the node has to tell the master: who writes, who writes no more, which grants are clean. Pure.

A dead writer and a clean grant are said in every beat until a beat that said them was answered. A registration lists
the live writers, and the master takes whoever is not listed to be gone (I11). A writer that gets its number while a
registration is under way would be missing from it though it lives: so the list also names the next numbers to be
given out, and no others are given out until the master has answered.
"""

from __future__ import annotations

import threading

from holdfast.errors import TryAgain
from holdfast.ids import GrantId
from holdfast.messages.of_nodes import Beat

AHEAD = 64
MOST_SAID_AT_ONCE = 32_768


class Report:
    """Filled by the servers' threads, said by the membership's."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next_writer = 1
        self._last_listed: int | None = None
        self._live: set[int] = set()
        self._gone: dict[int, None] = {}
        self._cleaned: dict[GrantId, None] = {}
        self._stopping = False

    def writer_came(self) -> int:
        """A number for a new writer, never given out before."""
        with self._changed:
            if self._last_listed is not None and self._next_writer > self._last_listed:
                raise TryAgain("the node is registering with its master and takes no new writer now; ask again")
            number = self._next_writer
            self._next_writer += 1
            self._live.add(number)
            return number

    def writer_went(self, number: int) -> None:
        with self._changed:
            # One that is not live belonged to memory that is void.
            if number in self._live:
                self._live.remove(number)
                self._gone[number] = None
                self._changed.notify_all()

    def grants_cleaned(self, grants: list[GrantId]) -> None:
        with self._changed:
            self._cleaned.update(dict.fromkeys(grants))
            self._changed.notify_all()

    def memory_voided(self) -> None:
        """All that was said or to be said was about memory that is no more (I14). Numbers go on growing."""
        with self._changed:
            self._live.clear()
            self._gone.clear()
            self._cleaned.clear()

    def writers_for_registration(self) -> list[int]:
        with self._changed:
            first = self._next_writer
            self._last_listed = first + AHEAD - 1
            return [*sorted(self._live), *range(first, first + AHEAD)]

    def registered(self) -> None:
        with self._changed:
            self._last_listed = None

    def beat(self, name: str, boot: int) -> Beat:
        """What to say now, a bounded part of it at a time."""
        with self._changed:
            gone = list(self._gone)[:MOST_SAID_AT_ONCE]
            cleaned = list(self._cleaned)[:MOST_SAID_AT_ONCE]
            return Beat(name, boot, gone, cleaned)

    def acknowledged(self, beat: Beat) -> None:
        with self._changed:
            for number in beat.gone_writers:
                self._gone.pop(number, None)
            for grant in beat.cleaned:
                self._cleaned.pop(grant, None)

    def stop(self) -> None:
        """Wake whoever waits, from now on at once."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Until there is something to say, at most this long."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._gone or self._cleaned, seconds)
