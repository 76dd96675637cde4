"""Winning a term, the same on every backend: look, judge how the last term ended, take.

A backend reports what it sees (`Look`) and tries to take the leadership on that basis; the transaction that takes it
checks that nothing has changed since the look. A leader is silent when, by the watcher's own clock, its deadline must
have passed (I12); a watcher that could not look for a while starts counting anew, so that an outage of coordination is
not taken for a death.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from holdfast.coordination.interface import CoordinationLost, Proof, Term
from holdfast.coordination.terms import LeaderProcess, Tenure, TermRecord, Timing, Verdict, unless_cancelled
from holdfast.errors import Uncertain
from holdfast.ids import ProcessName
from holdfast.outage import Outage
from holdfast.witness import can_see, is_gone

log = logging.getLogger("holdfast.coordination")

RETRY_S = 0.2
AWAY_SHARE = 1 / 2
"""Share of the leader's time to live: a watcher that has not looked for longer starts counting anew."""
EARLY_SHARE = 1 / 4
"""Share of the time to live: a leader that disappears this much before its time did not run out, but was dropped."""
LOOK_SHARE = 1 / 5
"""Share of the time to live between two looks, however rare the backend's own are: well within AWAY_SHARE."""
WITNESS_S = 0.05
"""Interval at which a campaigner checks whether a leader on its own machine lives: some 20 us per check."""
MOST_SUSPECTS = 8
"""The most earlier leaders kept by name. After more guesses within one `leader_ttl` only time ends the doubt."""


@dataclass(frozen=True, slots=True)
class Look:
    """The last term as a campaigner sees it."""

    record: TermRecord | None
    mark: object = None
    """Changes with every renewal; None if the backend itself has dropped the leader."""
    promised_until: float | None = None
    """Until when, by our clock, the leader may still be answering; None if the backend cannot tell."""
    dead: bool = False
    """The lock that the leader's process held is free."""
    expired: bool = False
    """The store itself has let the leadership run out."""
    leader: LeaderProcess | None = None
    """The process that leads in this term, if the store names it."""

    @property
    def suspects(self) -> list[ProcessName] | None:
        """Earlier leaders that may still be answering, without those that are gone. None if not all are known."""
        if self.record is None or not self.record.doubtful:
            return []
        if self.leader is None or self.leader.suspects is None:
            return None
        return [one for one in self.leader.suspects if not is_gone(one)]

    @property
    def is_gone(self) -> bool:
        """This process is on the leader's machine, and sees that the leader has ended."""
        return self.leader is not None and is_gone(self.leader.process)


class Silence:
    """When the leader must have stopped answering, by this process's clock."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._mark: object = None
        self._looked_at = float("-inf")
        self._until: float | None = None
        self._sure_at = float("-inf")
        self._was_there = False
        self._was_silent = False

    def observe(self, look: Look) -> bool:
        now = self._timing.clock()
        was_away = now - self._looked_at > self._timing.ttl_s * AWAY_SHARE
        self._looked_at = now
        if look.promised_until is not None:
            self._until = look.promised_until
        elif self._until is None or was_away or (look.mark is not None and look.mark != self._mark):
            self._until = now + self._timing.ttl_s
        elif look.mark is None and self._was_there:
            # It may have been renewed after the last look, up to this moment, and then dropped.
            self._sure_at = now + self._timing.ttl_s
            if self._was_dropped(now):
                self._until = self._sure_at
        self._was_there = look.mark is not None
        if look.mark is not None:
            self._mark = look.mark
        self._was_silent = now >= self._until
        return self._was_silent

    def _was_dropped(self, now: float) -> bool:
        """Was the leader dropped, rather than run out: before its time, or while it outlived its time?"""
        assert self._until is not None, "it was there at an earlier look"
        return self._was_silent or now < self._until - self._timing.ttl_s * EARLY_SHARE

    @property
    def is_sure(self) -> bool:
        """False if the leader disappeared less than its time to live ago, and may have been renewed just before. Then
        its silence is a guess."""
        return self._timing.clock() >= self._sure_at

    def left_s(self) -> float:
        if self._until is None:
            return 0.0
        return max(0.0, self._until - self._timing.clock())


class Contest(Protocol):
    """A backend's part of a campaign."""

    timing: Timing
    look_every_s: float

    def leader_changes(self) -> int: ...

    async def look(self) -> Look: ...

    async def take(self, address: str, look: Look, verdict: Verdict) -> Tenure | None:
        """Begin the term; None if something has changed since the look. If it raises, it leaves nothing behind."""
        ...

    async def leader_changed(self, seen: int, wait_s: float) -> None:
        """Return when there are more changes than `seen`, or after the wait."""
        ...


def judge(look: Look, replacing: int | None, silence: Silence) -> Verdict | None:
    """How the last term is known to have ended; None while it may still lead.

    While an earlier leader may still be answering, the end of the last one alone proves nothing: more than a guess is
    only silence, which has outlasted the earlier ones too, or the end of each of them."""
    silent = silence.observe(look)
    if look.record is None:
        return Verdict("first")
    how = _end_of(look)
    suspects = look.suspects
    if how is not None and suspects == []:
        return Verdict(how)
    if how is None and silent and silence.is_sure:
        return Verdict("silence")
    if how is None:
        if replacing != look.record.epoch and not silent:
            return None
        suspects = None if suspects is None or look.leader is None else [*suspects, look.leader.process]
    if suspects is not None and len(suspects) > MOST_SUSPECTS:
        suspects = None
    return Verdict("guess", suspects)


def _end_of(look: Look) -> Proof | None:
    """How the last leader itself is known to have ended, regardless of earlier ones."""
    assert look.record is not None, "there was a term"
    if look.record.resigned:
        return "resigned"
    if look.dead:
        return "flock"
    if look.is_gone:
        return "gone"
    return "expired" if look.expired else None


async def campaign(contest: Contest, address: str, replacing: int | None) -> Term:
    silence = Silence(contest.timing)
    outage = Outage(log, "no term can be won")
    while True:
        seen = contest.leader_changes()
        try:
            look = await contest.look()
            verdict = judge(look, replacing, silence)
            if verdict is not None:
                term = await unless_cancelled(contest.take(address, look, verdict))
                if term is not None:
                    log.info("won epoch %d (%s)", term.epoch, verdict.proof)
                    return term
        except (CoordinationLost, Uncertain) as error:
            outage.seen(error)
            await contest.timing.sleep(RETRY_S)
            continue
        outage.over()
        look_within_s = min(contest.look_every_s, contest.timing.ttl_s * LOOK_SHARE)
        await _until_next_look(contest, seen, look, min(look_within_s, silence.left_s() + 0.002))


async def _until_next_look(contest: Contest, seen: int, look: Look, wait_s: float) -> None:
    """Wait until something has changed, or for `wait_s`; a leader on this machine is watched meanwhile."""
    ends_at = contest.timing.clock() + wait_s
    watched = look.leader is not None and can_see(look.leader.process)
    while contest.leader_changes() == seen and (left_s := ends_at - contest.timing.clock()) > 0:
        if watched and look.is_gone:
            return
        await contest.leader_changed(seen, min(WITNESS_S, left_s) if watched else left_s)
