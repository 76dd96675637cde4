"""The connection of a runner to the primary: whom to dial, for how long, and whom to leave. No I/O of its own.

One policy for clients, sessions and nodes' workers. Many operations share one connection; it is made when it is first
needed, and again after it broke or was left:

1. One operation dials; the others wait for it, each no longer than its own deadline (I10).
2. A round tries every master that is known, once: the one that a master named first, the one that was just lost last,
   and that one only briefly. A master that names another sends the round there next.
3. A master on this machine is then spoken to through its Unix socket.
4. A connection that its runner was closed under is closed again (I17).
5. An operation that leaves a master closes only the connection that it has itself used: others may have found the next
   master already.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from holdfast.coordination.urls import redacted
from holdfast.errors import HoldfastError, TooManyClients, TryAgain, Unreachable
from holdfast.instant import now_seconds
from holdfast.messages.requests import Hello, Welcome
from holdfast.operations.effects import Open, Operation, Work
from holdfast.operations.masters import ONE_MASTER_SECONDS, Masters, Round
from holdfast.transport.channel import SILENCE_SECONDS, Channel

if TYPE_CHECKING:
    import ssl

    from holdfast.transport.async_channel import AsyncChannel

LATE_TEXT = "no master could be reached before the deadline; nothing was sent"
NOT_CONNECTED_TEXT = "there is no connection; nothing was sent"

C = TypeVar("C", "Channel", "AsyncChannel")


class Caller(Protocol):
    """On whose behalf a runner connects."""

    closed: str
    """Why nothing more is sent; empty while it is open."""

    def check_open(self) -> None:
        """Raise that reason, if there is one."""

    def hello(self) -> Hello: ...

    def nearer(self, welcome: Welcome) -> str:
        """Another address of the same master that is better; empty if there is none."""

    def welcomed(self, welcome: Welcome) -> None:
        """Take over a master's welcome."""

    def meet(self, channel: Any) -> None:
        """Learn from the master over the new connection. May block."""

    def unreached(self, error: TryAgain) -> TryAgain:
        """The error to raise if no master of a round accepted us; `error` is the last one's."""


class PlainCaller:
    """A caller that introduces itself, and keeps nothing of a welcome: a session, or a node's worker."""

    def __init__(self, hello: Hello, closed_as: type[HoldfastError] = Unreachable) -> None:
        self.closed = ""
        self._hello = hello
        self._closed_as = closed_as

    def check_open(self) -> None:
        if self.closed:
            raise self._closed_as(self.closed)

    def hello(self) -> Hello:
        return self._hello

    def nearer(self, welcome: Welcome) -> str:
        return ""

    def welcomed(self, welcome: Welcome) -> None:
        """Nothing is kept."""

    def meet(self, channel: Any) -> None:
        """Nothing is asked."""

    def unreached(self, error: TryAgain) -> TryAgain:
        return error


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """How long a runner waits for masters, and how it encrypts."""

    connect_seconds: float = ONE_MASTER_SECONDS
    """The longest wait for one master of a round."""
    silence_seconds: float = SILENCE_SECONDS
    tls: ssl.SSLContext | None = None


USUAL = LinkOptions()


class PrimaryLink(Generic[C]):
    """The state and the dialling policy of both runners."""

    def __init__(self, masters: Masters, caller: Caller, options: LinkOptions = USUAL) -> None:
        self._masters = masters
        self.caller = caller
        self._options = options
        self.channel: C | None = None
        self.address = ""
        """The address of the master that welcomed us last."""

    def hang_up(self, reason: str) -> None:
        """Close the connection: every call and every sleep, now and later, fails for this reason."""
        self.caller.closed = reason
        self._rouse()
        if self.channel is not None:
            self.channel.close()

    @property
    def searched(self) -> str:
        """The address that the primary is looked for with, without a password."""
        return redacted(self._masters.text)

    @property
    def is_connected(self) -> bool:
        return self._open_channel() is not None

    def _rouse(self) -> None:
        """Have every paused operation check its condition."""
        raise NotImplementedError

    def _open_channel(self) -> C | None:
        channel = self.channel
        return None if channel is None or channel.closed else channel

    def connect(self, deadline: float) -> Operation[C]:
        """Connect to a master that accepts us. For one operation at a time."""
        caller, masters = self.caller, self._masters
        caller.check_open()
        if self.channel is not None:
            self.channel.close()
        masters.lost(self.address)
        known = yield Work(partial(masters.candidates, deadline - now_seconds()), bulk=masters.looks_up)
        this_round = Round(known)
        last: TryAgain = Unreachable("the deadline passed before a master could be reached; nothing was sent")
        refusal: HoldfastError | None = None
        while (address := this_round.next()) is not None:
            caller.check_open()
            try:
                until = min(deadline, now_seconds() + masters.patience(address, self._options.connect_seconds))
                channel: C = yield Open(address, until)
                channel = yield from self._nearer(channel, until)
            except HoldfastError as error:
                if isinstance(error, TryAgain):
                    # The primary's reason says more than that the others are standbys.
                    last = last if isinstance(last, TooManyClients) else error
                else:
                    refusal = error
                masters.failed()
                this_round.hinted(error.hint)
                continue
            masters.found()
            yield from self._take(channel, address)
            return channel
        raise refusal or caller.unreached(last)

    def _take(self, channel: C, address: str) -> Operation[None]:
        caller = self.caller
        caller.welcomed(channel.welcome)
        self.channel, self.address = channel, address
        if caller.closed:  # It was closed meanwhile, by a call that did not see this connection.
            channel.close()
        caller.check_open()
        yield Work(partial(caller.meet, channel), bulk=bool(channel.welcome.key_table))

    def _nearer(self, channel: C, deadline: float) -> Operation[C]:
        """A connection to the same master through its Unix socket, if it is on this machine."""
        near = self.caller.nearer(channel.welcome)
        if not near:
            return channel
        try:
            nearer: C = yield Open(near, deadline)
        except Unreachable:
            # Perhaps another network namespace: keep the TCP connection.
            return channel
        except BaseException:
            channel.close()
            raise
        channel.close()
        return nearer

    def leave(self, used: C | None, hint: str) -> None:
        if used is self.channel:
            self._masters.failed()
            self._masters.hinted(hint)
        if used is not None:
            used.close()
