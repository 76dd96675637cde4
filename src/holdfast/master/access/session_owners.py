"""A node's requests are bound to its session: only the identity that opened a session speaks for its node.

The owner is in the log, beside the session's name, so that a node keeps its name through failovers. A session that is
older than the file of identities has none: its number, 63 random bits that its node drew and that nobody is shown,
tells that whoever uses it is its follower; it belongs to that identity then. Until that, requests that name the node
only, which its workers send over connections of their own, are to be sent again.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.primary.session_book import Book, Session
from holdfast.errors import Busy, NameTaken, NotAllowed
from holdfast.messages.of_sessions import OpenSession
from holdfast.messages.shapes import Message


def check_owner(book: Book, request: Message, identity: str) -> None:
    """Raise unless this identity may speak for the session or the node that the request names."""
    named: Any = request
    if "session" in request.__struct_fields__:
        session = book.get(named.session)
        if session is not None:
            session.owner = session.owner or identity
            _check(session, identity)
        elif isinstance(request, OpenSession):
            _check_name(book, request.name, identity)
        # Otherwise the session is over, which the verb itself reports.
    else:
        session = book.named(named.node)
        if session is None or not session.owner:
            raise Busy(f"the session of {named.node!r} is not open at this master yet; nothing was changed. Try again")
        _check(session, identity)


def _check_name(book: Book, name: str, identity: str) -> None:
    older = book.named(name)
    if older is not None and older.owner not in ("", identity):
        raise NameTaken(
            f"{name!r} is a node of another identity than {identity!r}; no session was opened. "
            "Give this node another --name, or the token that it had"
        )


def _check(session: Session, identity: str) -> None:
    if session.owner != identity:
        raise NotAllowed(
            f"the session of {session.name!r} was opened by another identity than {identity!r}; nothing was changed"
        )
