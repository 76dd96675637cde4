"""Effects: requests of an operation to the shell that runs it.

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
    """Run a function that blocks or copies, and give its result. `bulk`: it takes too long for an event loop."""

    run: Callable[[], Any]
    bulk: bool = True
    into_caller: bool = False
    """It writes to a buffer of the caller's, so the call must not return before it has ended."""


@dataclass(frozen=True, slots=True)
class LeaveMaster:
    """Close the connection to this master; the next message goes to the one it named, or to the next address."""

    hint: str = ""


class Begun(Protocol):
    """A request that was sent, and whose reply is not needed yet."""

    def drop(self) -> None:
        """Discard the reply when it comes."""


class Checked(NamedTuple):
    """Send this message, as any other, unless the check raises. The check runs once there is a connection, right
    before the message is sent: finding a master can take seconds."""

    message: Message
    check: Callable[[], None]
    deadline: float
    """When the reply is due, if that is before the end of the operation. The timeout is sent to the master."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Send this to the master without waiting, and give a `Begun` to await with `Reply`. Fails as a `Message` does."""

    message: Message


@dataclass(frozen=True, slots=True)
class Reply:
    """Wait for the reply to a request sent by `Ahead`. Fails as a `Message` does."""

    begun: Begun


@dataclass(frozen=True, slots=True)
class Call:
    """Send this to the master and give the reply, with a deadline (an instant in seconds) of its own; otherwise like a
    `Message`."""

    message: Message
    deadline: float
    dial: bool = True
    """If false, only an existing connection is used."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait this long, or until the condition holds; the code that makes it hold must rouse the shell."""

    seconds: float
    until: Callable[[], bool]


Effect: TypeAlias = Message | Checked | Ahead | Reply | Sleep | Work | LeaveMaster | Call | Pause
Operation: TypeAlias = Generator[Effect, Any, T]
