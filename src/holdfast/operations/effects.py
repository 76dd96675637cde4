"""Effects: requests of an operation to the runner that runs it.

An operation is a generator. It yields a `Message` to have it sent to the primary (and gets the reply, or has
Unreachable, ReplyLost or DeadlineExceeded thrown in), or one of the effects below, and returns its result. So the
logic exists once, for threads (`threads.ThreadRunner`) and for asyncio (`tasks.TaskRunner`), and is tested without
either.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from holdfast.messages.shapes import Message

T = TypeVar("T")

BULK_FROM = 256 << 10
"""Copies of this size and over are worth a thread of their own in asyncio."""


class Call(NamedTuple):
    """Send this message, as any other, with a deadline (an instant in seconds) of its own. It covers finding a master,
    and the timeout is sent to the master. The operation's deadline counts as well."""

    message: Message
    deadline: float
    check: Callable[[], None] | None = None
    """Raises if the message must not be sent. It runs once there is a connection, right before the message is sent:
    finding a master can take seconds."""
    dial: bool = True
    """If false, only an existing connection is used."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Send this to the master without waiting, and give a `Begun` to await with `Reply`. Fails as a `Message` does."""

    message: Message


class Begun(Protocol):
    """A request that was sent, and whose reply is not needed yet."""

    def drop(self) -> None:
        """Discard the reply when it comes."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Wait for the reply to a request sent by `Ahead`. Fails as a `Message` does."""

    begun: Begun


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait this long. If the runner is closed meanwhile, its reason is thrown in."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait this long, or until the condition holds, or the runner is closed. The code that makes the condition hold
    must rouse the runner."""

    seconds: float
    until: Callable[[], bool]


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


@dataclass(frozen=True, slots=True)
class Open:
    """Connect to the master at this address, and give the channel. Only the dialling policy (`link`) asks for this;
    others send messages, and are connected."""

    address: str
    deadline: float


Effect: TypeAlias = Message | Call | Ahead | Reply | Sleep | Pause | Work | LeaveMaster | Open
Operation: TypeAlias = Generator[Effect, Any, T]
