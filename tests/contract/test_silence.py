"""When a standby may take a leader for silent, by its own looks and its own clock (I12)."""

from __future__ import annotations

from holdfast.coordination.campaign import Look, Silence, judge
from holdfast.coordination.terms import TermRecord, Timing, Verdict

TTL_S = 1.0
RECORD = TermRecord(1, "one:7070")


class Watcher:
    def __init__(self) -> None:
        self.now = 100.0
        self.silence = Silence(Timing(TTL_S, lambda: self.now))

    def sees(self, mark: object, after_s: float = 0.2) -> bool:
        """Is the leader silent by now?"""
        self.now += after_s
        return self.silence.observe(Look(RECORD, mark))


def test_a_leader_that_was_not_renewed_for_its_whole_time_is_silent() -> None:
    watcher = Watcher()
    assert [watcher.sees("a") for _ in range(5)] == [False] * 5
    assert watcher.sees("a", 0.3)


def test_a_leader_that_ran_out_is_not_waited_for_any_longer() -> None:
    watcher = Watcher()
    assert not any(watcher.sees("a") for _ in range(5))
    assert not watcher.sees(None, 0.1)
    assert watcher.sees(None, 0.2)


def test_that_a_leader_ran_out_is_a_guess_until_its_time_is_over_since_it_was_dropped() -> None:
    """Found by simulation: its renewals were lost, all but one that nobody had seen when it was dropped."""
    watcher = Watcher()
    assert not any(watcher.sees("a") for _ in range(5))
    assert not watcher.sees(None, 0.1)
    dropped_at = watcher.now
    watcher.now += 0.2
    guess = judge(Look(RECORD, None), None, watcher.silence)
    assert guess == Verdict("guess", None), "its process is not known"
    while watcher.now < dropped_at + TTL_S:
        assert judge(Look(RECORD, None), None, watcher.silence) == guess
        watcher.now += 0.1
    assert judge(Look(RECORD, None), None, watcher.silence) == Verdict("silence")


def test_a_leader_that_was_dropped_early_may_have_been_renewed_just_before() -> None:
    watcher = Watcher()
    assert not any(watcher.sees("a") for _ in range(3))
    assert not any(watcher.sees(None) for _ in range(5))
    assert watcher.sees(None, 0.3)


def test_a_leader_that_was_silent_and_there_and_is_gone_may_have_been_renewed_in_between() -> None:
    """Found by simulation: it was to be replaced when it came back to life, and was dropped in the same moment."""
    watcher = Watcher()
    assert [watcher.sees("a") for _ in range(6)][-1] or watcher.sees("a")
    assert not any(watcher.sees(None, 0.02) for _ in range(5))
    assert not any(watcher.sees(None) for _ in range(4))
    assert watcher.sees(None, 0.3)
