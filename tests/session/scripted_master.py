"""A follower without threads or sockets: its effects are played by the test, on a clock that the test turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.errors import DeadlineExceeded, HoldfastError
from holdfast.messages.of_sessions import EpochDiffers, KeepAlive, KeptAlive, Opened, OpenSession, SessionCommand
from holdfast.messages.shapes import Message
from holdfast.operations.effects import Call, Effect, LeaveMaster, Pause
from holdfast.session import Event, Follower, Happening

LEASE_MS, REPLY_LEFT_MS, JEOPARDY_MS = 12_000, 5_000, 30_000
START_MS = 1_000_000
Answer = Callable[[Message], tuple[int, Message | HoldfastError | None]]
"""What comes back and after how long; None: nothing ever does."""


class Played:
    """One follower, whose calls are answered by `master`."""

    def __init__(self) -> None:
        self.now = START_MS
        self.epoch = 1
        self.history = 77
        self.events: list[tuple[int, Happening, str]] = []
        self.sent: list[tuple[int, Message]] = []
        self.deadlines: list[int] = []
        self.left: list[tuple[int, str]] = []
        self.performed: list[tuple[str, bytes]] = []
        self.perform: Callable[[str, bytes], None] = lambda name, body: self.performed.append((name, body))
        self.master: Answer = self.alive
        self.master_is_gone = False
        self.follower = Follower(
            "f", self._perform, self._on_event, clock=lambda: self.now, master_is_gone=lambda: self.master_is_gone
        )
        self._living = self.follower.live()
        self._effect: Effect = next(self._living)

    def _perform(self, name: str, body: bytes) -> None:
        self.perform(name, body)

    def _on_event(self, event: Event) -> None:
        self.events.append((self.now - START_MS, event.kind, event.text))

    # Masters.

    def alive(self, message: Message) -> tuple[int, Message | HoldfastError | None]:
        """Answers at the reply point, as the document has it."""
        if isinstance(message, OpenSession):
            return 1, Opened(message.session, self.history, self.epoch, 0, LEASE_MS, JEOPARDY_MS)
        assert isinstance(message, KeepAlive)
        if message.epoch != self.epoch:
            return 1, EpochDiffers(self.epoch)
        held = LEASE_MS - REPLY_LEFT_MS
        return held + 2, self.renewed(held)

    def renewed(self, held_ms: int = 0, *commands: SessionCommand) -> KeptAlive:
        return KeptAlive(self.epoch, len(commands), held_ms, LEASE_MS, JEOPARDY_MS, 0, list(commands))

    def silent(self, message: Message) -> tuple[int, Message | HoldfastError | None]:
        return 0, None

    def fails(self, error: HoldfastError) -> Answer:
        return lambda message: (1, error)

    # Time.

    def run_for(self, ms: int) -> None:
        """Play effects until this much time has passed, or the follower ends."""
        until = self.now + ms
        while self.now < until:
            self._step(until)

    def _step(self, until: int) -> None:
        effect = self._effect
        if isinstance(effect, Call):
            self._call(effect, until)
        elif isinstance(effect, Pause):
            self.now += max(1, round(effect.seconds * 1000))
            self._go_on(None)
        else:
            assert isinstance(effect, LeaveMaster)
            self.left.append((self.now - START_MS, effect.hint))
            self._go_on(None)

    def _call(self, call: Call, until: int) -> None:
        self.sent.append((self.now - START_MS, call.message))
        deadline = round(call.deadline * 1000)
        self.deadlines.append(deadline - self.now)
        delay, what = self.master(call.message)
        if what is None or self.now + delay > deadline:
            self.now = max(self.now + 1, deadline)
            what = DeadlineExceeded("no answer")
        else:
            self.now += delay
        self._go_on(what)

    def _go_on(self, what: Any) -> None:
        if isinstance(what, HoldfastError):
            self._effect = self._living.throw(what)
        else:
            self._effect = self._living.send(what)

    # What was seen.

    def happened(self, *kinds: Happening) -> list[Happening]:
        return [kind for _, kind, _ in self.events if kind in kinds]

    def at(self, kind: Happening) -> int:
        return next(at for at, seen, _ in self.events if seen is kind)

    def keepalives(self) -> list[tuple[int, KeepAlive]]:
        return [(at, message) for at, message in self.sent if isinstance(message, KeepAlive)]
