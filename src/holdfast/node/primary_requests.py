"""Requests of a node's orders to the primary: each is sent until it is answered or refused, or a minute has passed.

All of them may be sent twice. The primary plans an order again whose request found nobody.
"""

from __future__ import annotations

from typing import TypeVar

from holdfast.instant import Clock, now_seconds
from holdfast.messages.shapes import Message
from holdfast.operations.ask import RetryPolicy, ask_until
from holdfast.operations.effects import Operation

T = TypeVar("T", bound=Message)

REQUEST_SECONDS = 60.0
RETRIES = RetryPolicy(
    first_pause=0.05,
    longest_pause=1.0,
    longest_settling_pause=1.0,
    call_seconds=10.0,
    given_up="no master answered before the deadline; it may have been done, and may be sent again",
)


class _Order:
    """An order is given up when its runner is closed, which says so itself."""

    @property
    def clock(self) -> Clock:
        return now_seconds

    def check_open(self) -> None:
        """Asked by the runner."""

    def tried_again(self) -> None:
        """Nobody counts it."""


def request(message: Message, kind: type[T]) -> Operation[T]:
    """The reply, which is of this kind; a refusal is raised."""
    reply, _ = yield from ask_until(_Order(), RETRIES, message, kind, now_seconds() + REQUEST_SECONDS)
    return reply
