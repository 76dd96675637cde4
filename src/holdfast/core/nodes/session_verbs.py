"""Session verbs: open, keep alive and close sessions with this primary; their beginning and end are in the log.

A name belongs to one session at a time. It is refused to another while the first one's connection is open; otherwise
the new session replaces the older one. This alone unmounts no memory: a node's memory stays mounted until another boot
takes its name (I14), or the session that holds it expires or says goodbye.
"""

from __future__ import annotations

from holdfast.core.nodes.membership import unmount
from holdfast.core.primary.decision import PARKED, Decision
from holdfast.core.primary.primary import Primary
from holdfast.instant import Instant
from holdfast.messages.of_sessions import CloseSession, KeepAlive, OpenSession
from holdfast.messages.records import SessionClosed, SessionEnd, SessionOpened
from holdfast.messages.requests import Done
from holdfast.messages.shapes import Record


def open_session(primary: Primary, request: OpenSession, connection: int, now: Instant) -> Decision:
    session, is_new, older = primary.sessions.begin(request.session, request.name, connection, now)
    records: list[Record] = []
    if older is not None:
        records.append(SessionClosed(older.id, SessionEnd.REPLACED))
        member = primary.members.get(request.name)
        if member is not None:
            # The node belongs to the new session if that registers it; else it is given up when the older one expires.
            member.session, member.given_up_at = 0, older.expires_at
    if is_new:
        session.owner = primary.sessions.speakers.get(connection, "")
        records.append(SessionOpened(session.id, session.name, session.session_epoch, session.owner))
    reply, returned = primary.sessions.opened(session, connection, now)
    return Decision(reply, records, freed=returned)


def keep_alive(primary: Primary, request: KeepAlive, connection: int, now: Instant) -> Decision:
    reply, returned = primary.sessions.keep_alive(request, connection, now)
    return Decision(PARKED if reply is None else reply, freed=returned)


def close_session(primary: Primary, request: CloseSession, connection: int, now: Instant) -> Decision:
    """A retry finds it closed already: a goodbye whose reply was lost is no error."""
    session = primary.sessions.get(request.session)
    if session is None:
        return Decision(Done(0))
    primary.sessions.close(session, "its follower said goodbye")
    records: list[Record] = [SessionClosed(session.id, SessionEnd.GOODBYE)]
    return Decision(Done(1), [*records, *unmount(primary, session.name)])
