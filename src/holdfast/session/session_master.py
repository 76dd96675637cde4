"""A session master for any program: an asyncio server around the session book, with events and `notify`.

The open sessions must outlive the process: they are passed to `remember` before any reply is sent. The next master is
made with a higher epoch and with what was remembered; followers that come back to it notice nothing but a change of
epoch. Leadership is up to the program: one that no longer leads calls `stop`.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from holdfast.core.primary.session_book import Book, Session, SessionTimes
from holdfast.entropy import fresh_id
from holdfast.errors import BadRequest, DeadlineExceeded, HoldfastError, NotLeader, UnknownNode
from holdfast.instant import Instant, lengthened, now_ms
from holdfast.messages.of_sessions import CloseSession, GiveSign, KeepAlive, OpenSession
from holdfast.messages.requests import Done
from holdfast.messages.shapes import Message
from holdfast.session.lease import Standing
from holdfast.session.listener import Answer, SessionListener
from holdfast.supervisor import Supervisor

TICK_SECONDS = 0.05


class MasterHappening(enum.Enum):
    CREATED = "created"
    EXPIRED = "expired"
    GOODBYE = "goodbye"
    KEEPALIVE = "keepalive"


@dataclass(frozen=True, slots=True)
class MasterEvent:
    kind: MasterHappening
    session: int
    name: str
    body: bytes = b""
    """The follower's own bytes in a keepalive."""


@dataclass(frozen=True, slots=True)
class SessionSeen:
    session: int
    name: str
    standing: Standing
    session_epoch: int
    lease_left_ms: int
    commands_waiting: int
    last_command: str


@dataclass(frozen=True, slots=True)
class Remembered:
    """State for the next master: the open sessions, by number, and the last command number."""

    sessions: Mapping[int, str] = field(default_factory=dict)
    session_epoch: int = 0
    history: int = 0
    times: SessionTimes = field(default_factory=SessionTimes)


class SessionMaster:
    """Make, start and use it in one event loop."""

    def __init__(
        self,
        epoch: int,
        times: SessionTimes | None = None,
        on_event: Callable[[MasterEvent], None] = lambda event: None,
        remember: Callable[[Remembered], None] = lambda what: None,
        restored: Remembered | None = None,
        sure_after_ms: int = 0,
        token: str = "",
        add_to_answer: Callable[[str], bytes] = lambda name: b"",
    ) -> None:
        """`epoch` is higher than that of any earlier master. Until `sure_after_ms` an earlier one may still answer."""
        times = times if times is not None else SessionTimes()
        restored = restored if restored is not None else Remembered(history=fresh_id(), times=times)
        self._book = Book(times, epoch, restored.session_epoch, restored.history)
        self._book.add_to_answer = lambda session, now: add_to_answer(session.name)
        base = now_ms() + (lengthened(sure_after_ms) if sure_after_ms else 0)
        # The previous master gave promises by its own times.
        lease_ms = max(times.lease_ms, restored.times.lease_ms)
        jeopardy_ms = max(times.jeopardy_ms, restored.times.jeopardy_ms)
        for number, name in restored.sessions.items():
            self._book.restore(number, name, lease_ms, jeopardy_ms, base)
        self._on_event = on_event
        self._remember = remember
        self._listener = SessionListener(self._book, token, self._receive, self._lost)
        self._ticking: asyncio.Task[None] | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Start listening; return the address for followers."""
        address = await self._listener.start(host, port)
        self._ticking = asyncio.create_task(Supervisor().keep("expiry of sessions", self._tick))
        return address

    async def stop(self) -> None:
        """Stop: followers are told to look elsewhere, and their sessions go on with the next master."""
        if self._ticking is not None:
            self._ticking.cancel()
        self._book.end(NotLeader("this master is stopping; ask the next one"))
        self._deliver()
        await self._listener.stop()

    def sessions(self) -> list[SessionSeen]:
        now = now_ms()
        return [_seen(session, now) for session in self._book]

    async def notify(
        self, name: str, command: str, body: bytes = b"", confirm: bool = False, within: float = 30.0
    ) -> int:
        """Send a command to the follower of this name; return its number. With `confirm`, wait until it has been
        handled, for at most `within` seconds; raises `CommandRefused` if the follower could not do it, and
        `SessionExpired` or `DeadlineExceeded` if that is unknown."""
        session = self._book.named(name)
        if session is None:
            raise UnknownNode(f"nobody called {name!r} follows this master; nothing was sent")
        if not confirm:
            number = self._book.notify(session.id, command, body)
            self._send()
            return number
        handled: asyncio.Future[HoldfastError | None] = asyncio.get_running_loop().create_future()

        def confirmed(error: HoldfastError | None) -> None:
            if not handled.done():
                handled.set_result(error)

        number = self._book.notify(session.id, command, body, confirmed)
        self._send()
        try:
            async with asyncio.timeout(within):
                error = await handled
        except TimeoutError:
            raise DeadlineExceeded(f"{name!r} did not confirm {command!r} in time; it may yet take it") from None
        if error is not None:
            raise error
        return number

    def _send(self) -> None:
        """Send the commands in the book: there is no log here that they would have to wait for."""
        self._book.say(0, now_ms())
        self._deliver()

    # Requests.

    def _receive(self, request: Message, connection: int, deadline: Instant, answer: Answer) -> None:
        now = now_ms()
        match request:
            case OpenSession():
                answer(self._open(request, connection, now))
            case KeepAlive():
                self._keep_alive(request, connection, deadline, answer, now)
            case CloseSession():
                answer(self._close(request))
            case GiveSign():
                answer(Done())
            case _:
                raise BadRequest(f"{type(request).__name__} is not served by a master of sessions; nothing was changed")
        self._deliver()

    def _open(self, request: OpenSession, connection: int, now: Instant) -> Message:
        session, is_new, older = self._book.begin(request.session, request.name, connection, now)
        if is_new:
            self._remember_all()
            if older is not None:
                self._tell(MasterHappening.EXPIRED, older)
            self._tell(MasterHappening.CREATED, session)
        reply, _ = self._book.opened(session, connection, now)
        return reply

    def _keep_alive(self, request: KeepAlive, connection: int, deadline: Instant, answer: Answer, now: Instant) -> None:
        reply, _ = self._book.keep_alive(request, connection, now)
        self._tell(MasterHappening.KEEPALIVE, self._book.require(request.session), request.body)
        if reply is None:
            self._book.hold(request.session, answer, deadline, now)
        else:
            answer(reply)

    def _close(self, request: CloseSession) -> Message:
        session = self._book.get(request.session)
        if session is None:
            return Done(0)
        self._book.close(session, "its follower said goodbye")
        self._remember_all()
        self._tell(MasterHappening.GOODBYE, session)
        return Done(1)

    def _lost(self, connection: int) -> None:
        self._book.connection_lost(connection)

    async def _tick(self) -> None:
        while True:
            now = now_ms()
            over = self._book.overdue(now)
            for session in over:
                self._book.close(session, "its lease and the time of jeopardy after it have passed")
            if over:
                self._remember_all()
            for session in over:
                self._tell(MasterHappening.EXPIRED, session)
            self._book.answer_due(now)
            self._deliver()
            await asyncio.sleep(TICK_SECONDS)

    def _remember_all(self) -> None:
        book = self._book
        self._remember(Remembered({one.id: one.name for one in book}, book.session_epoch, book.history, book.times))

    def _tell(self, kind: MasterHappening, session: Session, body: bytes = b"") -> None:
        self._on_event(MasterEvent(kind, session.id, session.name, body))

    def _deliver(self) -> None:
        book = self._book
        while book.outgoing:
            outgoing, book.outgoing = book.outgoing, []
            for then, what in outgoing:
                then(what)


def _seen(session: Session, now: Instant) -> SessionSeen:
    return SessionSeen(
        session.id,
        session.name,
        Standing.SAFE if now < session.lease_until else Standing.JEOPARDY,
        session.session_epoch,
        max(0, session.lease_until - now),
        len(session.commands),
        session.last_command,
    )
