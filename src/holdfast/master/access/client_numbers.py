"""The number of a client: derived from the key in its greeting with the secret of the log, never chosen (ADR 46).

Every master of the history derives the same, so that a client keeps its grants and the answers to its removals through
failovers. Number 0 is the primary's own, for copies; nobody can be given it.
"""

from __future__ import annotations

from holdfast.errors import BadRequest
from holdfast.messages.requests import CLIENT_KEY_BYTES, Hello
from holdfast.wire.mac import FIRST_DERIVED, client_number


def check_key(hello: Hello, is_older_allowed: bool) -> None:
    """Raise unless the caller can be given a number. `is_older_allowed`: all who are let in may do everything, so
    that a client of an older version may have the number that it drew."""
    if hello.client_key:
        if len(hello.client_key) != CLIENT_KEY_BYTES:
            raise BadRequest(f"a client's key has {CLIENT_KEY_BYTES} bytes; the connection is closed")
    elif not is_older_allowed:
        raise BadRequest(
            "the greeting has no key: this client is of an older version, which draws its own number, and the masters "
            "have several identities; the connection is closed. Update the client"
        )
    elif not 0 < hello.client < FIRST_DERIVED:
        raise BadRequest("a client's own number has 63 bits and is not 0; the connection is closed. Draw another")


def number_of(hello: Hello, secret: bytes) -> int:
    """The number of a caller whose key was checked."""
    return client_number(secret, hello.client_key) if hello.client_key else hello.client
