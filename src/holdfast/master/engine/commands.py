"""Commands to nodes, from the decision to the keepalive reply that carries them.

The life of a command:
1. Decided, by a request or by upkeep.
2. Numbered, and queued in the session of its node.
3. Held there until every record that was logged before it is durable: it may depend on any of them (I6).
4. Sent with the reply to a keepalive, at once if one is waiting, and with every further reply until it is confirmed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from holdfast.core.primary.decision import Clearing, Command
from holdfast.core.primary.session_book import Book
from holdfast.errors import CommandsWaiting, HoldfastError, UnknownNode
from holdfast.instant import Instant
from holdfast.master.engine.durability import Durability
from holdfast.master.engine.guard import Guard

Confirm = Callable[[HoldfastError | None], None]
"""Called when a command has been handled (None), or with the reason why that will not be known."""


@dataclass(eq=False)
class NodeCommands:
    _sessions: Book
    _durability: Durability
    _guard: Guard
    _failures: Counter[str]
    _on_return: Callable[[], None]
    """Called when a session that was not live is again."""
    _on_cleared: Callable[[str, Clearing, bool], list[Command]]
    """Called when a node has cleared bytes for a grant, or will not. Returns the next commands."""
    _next: list[Command] = field(default_factory=list)

    def send(self, commands: Sequence[Command], now: Instant) -> None:
        """Send the commands of a decision whose records are logged. A node that cannot be reached now gets its commands
        when it is back: those that are not confirmed follow from the state, and are planned again."""
        for command in commands:
            self._guard.run("command", command.node, partial(self._send, command, now))

    def _send(self, command: Command, now: Instant) -> None:
        confirm = partial(self._confirmed, command)
        try:
            self.notify(command.node, command.name, command.body, now, confirm if command.confirm else None)
        except (UnknownNode, CommandsWaiting) as error:
            confirm(error)

    def _confirmed(self, command: Command, error: HoldfastError | None) -> None:
        if error is not None:
            self._failures[error.code] += 1
        if command.clears is not None:
            self._next += self._on_cleared(command.node, command.clears, error is None)

    def notify(self, node: str, name: str, body: bytes, now: Instant, confirm: Confirm | None = None) -> int:
        """Send a command to the follower of this name. Returns its number."""
        session = self._sessions.named(node)
        if session is None:
            raise UnknownNode(f"nobody called {node!r} follows this master; nothing was sent")
        number = self._sessions.notify(session.id, name, body, confirm, self._durability.index)
        self.deliver(now)
        if self._sessions.waits_for_log:
            # `after_durable` delivers it; this has the records written now, although no reply waits for them.
            self._durability.when_durable(self._durability.index, lambda: None)
        return number

    def deliver(self, now: Instant) -> None:
        """Send the sessions' keepalive replies. One with a command waits until everything that the command may depend
        on is durable; one without waits for nothing: a slow log must not cost a node its session."""
        if self._sessions.say(self._durability.durable, now):
            self._on_return()
        self.hand_out()
        if self._next:
            commands, self._next = self._next, []
            self.send(commands, now)

    def answer_due(self, now: Instant) -> None:
        """Answer the keepalives that are due."""
        if self._sessions.answer_due(now):
            self._on_return()
        self.deliver(now)

    def hand_out(self) -> None:
        """Send the replies and confirmations that are ready."""
        sessions = self._sessions
        while sessions.outgoing:
            outgoing, sessions.outgoing = sessions.outgoing, []
            for then, what in outgoing:
                self._guard.run("answer", "a session's", partial(then, what))
