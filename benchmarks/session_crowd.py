"""Many followers in one process, a connection each: `ADDRESS PREFIX COUNT`.

Prints `ready` when all have a session; at the end of its input, as JSON, how long each stamp took to reach its
follower, and how many leases were lost on the way.
"""

from __future__ import annotations

import asyncio
import json
import sys

from holdfast.instant import SYSTEM_CLOCK
from holdfast.session import AsyncSessionFollower, Event, Happening

AT_ONCE = 100


async def main(address: str, prefix: str, count: int) -> None:
    latencies_ms: list[float] = []
    trouble: list[str] = []
    opened = asyncio.Semaphore(0)

    def perform(name: str, body: bytes) -> None:
        latencies_ms.append((SYSTEM_CLOCK() - int.from_bytes(body, "little")) / 1e6)

    def on_event(event: Event) -> None:
        if event.kind is Happening.OPENED:
            opened.release()
        elif event.kind in (Happening.JEOPARDY, Happening.EXPIRED):
            trouble.append(event.kind.value)

    followers = [AsyncSessionFollower(address, f"{prefix}{number}", perform, on_event) for number in range(count)]
    for start in range(0, count, AT_ONCE):
        some = followers[start : start + AT_ONCE]
        for follower in some:
            await follower.start()
        for _ in some:
            await opened.acquire()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps({"latencies_ms": latencies_ms, "trouble": len(trouble)}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
