"""A request is sent until it is answered: who is asked again, who is left, and when it is given up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast import errors
from holdfast.messages import requests as m
from holdfast.operations.ask import Asker, RetryPolicy, ask_until
from holdfast.operations.effects import Call, LeaveMaster, Operation, Sleep

PATIENT = RetryPolicy(0.5, longest_pause=2.0, longest_settling_pause=0.5, call_seconds=10.0, given_up="over")
REMOVAL = m.Remove(["key"], 1)
SILENT = errors.DeadlineExceeded("no answer")
LOST = errors.ReplyLost("the connection broke")


class Asking:
    """One request, whose effects the test plays on a clock of its own."""

    def __init__(self, policy: RetryPolicy = PATIENT, deadline: float = 60.0) -> None:
        self.now = 0.0
        self.calls: list[Call] = []
        self.pauses: list[float] = []
        self.left: list[str] = []
        self._operation: Operation[Any] = ask_until(
            cast("Asker", SimpleNamespace(clock=lambda: self.now, check_open=lambda: None, tried_again=lambda: None)),
            policy,
            REMOVAL,
            m.Removed,
            deadline,
        )
        self._played(next(self._operation))

    def answered(self, reply: Any) -> Any:
        """Go on with this reply or error until the next call; the result, once there is one."""
        if isinstance(reply, errors.DeadlineExceeded):
            self.now = self.calls[-1].deadline
        try:
            if isinstance(reply, errors.HoldfastError):
                self._played(self._operation.throw(reply))
            else:
                self._played(self._operation.send(reply))
        except StopIteration as stop:
            return stop.value
        return None

    def _played(self, effect: Any) -> None:
        while not isinstance(effect, Call):
            if isinstance(effect, LeaveMaster):
                self.left.append(effect.hint)
            else:
                assert isinstance(effect, Sleep)
                self.pauses.append(effect.seconds)
                self.now += effect.seconds
            effect = self._operation.send(None)
        self.calls.append(effect)


def test_a_master_that_does_not_answer_one_call_in_time_is_left_for_the_next() -> None:
    """I10: it may have stopped, and its connection stays open."""
    asking = Asking()
    asking.answered(SILENT)
    assert asking.left == [""]
    assert [call.deadline for call in asking.calls] == [10.0, 20.5]
    assert asking.answered(m.Removed(1)) == (m.Removed(1), 0.0), "it may have arrived the first time"


def test_the_request_is_given_up_at_its_deadline_whatever_a_call_may_take() -> None:
    asking = Asking(deadline=15.0)
    asking.answered(SILENT)
    assert asking.calls[-1].deadline == 15.0
    with pytest.raises(errors.DeadlineExceeded):
        asking.answered(SILENT)


def test_pauses_double_up_to_the_longest() -> None:
    asking = Asking()
    for _ in range(5):
        asking.answered(errors.Unreachable("nobody answers"))
    assert asking.pauses == [0.5, 1.0, 2.0, 2.0, 2.0]
    assert asking.left == [], "there is nobody to leave"


def test_a_master_that_does_not_lead_is_left_for_the_one_that_it_names_and_a_busy_one_is_not() -> None:
    asking = Asking()
    asking.answered(m.Failed("not_leader", "another leads", hint="there:1"))
    asking.answered(m.Failed("busy", "soon"))
    asking.answered(m.Failed("stopping", "it stops"))
    assert asking.left == ["there:1", ""]


def test_a_settling_primary_is_asked_again_sooner() -> None:
    asking = Asking()
    for _ in range(3):
        asking.answered(m.Failed("settling", "the earlier one may still answer"))
    assert asking.pauses == [0.5, 0.5, 0.5]


def test_a_refusal_is_the_answer_even_after_a_lost_reply() -> None:
    """What a node reports may be said twice: a refusal means the same then."""
    asking = Asking()
    asking.answered(LOST)
    with pytest.raises(errors.MemoryVoid):
        asking.answered(m.Failed("memory_void", "it is of another history"))


def test_a_refusal_after_a_lost_reply_leaves_a_change_in_doubt() -> None:
    """I7: it may have been made the first time."""
    asking = Asking(RetryPolicy(0.5, 2.0, 0.5, changes=(m.Remove,), call_seconds=10.0))
    asking.answered(LOST)
    with pytest.raises(errors.ReplyLost, match="may have been made"):
        asking.answered(m.Failed("grant_timed_out", "it has ended"))


@pytest.mark.parametrize("refusal", [errors.ClientRevoked("by the operator"), errors.NotAuthorized("withdrawn")])
def test_a_greeting_that_is_refused_after_a_lost_reply_leaves_a_change_in_doubt(refusal: errors.HoldfastError) -> None:
    """It may have been made before the connection was closed. Without a lost reply the refusal is the answer."""
    changing = RetryPolicy(0.5, 2.0, 0.5, changes=(m.Remove,), call_seconds=10.0)
    with pytest.raises(type(refusal)):
        Asking(changing).answered(refusal)
    asking = Asking(changing)
    asking.answered(LOST)
    with pytest.raises(errors.ReplyLost, match=f"may have been made; asked again: {refusal}"):
        asking.answered(refusal)


def test_who_is_not_let_in_for_now_comes_back_when_it_was_told_to() -> None:
    full = errors.TooManyClients("as many clients as there may be")
    full.retry_after_ms = 1_500
    asking = Asking()
    asking.answered(full)
    assert asking.pauses == [1.5]


def test_the_last_words_say_what_was_lost() -> None:
    asking = Asking(deadline=0.9)
    asking.answered(LOST)
    with pytest.raises(errors.Unreachable, match=r"over \(the connection broke\)"):
        asking.answered(LOST)
