"""Runs operations on threads: each on its caller's, all over one connection to the primary."""

from __future__ import annotations

import math
import threading
from typing import TypeVar

from holdfast.errors import HoldfastError, ReplyLost, Unreachable
from holdfast.instant import now_seconds
from holdfast.messages.shapes import Message
from holdfast.operations.effects import Ahead, Call, Effect, LeaveMaster, Open, Operation, Pause, Reply, Sleep, Work
from holdfast.operations.link import LATE_TEXT, NOT_CONNECTED_TEXT, USUAL, Caller, LinkOptions, PrimaryLink
from holdfast.operations.masters import Masters
from holdfast.transport.channel import Channel, PendingCall

T = TypeVar("T")
_SENT = (Message, Call)


class ThreadRunner(PrimaryLink[Channel]):
    """Any number of threads may run operations at once."""

    def __init__(self, masters: Masters, caller: Caller, options: LinkOptions = USUAL) -> None:
        super().__init__(masters, caller, options)
        self._dialing = threading.Lock()
        self._roused = threading.Condition()

    def run(self, operation: Operation[T], deadline: float = math.inf) -> T:
        """Run it to its end. No message of it is waited for past the deadline.

        Every call of a blocking client passes here, the quickest in a few microseconds: so the loop sends a message
        over the open connection itself, without a call in between, and leaves all else to others."""
        channel: Channel | None = None
        try:
            effect = next(operation)
            while True:
                try:
                    result: object = None
                    if isinstance(effect, _SENT):
                        call, due = None, deadline
                        if isinstance(effect, Call):
                            call, due, effect = effect, min(deadline, effect.deadline), effect.message
                        channel = self.channel
                        if channel is None or channel.closed:
                            channel = self._dial(due, call is None or call.dial)
                        if call is not None and call.check is not None:
                            call.check()
                        result = channel.call(effect, due)
                    elif isinstance(effect, Ahead):
                        channel = self._open_channel() or self._dial(deadline)
                        result = channel.begin(effect.message, deadline)
                    elif isinstance(effect, Reply):
                        assert isinstance(effect.begun, PendingCall), "it was begun here"
                        result = effect.begun.reply()
                    elif isinstance(effect, LeaveMaster):
                        self.leave(channel, effect.hint)
                    else:
                        result = self._do(effect)
                except HoldfastError as error:
                    effect = operation.throw(error)
                else:
                    effect = operation.send(result)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except BaseException:
            # An interrupt: copying stopped with this thread, so the operation may give its grants back.
            operation.close()
            raise

    def at_once(self, message: Message, deadline: float) -> Message | None:
        """Try once over the open connection; None if no reply came, and then the whole operation must run. For requests
        that are quick and may be sent twice."""
        channel = self.channel
        if channel is None or channel.closed:
            return None
        try:
            return channel.call(message, deadline)
        except (Unreachable, ReplyLost):
            return None

    def rouse(self) -> None:
        """Have every paused operation check its condition."""
        self._rouse()

    def _rouse(self) -> None:
        with self._roused:
            self._roused.notify_all()

    def _do(self, effect: Effect) -> object:
        if isinstance(effect, Work):
            return effect.run()
        if isinstance(effect, Open):
            options, hello = self._options, self.caller.hello()
            return Channel.open(effect.address, hello, effect.deadline, options.silence_seconds, options.tls)
        if isinstance(effect, Pause):
            self._wait(effect)
        elif isinstance(effect, Sleep):
            self._wait(Pause(effect.seconds, lambda: False))
            self.caller.check_open()
        return None

    def _wait(self, pause: Pause) -> None:
        with self._roused:
            self._roused.wait_for(lambda: self.caller.closed or pause.until(), pause.seconds)

    def _dial(self, deadline: float, may_dial: bool = True) -> Channel:
        if not may_dial:
            raise Unreachable(NOT_CONNECTED_TEXT)
        left = deadline - now_seconds()
        # The thread that holds the lock and dials may have more time than this one.
        if left <= 0 or not self._dialing.acquire(timeout=left):
            raise Unreachable(LATE_TEXT)
        try:
            channel = self._open_channel()
            return channel if channel is not None else self.run(self.connect(deadline), deadline)
        finally:
            self._dialing.release()
