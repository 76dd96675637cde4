"""An operator's order to restore a history, from when it is given until that history is served or the order has failed.

1. `give`: the order waits for a term of its own. A master that serves ends its term, which it does not resign
   (`keep_term`), so that no other master leads in between.
2. `win`: the term for the order. Its epoch is larger than any that the older history can have had.
3. `begin_writing`: that term's master writes the catalogue to the log.
4. `end`: the restored history is served. Or `fail`: nothing was restored, and the operator is told why.
"""

from __future__ import annotations

import structlog

from holdfast.coordination.interface import Coordination, Term
from holdfast.errors import HoldfastError, TryAgain
from holdfast.master.election.candidacy import give_back, win_for_order
from holdfast.master.histories.histories import Histories, Word
from holdfast.master.plan import Plan

log = structlog.get_logger("holdfast.master")
RESTORE_SECONDS = 10.0
EPOCHS_APART = 4_096
"""Ids are made from epochs, and a snapshot does not know the epochs after it: there were surely fewer than this."""


class RestoreOrder:
    """The order of one master; there is at most one at a time, and it belongs to the term that is won for it."""

    def __init__(self, coordination: Coordination, plan: Plan, histories: Histories) -> None:
        self.step = ""
        """The current step of a restore; empty if none runs."""
        self.failure = ""
        """Why the last restore failed."""
        self._coordination = coordination
        self._plan = plan
        self._histories = histories
        self._replaced: Term | None = None
        """This master's own term, which the term for the order replaces."""

    @property
    def word(self) -> Word | None:
        """The order, while it is to be carried out."""
        return self._histories.restores

    def give(self, word: Word) -> None:
        """Begin a history with this catalogue as soon as the term for it is won."""
        self.step, self.failure = "winning a term", ""
        self._histories.tell(word)

    async def given(self) -> None:
        """Return when there is an order."""
        await self._histories.restore_asked.wait()

    def keep_term(self, term: Term, last: int) -> bool:
        """Keep this master's term, which ended with batch `last`, if it ended for the order. False: resign it."""
        if self._histories.gives_way(last):
            self._replaced = term
        return self._replaced is term

    async def win(self, word: Word) -> Term:
        """Win a term whose epoch is larger than any that the older history can have had since its snapshot."""
        coordination, plan = self._coordination, self._plan
        coordination.epoch_floor = max(coordination.epoch_floor, word.epoch + EPOCHS_APART)
        replaced, self._replaced = self._replaced, None
        seconds = RESTORE_SECONDS + 2 * plan.leader_ttl_ms / 1000
        try:
            return await win_for_order(coordination, plan.address, replaced, word.last, seconds)
        except (TimeoutError, HoldfastError) as error:
            why = str(error) or f"no term was won within {seconds:.0f} s; another master may lead"
            self.fail(why)
            raise TryAgain(f"the restore was given up: {why}") from None

    async def give_back_replaced(self) -> None:
        """Resign the term that no other will replace any more: this master stops."""
        replaced, self._replaced = self._replaced, None
        if replaced is not None:
            await give_back(replaced)

    def begin_writing(self, word: Word, epoch: int) -> None:
        self.step = f"writing {len(word.content):,} bytes of catalogue to the log"
        log.info("restoring a history", epoch=epoch, bytes=len(word.content))

    def end(self) -> None:
        """The restored history is durable, and served."""
        self._histories.end_restore()
        self.step = ""

    def fail(self, why: str) -> None:
        self._histories.end_restore()
        self.step, self.failure = "", why
        log.error("no history was restored", why=why)
