"""A standby's candidacy: it waits for the leader's end, or guesses it, and serves or resigns every term that it wins.

A term that was won and under which nobody serves would be renewed by its own tasks for as long as the process runs,
and keep every other master from leading. So a wait that is given up here, at any moment, resigns the term (I15).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import TypeVar

import structlog

from holdfast.coordination.interface import Coordination, CoordinationLost, Leader, Term
from holdfast.entropy import fresh_id
from holdfast.errors import HoldfastError, TryAgain, Uncertain
from holdfast.master.election.suspicion import refused_leader
from holdfast.master.tasks import first, until_ended

log = structlog.get_logger("holdfast.master")
T = TypeVar("T")
LOOK_SECONDS = 0.5
ORDERS = "orders/"
ORDER_MS = 3_600_000
"""Longer than an order waits for its term; after this the store drops its mark."""
OVERTAKEN = "another master has written to the log since, or the store was emptied; nothing was restored. Order again"
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
    """Wait for the leader's end. With `guesses`, a refused connection to its port counts as its end."""
    if not guesses:
        return await coordination.campaign(address)
    replacing: int | None = None
    while True:
        campaign = coordination.campaign(address, replacing)
        found = await win_unless(campaign, refused_leader(leader, address, replacing))
        if not isinstance(found, int):
            return found
        # Another master may win with the same suspicion; it is then suspected like any other leader.
        replacing = found
        log.warning("the primary's port is refused; taking over", epoch=replacing)


async def win_unless(campaign: Coroutine[object, object, Term], beside: Coroutine[object, object, T]) -> Term | T:
    """Campaign. Returns the term, or the result of `beside` if that ends first: then the campaign is withdrawn."""
    campaigning = asyncio.create_task(campaign)
    other = asyncio.create_task(beside)
    is_won = False
    try:
        await first(campaigning, other)
        await until_ended(other)
        is_won = campaigning.done()
        return campaigning.result() if is_won else other.result()
    finally:
        if not is_won:
            await withdraw(campaigning, other)


async def note_order(coordination: Coordination, name: str) -> bytes:
    """Leave a mark in the store that this master has an order to restore, and return it."""
    mark = f"{fresh_id():016x}".encode()
    await coordination.publish(ORDERS + name, mark, ORDER_MS)
    return mark


async def check_order(coordination: Coordination, name: str, mark: bytes, last: int | None) -> None:
    """TryAgain unless all is as when the operator gave the order: the log ends where it ended, in the store that has
    the mark. The mark is needed because a store that was used and emptied again since ends at the same number."""
    if await coordination.last_index() != last or await coordination.read(ORDERS + name) != mark:
        raise TryAgain(OVERTAKEN)


async def win_for_order(
    coordination: Coordination, address: str, replacing: Term | None, last: int | None, seconds: float
) -> Term:
    """Win the term that an order to restore needs, in place of this master's own (`replacing`). Raises TimeoutError, or
    TryAgain if another master has written to the log, which ended with batch `last` when the order was given, or when
    the primary that it was given to ended its term."""
    assert last is not None, "an order names the end of the log that it is about"
    try:
        async with asyncio.timeout(seconds):
            return await _win_unless_overtaken(coordination, address, replacing, last)
    except BaseException:
        if replacing is not None:
            await give_back(replacing)
        raise


async def _win_unless_overtaken(coordination: Coordination, address: str, replacing: Term | None, last: int) -> Term:
    """Win, unless another master writes to the log first. An order that kept waiting would be carried out the next time
    the store is lost. It would bring back a history older than the one served in between, and without naming that one,
    so that nodes void their memory (I14)."""
    epoch = replacing.epoch if replacing is not None else None
    term = await win_unless(coordination.campaign(address, epoch), _see_other_end(coordination, last))
    if term is None:
        raise TryAgain(OVERTAKEN)
    return term


async def _see_other_end(coordination: Coordination, last: int) -> None:
    """Return when the log no longer ends with this batch."""
    while True:
        with contextlib.suppress(CoordinationLost, Uncertain):  # The next round reads it again.
            if await coordination.last_index() != last:
                return
        await asyncio.sleep(LOOK_SECONDS)


async def withdraw(campaigning: asyncio.Task[Term], *others: asyncio.Task[object]) -> None:
    """End the campaign and the tasks beside it. If it was won at this very moment, the term is resigned."""
    try:
        await until_ended(campaigning, *others)
    finally:
        if campaigning.done() and not campaigning.cancelled() and campaigning.exception() is None:
            await give_back(campaigning.result())


async def give_back(term: Term) -> None:
    with contextlib.suppress(HoldfastError):  # The term is over already, which is all that is wanted.
        await term.resign()
