"""Bugs of sessions, planted on purpose: clocks that are trusted too far, and numbers that begin again."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import msgspec

from holdfast.core import promotion
from holdfast.core.primary import session_book
from holdfast.core.primary.primary import Primary
from holdfast.core.primary.session_book import Book
from holdfast.instant import Instant, now_ms
from holdfast.session import follower
from holdfast.session.follower import Follower
from holdfast.session.lease import Lease
from tests.simulation.planted import Patch, Planted


def count_the_lease_from_receipt() -> Patch:
    """Unsafe by the flight of the answer."""

    def lease(sent_at: Instant, held_ms: int, lease_ms: int, jeopardy_ms: int) -> Lease:
        return Lease(now_ms(), 0, lease_ms, jeopardy_ms)

    return patch.object(follower, "Lease", lease)


def forget_the_time_of_jeopardy() -> Patch:
    """The master calls a session expired when its lease is over."""
    real = session_book.lengthened
    return patch.object(session_book, "lengthened", lambda span_ms: real(span_ms) // 3)


def restore_sessions_as_last_heard_long_ago() -> Patch:
    """A new primary counts from some time before its promotion."""
    real = promotion._expect_back

    def expect_back(primary: Primary, base: Instant) -> None:
        real(primary, base - primary.sessions.times.lease_ms - primary.sessions.times.jeopardy_ms)

    return patch.object(promotion, "_expect_back", expect_back)


def begin_numbers_again_under_every_master() -> Patch:
    """Commands are numbered from one by each master, and a confirmation counts whoever's it was."""
    real_keep, real_init = Book.keep_alive, Book.__init__

    def keep_alive(self: Book, request: Any, connection: int, now: Instant) -> Any:
        return real_keep(self, msgspec.structs.replace(request, epoch=self.epoch), connection, now)

    def begin(self: Book, times: Any, epoch: int = 0, session_epoch: int = 0, history: int = 0) -> None:
        real_init(self, times, epoch, 0, history)

    return patch.multiple(Book, keep_alive=keep_alive, __init__=begin)


def handle_commands_again_after_a_lost_answer() -> Patch:
    """Whatever is said is done, were it said before."""
    real = Follower._round

    def forgetful(self: Follower) -> Any:
        self._handled = 0
        return real(self)

    return patch.object(Follower, "_round", forgetful)


PLANTED_IN_SESSIONS = (
    Planted("count the session lease from receipt", count_the_lease_from_receipt, ("I4",), 500),
    Planted("forget the time of jeopardy", forget_the_time_of_jeopardy, ("I4",), 100),
    Planted("restore sessions as last heard long ago", restore_sessions_as_last_heard_long_ago, ("I4", "I2"), 100),
    Planted("handle commands again", handle_commands_again_after_a_lost_answer, ("I6",), 300),
)

BEGIN_NUMBERS_AGAIN = Planted(
    "begin numbers again under every master", begin_numbers_again_under_every_master, ("I6",), 0
)
"""Found by the directed script `commands_of_two_masters`. A seed meets it only where a new primary has as many commands
for a node as that node had handled before, all of them within the moment before its first keepalive."""
