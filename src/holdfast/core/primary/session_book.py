"""The master's sessions: their followers, expiry times, queued commands and waiting keepalives.

Pure: `now` is an argument, and replies are left in `outgoing`, as (callback, argument), for the shell to deliver. Two
heaps, of keepalives to answer and of sessions that may end, are examined once per tick: ten thousand sessions need no
timer each. A reply renews the lease from the moment of its decision; a session is over only when the lease and the
jeopardy window have passed since then, lengthened by the allowed drift (I4). A command to a follower:

1. Queued in its session (`notify`), under a number of a count that only grows under one epoch, and with the log index
   that it depends on.
2. Sent once the log is durable up to there (`say`): the waiting keepalive is answered with it at once.
3. Repeated in every reply, until the follower confirms that it has handled it. A number is valid only under the epoch
   that it was given in (I6).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.rules import DEFAULTS
from holdfast.errors import (
    BadRequest,
    BadValue,
    CommandRefused,
    CommandsWaiting,
    HoldfastError,
    NameTaken,
    NotLeader,
    SessionExpired,
    TryAgain,
)
from holdfast.instant import Instant, drift_of, lengthened
from holdfast.messages.of_sessions import EpochDiffers, KeepAlive, KeptAlive, Opened, SessionCommand
from holdfast.messages.shapes import Message
from holdfast.wire.codec import failed

MAX_SESSIONS = 20_000
MAX_NAME = 128
MAX_COMMANDS = 1_024
"""The most commands that may wait for one session."""
MAX_COMMAND_NAME = 64
MAX_COMMAND_BYTES = 256 << 10
MAX_ANSWER_BYTES = 1 << 20
CLOSE_AGAIN_MS = 1_000
"""Delay until a session that is over and could not be closed is reported again."""
RESTORED = -1
"""Connection number of a session of an earlier master: it counts as just renewed, and is expected back."""

Deliver = Callable[[Any], None]
"""Called with a reply; for a confirmation, with the error or None."""


@dataclass(frozen=True, slots=True)
class SessionTimes:
    lease_ms: int = DEFAULTS.session_lease_ms
    reply_left_ms: int = DEFAULTS.session_reply_left_ms
    """A keepalive is answered when this much of the lease is left."""
    jeopardy_ms: int = DEFAULTS.session_jeopardy_ms

    def __post_init__(self) -> None:
        if not 0 < self.reply_left_ms < self.lease_ms or self.jeopardy_ms < 0:
            raise BadValue(
                f"a keepalive must be answered within its lease: {self.reply_left_ms} ms left of {self.lease_ms} ms, "
                f"then {self.jeopardy_ms} ms of jeopardy, cannot be; nothing was started"
            )


@dataclass(frozen=True, slots=True)
class WaitingKeepalive:
    """A keepalive that waits for its reply."""

    order: int
    arrived: Instant
    deliver: Deliver


@dataclass(frozen=True, slots=True)
class Queued:
    command: SessionCommand
    after: int
    """The log index that must be durable before it is sent. It does not decrease from one command to the next."""
    confirm: Deliver | None


@dataclass(slots=True, eq=False)
class Session:
    id: int
    name: str
    connection: int
    lease_until: Instant
    expires_at: Instant
    session_epoch: int
    fresh: bool = False
    """Not yet renewed by this master: its first keepalive is answered at once."""
    serial: int = 0
    expiry: int = 0
    """The number of its one entry in the heap of expiries; entries with another number are stale."""
    keepalive: WaitingKeepalive | None = None
    commands: deque[Queued] = field(default_factory=deque)
    last_command: str = ""
    owner: str = ""
    """The identity that opened it; empty where identities do not matter."""

    def is_live(self, now: Instant) -> bool:
        """Is it connected, or expected back, with a lease that is not over?"""
        return self.connection != 0 and now < self.lease_until


class Book:
    def __init__(self, times: SessionTimes, epoch: int = 0, session_epoch: int = 0, history: int = 0) -> None:
        self.times = times
        self.epoch = epoch
        self.history = history
        self.continues: list[int] = []
        """The older histories that this one was restored from."""
        self.session_epoch = session_epoch
        """The highest command number given out."""
        self.log_index = 0
        """Index of the last durable record, as told to followers. Commands that depend on later ones wait."""
        self.add_to_answer: Callable[[Session, Instant], bytes] = lambda session, now: b""
        """Returns bytes to add to a keepalive's reply, beside the commands."""
        self.outgoing: list[tuple[Deliver, Any]] = []
        self.speakers: dict[int, str] = {}
        """Connection -> its identity, where identities matter."""
        self._sessions: dict[int, Session] = {}
        self._by_name: dict[str, Session] = {}
        self._by_connection: dict[int, dict[int, None]] = {}
        self._replies: list[tuple[Instant, int, int]] = []
        self._expiries: list[tuple[Instant, int, int]] = []
        """(when to look, number of the entry, session id). Each session has one valid entry."""
        self._to_say: deque[tuple[int, int]] = deque()
        """(log index that must be durable, session) of each command that may have to wait for it, in their order."""
        self._order = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, session: int) -> Session | None:
        return self._sessions.get(session)

    def is_gone(self, session: int) -> bool:
        """Is it over, or has its connection ended? False while it is expected back from an earlier master."""
        found = self._sessions.get(session)
        return found is None or found.connection == 0

    def named(self, name: str) -> Session | None:
        return self._by_name.get(name)

    def is_followed_over(self, connection: int) -> bool:
        """Does this connection carry a session's keepalives?"""
        return connection in self._by_connection

    def require(self, session: int) -> Session:
        found = self._sessions.get(session)
        if found is None:
            raise SessionExpired(
                "this master knows no such session, or it is over; nothing was changed. Open a new one"
            )
        return found

    def begin(self, session: int, name: str, connection: int, now: Instant) -> tuple[Session, bool, Session | None]:
        """Open a session; return it, whether it is new, and the older session of its name that it replaced."""
        known = self._sessions.get(session)
        if known is not None:
            if known.name != name:
                raise BadRequest("this session is another follower's; nothing was opened. Draw a number of your own")
            return known, False, None
        if not 0 < len(name) <= MAX_NAME or session <= 0:
            raise BadRequest(
                f"a session has a positive number and a name of 1 to {MAX_NAME} characters; none was opened"
            )
        older = self._by_name.get(name)
        if older is not None:
            if older.connection > 0 and older.connection != connection:
                raise NameTaken(
                    f"a live node is already called {name!r}; nothing was mounted. Give this node another --name, or "
                    "stop the other one"
                )
            self.close(older, "the same name was opened again")
        elif len(self) >= MAX_SESSIONS:
            raise TryAgain(f"{MAX_SESSIONS:,} sessions are open, the most there may be; none was opened. Try later")
        return self.admit(session, name, connection, now), True, older

    def admit(self, session: int, name: str, connection: int, now: Instant) -> Session:
        """Add a new session. It takes a number of the command count, so that the log records where the count stands."""
        self.session_epoch += 1
        return self._add(session, name, connection, now, self.times.lease_ms, self.times.jeopardy_ms)

    def restore(self, session: int, name: str, lease_ms: int, jeopardy_ms: int, base: Instant) -> Session:
        """Add a session of an earlier master, as if renewed at `base`: its last promise to the follower is no later."""
        found = self._add(session, name, RESTORED, base, lease_ms, jeopardy_ms)
        found.fresh = True
        return found

    def _add(self, session: int, name: str, connection: int, now: Instant, lease_ms: int, jeopardy_ms: int) -> Session:
        expires_at = now + lengthened(lease_ms + jeopardy_ms)
        made = Session(session, name, 0, now + lease_ms, expires_at, self.session_epoch)
        self._sessions[session] = self._by_name[name] = made
        self._look_at(made, expires_at)
        self._connect(made, connection)
        return made

    def _connect(self, session: Session, connection: int) -> None:
        if session.connection != connection:
            self._disconnect(session)
            session.connection = connection
            self._by_connection.setdefault(connection, {})[session.id] = None

    def _disconnect(self, session: Session) -> None:
        there = self._by_connection.get(session.connection)
        if there is not None:
            there.pop(session.id, None)
            if not there:
                del self._by_connection[session.connection]
        session.connection = 0

    def opened(self, session: Session, connection: int, now: Instant) -> tuple[Opened, bool]:
        """The reply to opening it, for the first time or again. True: it was not live, and is again."""
        self._connect(session, connection)
        was_live = session.is_live(now)
        self._renew(session, now, 0)
        times = self.times
        reply = Opened(
            session.id,
            self.history,
            self.epoch,
            session.session_epoch,
            times.lease_ms,
            times.jeopardy_ms,
            self.continues,
        )
        return reply, not was_live

    def _renew(self, session: Session, now: Instant, held_ms: int) -> None:
        times = self.times
        session.fresh = False
        session.lease_until = now + times.lease_ms
        # Never sooner than a master with longer times promised before.
        ends = now + lengthened(times.lease_ms + times.jeopardy_ms) + drift_of(held_ms)
        session.expires_at = max(session.expires_at, ends)

    def keep_alive(self, request: KeepAlive, connection: int, now: Instant) -> tuple[Message | None, bool]:
        """The reply; None if the keepalive is to be held. True: the session was not live, and is again."""
        session = self.require(request.session)
        if request.epoch > self.epoch:
            raise NotLeader(f"this master is of epoch {self.epoch}, and {request.epoch} has begun; nothing was changed")
        if request.serial <= session.serial:
            raise BadRequest(f"a keepalive from the past: {session.serial} came before {request.serial}; it is ignored")
        if request.epoch == self.epoch and request.handled > session.session_epoch:
            raise BadRequest(f"command {request.handled} was never given to this session; the keepalive is ignored")
        was_live = session.is_live(now)
        session.serial = request.serial
        self._connect(session, connection)
        if session.keepalive is not None:
            self._say(session.keepalive.deliver, failed(TryAgain("a later keepalive took the place of this one")))
            session.keepalive = None
        reply: Message | None = None
        if request.epoch != self.epoch:
            # The commands it has handled were another master's: they confirm nothing here (I6).
            reply = EpochDiffers(self.epoch)
        else:
            self._confirm(session, request)
            if self._has_word(session) or session.fresh or now >= self._reply_at(session):
                reply = self._answer(session, now, now)
        return reply, not was_live and session.is_live(now)

    def _reply_at(self, session: Session) -> Instant:
        return session.lease_until - self.times.reply_left_ms

    def hold(self, session: int, deliver: Deliver, deadline: Instant, now: Instant) -> None:
        """Hold the keepalive and reply later: at the reply point, by its deadline, or when a command may be sent."""
        found = self._sessions.get(session)
        if found is None:
            self._say(deliver, failed(SessionExpired("the session is over; open a new one")))
            return
        self._order += 1
        found.keepalive = WaitingKeepalive(self._order, now, deliver)
        heapq.heappush(self._replies, (min(self._reply_at(found), deadline), self._order, session))

    def _answer(self, session: Session, arrived: Instant, now: Instant) -> KeptAlive:
        held_ms = now - arrived
        self._renew(session, now, held_ms)
        return KeptAlive(
            self.epoch,
            session.session_epoch,
            held_ms,
            self.times.lease_ms,
            self.times.jeopardy_ms,
            self.log_index,
            _first_of(session.commands, self.log_index),
            self.add_to_answer(session, now),
        )

    def _answer_held(self, session: Session, now: Instant) -> bool:
        """Answer the keepalive that it waits with, if any. True: the session was not live, and is again."""
        keepalive = session.keepalive
        if keepalive is None:
            return False
        was_live = session.is_live(now)
        session.keepalive = None
        self._say(keepalive.deliver, self._answer(session, keepalive.arrived, now))
        return not was_live

    def _say(self, deliver: Deliver, what: object) -> None:
        self.outgoing.append((deliver, what))

    def _confirm(self, session: Session, request: KeepAlive) -> None:
        refused = dict(request.refused)
        while session.commands and session.commands[0].command.number <= request.handled:
            queued = session.commands.popleft()
            why = refused.get(queued.command.number)
            if queued.confirm is not None:
                self._say(queued.confirm, None if why is None else CommandRefused(why[:1_000]))

    def takes_commands(self, session: int) -> bool:
        """Is there a session of this number, with room for another command?"""
        found = self._sessions.get(session)
        return found is not None and len(found.commands) < MAX_COMMANDS

    def notify(self, session: int, name: str, body: bytes, confirm: Deliver | None = None, after: int = 0) -> int:
        """Queue a command, to be sent by the next `say` with a durable index of `after` or higher. `confirm` is called
        with None once the follower has handled it, or with the error if it refused the command or that will not be
        known."""
        found = self.require(session)
        if not 0 < len(name) <= MAX_COMMAND_NAME or len(body) > MAX_COMMAND_BYTES:
            raise BadValue(f"a command has a name of 1 to {MAX_COMMAND_NAME} characters and at most "
                           f"{MAX_COMMAND_BYTES:,} bytes; it was not sent")  # fmt: skip
        if len(found.commands) >= MAX_COMMANDS:
            raise CommandsWaiting(f"{found.name!r} has {MAX_COMMANDS:,} commands to take already; it was not sent")
        self.session_epoch += 1
        found.session_epoch = self.session_epoch
        found.last_command = name
        found.commands.append(Queued(SessionCommand(self.session_epoch, name, body), after, confirm))
        self._to_say.append((after, found.id))
        return self.session_epoch

    @property
    def waits_for_log(self) -> bool:
        """Are there commands that may have to wait for records to become durable?"""
        return bool(self._to_say)

    def say(self, durable_index: int, now: Instant) -> bool:
        """Send the commands that depend on records up to this index, which are durable now: the waiting keepalives of
        their sessions are answered. True: a session that was not live is again."""
        self.log_index = durable_index
        returned = False
        while self._to_say and self._to_say[0][0] <= durable_index:
            found = self._sessions.get(self._to_say.popleft()[1])
            if found is not None and self._has_word(found):
                returned |= self._answer_held(found, now)
        return returned

    def _has_word(self, session: Session) -> bool:
        return bool(session.commands) and session.commands[0].after <= self.log_index

    def answer_due(self, now: Instant) -> bool:
        """Answer the keepalives that are due. True: a session that was not live is again."""
        replies = self._replies
        returned = False
        while replies and replies[0][0] <= now:
            _, order, session = heapq.heappop(replies)
            found = self._sessions.get(session)
            # Otherwise it was answered early.
            if found is not None and found.keepalive is not None and found.keepalive.order == order:
                returned |= self._answer_held(found, now)
        return returned

    def overdue(self, now: Instant) -> list[Session]:
        """Sessions that are over and must be closed, each once. One that is not closed is reported again later."""
        expiries = self._expiries
        over: list[Session] = []
        while expiries and expiries[0][0] <= now:
            _, number, session = heapq.heappop(expiries)
            found = self._sessions.get(session)
            # A session that was closed and opened again under its number has an older entry in the heap.
            if found is None or found.expiry != number:
                continue
            if found.expires_at <= now:
                over.append(found)
                self._look_at(found, now + CLOSE_AGAIN_MS)
            else:
                self._look_at(found, found.expires_at)
        return over

    def _look_at(self, session: Session, when: Instant) -> None:
        """Schedule a check whether it is over. This replaces its entry in the heap."""
        self._order += 1
        session.expiry = self._order
        heapq.heappush(self._expiries, (when, self._order, session.id))

    def close(self, session: Session, why: str) -> None:
        """End the session: its waiting keepalive and unconfirmed commands fail."""
        self._disconnect(session)
        del self._sessions[session.id]
        if self._by_name.get(session.name) is session:
            del self._by_name[session.name]
        error = SessionExpired(f"the session of {session.name!r} is over: {why}")
        if session.keepalive is not None:
            self._say(session.keepalive.deliver, failed(error))
        for queued in session.commands:
            if queued.confirm is not None:
                self._say(queued.confirm, error)

    def connection_lost(self, connection: int) -> None:
        self.speakers.pop(connection, None)
        for session in list(self._by_connection.get(connection, ())):
            found = self._sessions[session]
            found.keepalive = None
            self._disconnect(found)

    def end(self, error: HoldfastError) -> None:
        """This master ends, not the sessions: everything that waits fails with `error`, to look elsewhere."""
        for session in self._sessions.values():
            keepalive, session.keepalive = session.keepalive, None
            if keepalive is not None:
                self._say(keepalive.deliver, failed(error))
            for queued in session.commands:
                if queued.confirm is not None:
                    self._say(queued.confirm, error)
            session.commands.clear()


def _first_of(commands: deque[Queued], durable_index: int) -> list[SessionCommand]:
    """The commands that may be sent and fit into one reply; the rest follow when these are handled."""
    said: list[SessionCommand] = []
    size = 0
    for queued in commands:
        size += len(queued.command.body)
        if queued.after > durable_index or (said and size > MAX_ANSWER_BYTES):
            break
        said.append(queued.command)
    return said
