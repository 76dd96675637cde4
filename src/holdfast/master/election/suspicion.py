"""A guess that the primary is dead: our own connection to it broke, and its port is refused.

A live process keeps its listener open while it may answer, so a refusal by its own machine means that it no longer
answers. It is still a guess (a middlebox may refuse), which is why a primary that took over by it acknowledges no
removal until the old one's leadership must have run out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from holdfast.addresses import DEFAULT_PORT, split_address
from holdfast.coordination.interface import Leader
from holdfast.wire.codec import PREAMBLE

LOOK_SECONDS = 0.1
log = structlog.get_logger("holdfast.master")


async def refused_leader(leader: Callable[[], Leader | None], own_address: str, known: int | None = None) -> int:
    """The epoch of a leader whose connection broke and whose port is refused now; waits until there is one.
    The epoch that is `known` to be dead is ignored."""
    met: Leader | None = None  # A connection may break a moment before the port is refused.
    while True:
        suspect = leader()
        if suspect is not None and suspect.address != own_address and suspect.epoch != known:
            if await _until_it_breaks(suspect, told=suspect == met):
                met = suspect
            if met == suspect == leader() and await _is_refused(suspect.address):
                return suspect.epoch
        await asyncio.sleep(LOOK_SECONDS)


async def _until_it_breaks(leader: Leader, told: bool) -> bool:
    """Was there a connection? A live master closes it too, after a while, because no greeting comes."""
    try:
        reader, writer = await asyncio.open_connection(*split_address(leader.address, DEFAULT_PORT))
    except OSError:
        return False
    if not told:
        log.info(
            "the primary answers here: its end will be noticed at once", epoch=leader.epoch, address=leader.address
        )
    try:
        writer.write(PREAMBLE)
        while await reader.read(4096):
            pass
    except OSError:
        pass  # A reset connection is broken as well.
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return True


async def _is_refused(address: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(*split_address(address, DEFAULT_PORT))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    writer.close()
    return False
