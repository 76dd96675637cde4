"""Words that the contract's tests share: read so much of the log, wait for a condition, with a deadline always."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from holdfast.coordination.interface import Coordination, Term
from holdfast.instant import now_seconds

DEADLINE_S = 20.0
Found = TypeVar("Found")


async def soon(waiting: Awaitable[Found]) -> Found:
    """What is awaited, within the deadline of a test."""
    async with asyncio.timeout(DEADLINE_S):
        return await waiting


async def until(condition: Callable[[], Awaitable[Found]], what: str = "") -> Found:
    give_up_at = now_seconds() + DEADLINE_S
    while not (found := await condition()):
        assert now_seconds() < give_up_at, f"not within {DEADLINE_S:g} s: {what or condition}"
        await asyncio.sleep(0.02)
    return found


async def until_true(condition: Callable[[], object], what: str = "") -> None:
    async def asked() -> object:
        return condition()

    await until(asked, what)


async def has_passed(term: Term) -> bool:
    return now_seconds() > term.valid_until


async def is_valid(term: Term) -> bool:
    return now_seconds() < term.valid_until


async def append_all(term: Term, first: int, batches: list[bytes]) -> None:
    for index, batch in enumerate(batches, first):
        await soon(term.append(index, batch))


async def read_log(coordination: Coordination, after: int, through: int) -> list[tuple[int, bytes]]:
    """The batches after one index through another, as a follower gets them."""
    got: list[tuple[int, bytes]] = []
    async with aclosing(coordination.follow(after)) as batches, asyncio.timeout(DEADLINE_S):
        async for several in batches:
            got += several
            if got[-1][0] >= through:
                break
    return got


async def next_of(values: AsyncGenerator[Found, None]) -> Found:
    return await soon(anext(values))
