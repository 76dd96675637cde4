"""A process that leads a cluster until somebody ends it: what tests kill and stop.

python leading.py URL [lock]        says `leads EPOCH` when it does; with `lock` it keeps SQLite locked
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys

from holdfast.coordination.backends import open_coordination
from holdfast.coordination.urls import parse_location


async def lead(url: str, locks: bool) -> None:
    coordination = await open_coordination(url, leader_ttl_ms=1500)
    term = await coordination.campaign("process:7070")
    await term.append(await coordination.last_index() + 1, b"from the process")
    if locks:
        connection = sqlite3.connect(parse_location(url).path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
    print(f"leads {term.epoch}", flush=True)
    await term.ended()


if __name__ == "__main__":
    asyncio.run(lead(sys.argv[1], "lock" in sys.argv[2:]))
