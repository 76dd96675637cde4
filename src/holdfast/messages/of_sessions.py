"""Messages between the follower of a session and its master (tags 70 to 79).

A session is named by a random number that the follower draws, so that opening it again is harmless and nobody can
guess it. Durations travel, never times (I16). Commands travel in the replies to keepalives; their meaning is up to
the user of the session.
"""

from __future__ import annotations

import msgspec

from holdfast.identity.roles import Role
from holdfast.messages.shapes import Bounded, Message


class SessionCommand(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """`number` is the session epoch that this command raised the session to; it only grows under one master."""

    number: int
    name: str
    body: bytes = b""


class OpenSession(Message, tag=70):
    """Begin a session under this name. Answered by `Opened`; `NameTaken` while another's connection is open."""

    needs = Role.NODE
    session: int
    name: str


class KeepAlive(Message, tag=71):
    """The follower lives. The master holds it until little of the lease is left, or there is a command to send.

    Answered by `KeptAlive`; by `EpochDiffers` if `epoch` is not the master's; `SessionExpired` if the session is over;
    `NotLeader` by a process that is not, or no longer, the master.
    """

    needs = Role.NODE
    session: int
    serial: int
    """Grows with each keepalive of a session, so that a late one is recognised."""
    epoch: int
    """The master's, as far as the follower knows; `handled` is a command number of that master."""
    handled: int = 0
    """All commands up to this number have been handled."""
    refused: Bounded[tuple[int, str]] = []
    """Numbers of those of them that could not be done, and why."""
    body: bytes = b""


class CloseSession(Message, tag=72):
    """Goodbye: everything that the session held is given up at once."""

    needs = Role.NODE
    session: int


class Opened(Message, tag=73):
    """The lease counts from when the follower sent its request. `history` is the log that the session is in."""

    session: int
    history: int
    epoch: int
    session_epoch: int
    lease_ms: int
    jeopardy_ms: int
    continues: list[int] = []
    """The older histories that this one was restored from: memory that was mounted under them stays valid."""


class KeptAlive(Message, tag=74):
    """The lease counts from when the follower sent its keepalive, plus `held_ms`."""

    epoch: int
    session_epoch: int
    held_ms: int
    lease_ms: int
    jeopardy_ms: int
    log_index: int
    """Index of the last durable record: a later master whose log is shorter has lost some."""
    commands: list[SessionCommand] = []
    body: bytes = b""


class EpochDiffers(Message, tag=75):
    """Another master leads now, and knows the session: carry on with it, under its epoch."""

    epoch: int


class GiveSign(Message, tag=76):
    """Are you alive? Answered at once, by every role: a stopped process keeps its connections open."""

    needs = None
