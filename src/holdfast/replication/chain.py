"""Check whether a position belongs to the log that coordination holds now.

Batch numbers cannot tell: another history has the same numbers, and so has a log that lost its tail and went on. The
hash of a batch covers the hash before it, so one hash that agrees proves everything up to it (I13, I19).
"""

from __future__ import annotations

from contextlib import aclosing

from holdfast.coordination.interface import Batches, Compacted, Coordination, LogBehind
from holdfast.replication.batches import Position, follows, hash_of


async def first_batch(coordination: Coordination) -> int:
    """The number of the first batch that the log still holds; 1 for an empty one."""
    if await coordination.last_index() == 0:
        return 1
    try:
        await _read(coordination, 0)
    except Compacted as error:
        return error.first_index
    except LogBehind:
        pass  # It was emptied just now.
    return 1


async def goes_through(coordination: Coordination, position: Position) -> bool | None:
    """Whether the log goes through that position; None if it was trimmed past it and so cannot tell."""
    if position.batch == 0:
        return True
    if await coordination.last_index() < position.batch:
        return False
    try:
        number, batch = (await _read(coordination, position.batch - 1))[0]
        assert number == position.batch, "the next batch was asked for"
        return hash_of(batch) == position.hash
    except Compacted as error:
        if error.first_index != position.batch + 1:
            return None
    except LogBehind:
        return False
    # The batch itself is gone; the next one names its hash.
    try:
        _, batch = (await _read(coordination, position.batch))[0]
    except Compacted:
        return None
    return follows(position, batch)


async def _read(coordination: Coordination, after: int) -> Batches:
    async with aclosing(coordination.follow(after)) as following:
        return await anext(following)
