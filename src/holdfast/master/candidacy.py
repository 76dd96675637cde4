"""A standby's candidacy: it waits for the leader's end, or guesses it, and whatever it wins it answers for.

A term that was won and that nobody serves under would be renewed by its own tasks for as long as the process runs,
and keep everybody else from leading. So whoever gives up waiting here, in whatever moment, resigns it (I15).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from holdfast.coordination.interface import Coordination, CoordinationLost, Leader, Term
from holdfast.errors import HoldfastError, TryAgain, Uncertain
from holdfast.master.suspicion import refused_leader
from holdfast.master.tasks import first, until_ended

log = structlog.get_logger("holdfast.master")
LOOK_SECONDS = 0.5
OVERTAKEN = "another master has written to the log since; nothing was restored. Look and order again"
PROVEN = ("first", "resigned", "flock", "gone", "expired")
"""Ways of winning a term (`Term.proof`) that prove the end of the last primary."""
HOW_IT_ENDED = {
    "first": "there was no primary before",
    "resigned": "the last one resigned",
    "flock": "its process is gone (lock free)",
    "gone": "its process is gone (seen on its machine)",
    "expired": "its lease in the store ran out",
    "guess": "its port is refused: a guess",
}


async def win(coordination: Coordination, address: str, leader: Callable[[], Leader | None], guesses: bool) -> Term:
    """Wait for the leader's end; if it may be guessed, less long: where its port is refused."""
    if not guesses:
        return await coordination.campaign(address)
    replacing: int | None = None
    while True:
        waiting = asyncio.create_task(coordination.campaign(address, replacing))
        suspecting = asyncio.create_task(refused_leader(leader, address, replacing))
        is_won = False
        try:
            await first(waiting, suspecting)
            await until_ended(suspecting)
            is_won = waiting.done()
            if is_won:
                return waiting.result()
            # Another may win with the same suspicion: it is then suspected like anybody who leads.
            replacing = suspecting.result()
            log.warning("the primary's port is refused; taking over", epoch=replacing)
        finally:
            if not is_won:
                await withdraw(waiting, suspecting)


async def win_for_order(
    coordination: Coordination, address: str, replacing: Term | None, last: int | None, seconds: float
) -> Term:
    """Win the term that an order to restore needs, in the place of this master's own (`replacing`). TimeoutError, or
    TryAgain: another master has written to the log, which ended with batch `last` when the order was given (None: this
    master led then)."""
    try:
        async with asyncio.timeout(seconds):
            return await _win_unless_overtaken(coordination, address, replacing, last)
    except BaseException:
        if replacing is not None:
            await give_back(replacing)
        raise


async def _win_unless_overtaken(
    coordination: Coordination, address: str, replacing: Term | None, last: int | None
) -> Term:
    """An order that waited on would be carried out when the store is lost the next time. It would bring back what is
    older than the history served in between, and without that history's name, so that nodes void their memory (I14)."""
    epoch = replacing.epoch if replacing is not None else None
    campaigning = asyncio.create_task(coordination.campaign(address, epoch))
    looking = asyncio.create_task(_see_other_end(coordination, last))
    is_won = False
    try:
        await first(campaigning, looking)
        await until_ended(looking)
        is_won = campaigning.done()
        if is_won:
            return campaigning.result()
        raise TryAgain(OVERTAKEN)
    finally:
        if not is_won:
            await withdraw(campaigning, looking)


async def _see_other_end(coordination: Coordination, last: int | None) -> None:
    """Return when the log ends elsewhere than with this batch."""
    while last is not None:
        with contextlib.suppress(CoordinationLost, Uncertain):  # It is looked at again.
            if await coordination.last_index() != last:
                return
        await asyncio.sleep(LOOK_SECONDS)
    await asyncio.Event().wait()


async def withdraw(campaigning: asyncio.Task[Term], *others: asyncio.Task[object]) -> None:
    """End the campaign and what runs beside it. It may have been won in this very moment: then the term is resigned."""
    try:
        await until_ended(campaigning, *others)
    finally:
        if campaigning.done() and not campaigning.cancelled() and campaigning.exception() is None:
            await give_back(campaigning.result())


async def give_back(term: Term) -> None:
    with contextlib.suppress(HoldfastError):  # It is over already, which is all that this asks for.
        await term.resign()
