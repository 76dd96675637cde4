"""Who follows this primary: sessions are opened, kept and closed, with their beginning and end in the log.

A name is one session's at a time. It is refused to another while the first one's connection is open; otherwise the
older session gives way. That ends no memory by itself: what a node had mounted stays until another boot takes its
name (I14), or the session that holds it expires or says goodbye.
"""

from __future__ import annotations

from holdfast.core.membership import unmount
from holdfast.core.primary import PARKED, Decision, Primary
from holdfast.core.sessions import MAX_NAME, MAX_SESSIONS
from holdfast.errors import BadRequest, NameTaken, TryAgain
from holdfast.instant import Instant
from holdfast.messages.of_sessions import CloseSession, KeepAlive, OpenSession
from holdfast.messages.records import SessionClosed, SessionEnd, SessionOpened
from holdfast.messages.requests import Done
from holdfast.messages.shapes import Record


def open_session(primary: Primary, request: OpenSession, connection: int, now: Instant) -> Decision:
    book = primary.sessions
    known = book.get(request.session)
    if known is not None:
        if known.name != request.name:
            raise BadRequest("this session is another follower's; nothing was opened. Draw a number of your own")
        return book.opened(known, connection, now), []
    if not 0 < len(request.name) <= MAX_NAME or request.session <= 0:
        raise BadRequest(f"a session has a positive number and a name of 1 to {MAX_NAME} characters; none was opened")
    records: list[Record] = []
    older = book.named(request.name)
    if older is not None:
        if older.connection > 0 and older.connection != connection:
            raise NameTaken(
                f"a live node is already called {request.name!r}; nothing was mounted. Give this node another --name, "
                "or stop the other one"
            )
        book.close(older, "the same name was opened again")
        records.append(SessionClosed(older.id, SessionEnd.REPLACED))
        member = primary.members.get(request.name)
        if member is not None:
            # Its own again if the new session registers it; otherwise given up when the older one would have been.
            member.session, member.given_up_at = 0, older.expires_at
    elif len(book) >= MAX_SESSIONS:
        raise TryAgain(f"{MAX_SESSIONS:,} sessions are open, the most there may be; none was opened. Try again later")
    session = book.admit(request.session, request.name, connection, now)
    records.append(SessionOpened(session.id, session.name, session.session_epoch))
    return book.opened(session, connection, now), records


def keep_alive(primary: Primary, request: KeepAlive, connection: int, now: Instant) -> Decision:
    answer = primary.sessions.keep_alive(request, connection, now)
    return PARKED if answer is None else answer, []


def close_session(primary: Primary, request: CloseSession, connection: int, now: Instant) -> Decision:
    """Asked again, it has been done: a goodbye whose answer was lost is no error."""
    session = primary.sessions.get(request.session)
    if session is None:
        return Done(0), []
    primary.sessions.close(session, "its follower said goodbye")
    records: list[Record] = [SessionClosed(session.id, SessionEnd.GOODBYE)]
    return Done(1), [*records, *unmount(primary, session.name)]
