"""I4: whatever the clocks and the network do, the follower's own clock ends a session before the master does."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.primary.session_book import Book, SessionTimes
from holdfast.errors import DeadlineExceeded, HoldfastError, Unreachable
from holdfast.messages.of_sessions import KeepAlive, OpenSession
from holdfast.messages.shapes import Message
from holdfast.operations.effects import Call, LeaveMaster, Pause
from holdfast.session import Follower, Standing
from holdfast.wire.codec import failed

TIMES = SessionTimes(1_200, 500, 3_000)
STEP_US = 1_000


class Wire:
    """A follower and a master with clocks of their own; the network delays and loses, and is cut now and then."""

    def __init__(self, follower_rate: float, master_rate: float, chance: random.Random) -> None:
        self.real_us = 0
        self.follower_rate, self.master_rate = follower_rate, master_rate
        self.chance = chance
        self.book = Book(TIMES, 1)
        self.expired = 0
        self.cut_until = 0
        self.follower = Follower("f", lambda name, body: None, clock=self.follower_ms)
        self._living = self.follower.live()
        self._effect = next(self._living)
        self._wakes_us = 0
        self._answer: object = None
        self._begun = False
        self._mail: list[tuple[int, str, object]] = []

    def follower_ms(self) -> int:
        return 5_000_000 + int(self.real_us * self.follower_rate / 1000)

    def master_ms(self) -> int:
        return 9_000_000 + int(self.real_us * self.master_rate / 1000)

    def play(self, seconds: int) -> None:
        while self.real_us < seconds * 1_000_000:
            self.real_us += STEP_US
            if self.real_us > self.cut_until and self.chance.random() < 0.001:
                self.cut_until = self.real_us + self.chance.randint(1, 8_000_000)
            self._post()
            self._follow()
            if self.real_us % 50_000 == 0:
                self._tick()

    def _send(self, to: str, what: object) -> None:
        lost = self.real_us < self.cut_until or self.chance.random() < 0.01
        delay = self.chance.choice((50, 500, 20_000, 400_000)) if not lost else 10**12
        self._mail.append((self.real_us + delay, to, what))

    def _post(self) -> None:
        arrived = [mail for mail in self._mail if mail[0] <= self.real_us]
        self._mail = [mail for mail in self._mail if self.real_us < mail[0] < 10**11]
        for _, to, what in sorted(arrived, key=lambda mail: mail[0]):
            if to == "follower":
                call, reply = what  # type: ignore[misc]
                # The call itself, not where it lies: a later one may lie where one that is over lay.
                if self._begun and call is self._effect:
                    self._answer = reply
                    self._wakes_us = 0
            else:
                self._receive(what)  # type: ignore[arg-type]

    def _receive(self, call: Call) -> None:
        now, message = self.master_ms(), call.message

        def answer(reply: Message) -> None:
            self._send("follower", (call, reply))

        try:
            if isinstance(message, OpenSession):
                session, _, _ = self.book.begin(message.session, message.name, 1, now)
                answer(self.book.opened(session, 1, now)[0])
            elif isinstance(message, KeepAlive):
                reply, _ = self.book.keep_alive(message, 1, now)
                if reply is None:
                    self.book.hold(message.session, answer, now + 60_000, now)
                else:
                    answer(reply)
        except HoldfastError as error:
            answer(failed(error))
        self._deliver()

    def _tick(self) -> None:
        for session in self.book.overdue(self.master_ms()):
            self.expired += 1
            if self.follower.session == session.id:
                assert self.follower.standing() is Standing.EXPIRED, "I4: the master was first"
            self.book.close(session, "silence")
        self.book.answer_due(self.master_ms())
        self._deliver()

    def _deliver(self) -> None:
        outgoing, self.book.outgoing = self.book.outgoing, []
        for then, what in outgoing:
            then(what)

    def _follow(self) -> None:
        effect = self._effect
        if not self._begun:
            self._begun, self._answer = True, None
            if isinstance(effect, Call):
                left_ms = effect.deadline * 1000 - self.follower_ms()
                self._wakes_us = self.real_us + int(left_ms * 1000 / self.follower_rate)
                self._send("master", effect)
            elif isinstance(effect, Pause):
                self._wakes_us = self.real_us + int(effect.seconds * 1e6 / self.follower_rate)
            else:
                assert isinstance(effect, LeaveMaster)
                self._wakes_us = 0
        if self.real_us >= self._wakes_us:
            answer, self._begun = self._answer, False
            if isinstance(effect, Call) and answer is None:
                late = DeadlineExceeded if self.chance.random() < 0.5 else Unreachable
                self._effect = self._living.throw(late("no answer"))
            else:
                self._effect = self._living.send(answer)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([0.995, 1.0, 1.005]), st.sampled_from([0.995, 1.0, 1.005]), st.integers(0, 10**9))
def test_the_master_never_expires_a_session_that_its_follower_still_relies_on(
    follower_rate: float, master_rate: float, seed: int
) -> None:
    wire = Wire(follower_rate, master_rate, random.Random(seed))
    wire.play(40)


def test_sessions_do_expire_in_that_world() -> None:
    """So that the test above can fail."""
    total = 0
    for seed in range(3):
        wire = Wire(0.995, 1.005, random.Random(seed))
        wire.play(60)
        total += wire.expired
    assert total > 3


def test_a_clock_outside_of_the_allowance_breaks_it() -> None:
    """The same world notices when the rule is not kept."""
    broken = False
    for seed in range(6):
        wire = Wire(0.9, 1.1, random.Random(seed))
        try:
            wire.play(60)
        except AssertionError:
            broken = True
            break
    assert broken
