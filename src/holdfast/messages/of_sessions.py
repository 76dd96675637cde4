"""What the follower of a session and its master say to each other (tags 70 to 79).

A session is named by a random number that the follower draws, so that opening it again is harmless and nobody can
guess it. Durations travel, never times (I16). Commands ride on the answers to keepalives; what they mean is the
business of whoever uses the session.
"""

from __future__ import annotations

import msgspec

from holdfast.messages.shapes import Message


class SessionCommand(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """`number` is the session epoch that this command raised the session to; it only grows under one master."""

    number: int
    name: str
    body: bytes = b""


class OpenSession(Message, tag=70):
    """Begin a session under this name. Answered by `Opened`; `NameTaken` while another's connection is open."""

    session: int
    name: str


class KeepAlive(Message, tag=71):
    """The follower lives. Held by the master until little of the lease is left, or there is something to say.

    Answered by `KeptAlive`; by `EpochDiffers` when `epoch` is not the master's; `SessionExpired` when it is over;
    `NotLeader` by one that is no master (any more).
    """

    session: int
    serial: int
    """Grows with each keepalive of a session, so that a late one is known to be of the past."""
    epoch: int
    """The master's, as far as the follower knows; `handled` is a number of that master's."""
    handled: int = 0
    """All commands up to this number have been handled."""
    refused: list[tuple[int, str]] = []
    """Of these, the numbers of those that could not be done, and why."""
    body: bytes = b""


class CloseSession(Message, tag=72):
    """Goodbye: whatever the session held is given up at once."""

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
    """The older histories that this one was restored from: memory that was mounted under them stays good."""


class KeptAlive(Message, tag=74):
    """The lease counts from when the follower sent its keepalive, plus `held_ms`."""

    epoch: int
    session_epoch: int
    held_ms: int
    lease_ms: int
    jeopardy_ms: int
    log_index: int
    """How much of the log is durable: a later master whose log is shorter has lost some."""
    commands: list[SessionCommand] = []
    body: bytes = b""


class EpochDiffers(Message, tag=75):
    """Another master leads now, and knows the session: carry on with it, under its epoch."""

    epoch: int


class GiveSign(Message, tag=76):
    """Is anybody there? Answered at once, by every role: a stopped process keeps its connections open."""
