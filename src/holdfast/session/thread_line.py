"""Runs operations in threads, all over one connection to the leading master.

The connection is made when it is first needed, and again after it broke or was left; an operation that leaves a master
closes only the connection that it has itself seen fail.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

from holdfast.errors import HoldfastError, Unreachable
from holdfast.instant import now_seconds
from holdfast.messages.requests import Hello
from holdfast.messages.shapes import Message
from holdfast.operations.effects import Call, Effect, LeaveMaster, Operation, Pause, Sleep, Work
from holdfast.operations.masters import Masters, Round
from holdfast.transport.channel import Channel
from holdfast.transport.timeouts import SILENCE_SECONDS

T = TypeVar("T")
CONNECT_SECONDS = 5.0
CLOSED_TEXT = "this follower was closed; nothing was sent"


class ThreadLine:
    def __init__(self, masters: Masters, hello: Hello, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._masters = masters
        self._hello = hello
        self._silence_seconds = silence_seconds
        self._dialing = threading.Lock()
        self._roused = threading.Condition()
        self._channel: Channel | None = None
        self._closed = False

    def rouse(self) -> None:
        """Have every paused operation check its condition."""
        with self._roused:
            self._roused.notify_all()

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Close the connection: every call, now and later, fails."""
        self._closed = True
        self.rouse()
        channel = self._channel
        if channel is not None:
            channel.close()

    def run(self, operation: Operation[T]) -> T:
        used: Channel | None = None
        try:
            effect = next(operation)
            while True:
                try:
                    result: Any = None
                    if isinstance(effect, Call):
                        used = self._connected(effect)
                        result = used.call(effect.message, effect.deadline)
                    elif isinstance(effect, LeaveMaster):
                        self._leave(used, effect.hint)
                    else:
                        result = self._do(effect)
                except HoldfastError as error:
                    effect = operation.throw(error)
                else:
                    effect = operation.send(result)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            operation.close()

    def _do(self, effect: Effect) -> object:
        if isinstance(effect, Work):
            return effect.run()
        if isinstance(effect, Pause):
            with self._roused:
                self._roused.wait_for(lambda: self._closed or effect.until(), effect.seconds)
            return None
        assert not isinstance(effect, Message | Sleep), "a line is told by when, and how to be woken"
        return None

    def _leave(self, used: Channel | None, hint: str) -> None:
        with self._dialing:
            self._masters.failed()
            self._masters.hinted(hint)
            if used is not None and self._channel is used:
                self._channel = None
        if used is not None:
            used.close()

    def _connected(self, call: Call) -> Channel:
        channel = self._channel
        if channel is not None and not channel.closed:
            return channel
        if not call.dial:
            raise Unreachable("there is no connection; nothing was sent")
        with self._dialing:
            channel = self._channel
            if channel is not None and not channel.closed:
                return channel
            channel = self._channel = self._dial(min(call.deadline, now_seconds() + CONNECT_SECONDS))
            if self.is_closed():  # It was closed meanwhile, without this connection.
                channel.close()
            return channel

    def _dial(self, deadline: float) -> Channel:
        """Connect to the first candidate that accepts us."""
        last: HoldfastError = Unreachable("no master is known; nothing was sent")
        masters = Round(self._masters.candidates())
        while not self.is_closed() and (address := masters.next()) is not None:
            try:
                channel = Channel.open(address, self._hello, deadline, self._silence_seconds)
            except HoldfastError as error:
                last = error
                masters.hinted(error.hint)
                continue
            if not self.is_closed():
                return channel
            channel.close()
        raise Unreachable(CLOSED_TEXT) if self.is_closed() else last
