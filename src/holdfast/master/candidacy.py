"""A standby's candidacy: it waits for the leader's end, or guesses it, and whatever it wins it answers for.

A term that was won and that nobody serves under would be renewed by its own tasks for as long as the process runs,
and keep everybody else from leading. So whoever gives up waiting here, in whatever moment, resigns it (I15).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from holdfast.coordination.interface import Coordination, Leader, Term
from holdfast.errors import HoldfastError
from holdfast.master.suspicion import refused_leader
from holdfast.master.tasks import first, until_ended

log = structlog.get_logger("holdfast.master")
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
