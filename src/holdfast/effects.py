"""What an operation asks of the shell that runs it.

An operation is a generator. It yields a `Message` to have it sent to the master (and gets the reply, or has
Unreachable, ReplyLost or DeadlineExceeded thrown in), or one of the effects below, and returns its result. So the
logic exists once, for threads and for asyncio, and is tested without either.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from holdfast.messages.shapes import Message

T = TypeVar("T")

BULK_FROM = 256 << 10
"""Copies of this size and over are worth a thread of their own in asyncio."""


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """Run this, which blocks or copies, and give its result. `bulk`: too long for an event loop to wait for."""

    run: Callable[[], Any]
    bulk: bool = True
    into_caller: bool = False
    """It writes to a buffer of the caller's, who must not get that back before it has ended."""


@dataclass(frozen=True, slots=True)
class LeaveMaster:
    """Close the connection to this master; the next message goes to the one it named, or to the next address."""

    hint: str = ""


class Begun(Protocol):
    """A request that was sent, and whose reply is not needed yet."""

    def drop(self) -> None:
        """The reply will not be asked for."""


class Checked(NamedTuple):
    """Send this message, as any other, unless the check raises. It is made when there is a connection, right before
    the message is sent: to find a master can take seconds."""

    message: Message
    check: Callable[[], None]
    deadline: float
    """When the answer is due, if that is before the end of the operation. The master is told as much."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Send this to the master, and give what `Reply` is asked with; go on meanwhile. It fails as a `Message` does."""

    message: Message


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to what was sent ahead, when it has come; failing as a `Message` does."""

    begun: Begun


@dataclass(frozen=True, slots=True)
class Call:
    """Send this to the master and give the reply, by an instant (in seconds) of its own; as a `Message` otherwise."""

    message: Message
    deadline: float
    dial: bool = True
    """Without it, only a connection that is there is used."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait this long, or until the condition holds; whoever makes it hold rouses the shell."""

    seconds: float
    until: Callable[[], bool]


Effect: TypeAlias = Message | Checked | Ahead | Reply | Sleep | Work | LeaveMaster | Call | Pause
Operation: TypeAlias = Generator[Effect, Any, T]
