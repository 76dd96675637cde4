"""Masters announce which log version they read (ADR 64)."""

from __future__ import annotations

import asyncio
from collections import Counter

from holdfast.coordination.memory import MemoryCoordination, MemoryStore
from holdfast.master.announcement import ANNOUNCED_MS, Announcement
from holdfast.messages.log_versions import LOG_VERSION


class SteppingClock:
    """Each look takes a hundredth of a second."""

    def __init__(self) -> None:
        self.now_seconds = 0.0

    def __call__(self) -> float:
        self.now_seconds += 0.01
        return self.now_seconds


async def announce_once(announcement: Announcement, coordination: MemoryCoordination) -> None:
    task = asyncio.create_task(announcement.renew(coordination))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


async def test_a_master_whose_announcement_is_about_to_end_counts_with_its_version() -> None:
    """Its address and its version end one after the other. With the address alone it would count for ten minutes as
    one of the oldest release, and hold the log back."""
    clock = SteppingClock()
    coordination = MemoryCoordination(MemoryStore(clock))
    errors: Counter[str] = Counter()
    await announce_once(Announcement("dying", "a:1", errors), coordination)
    clock.now_seconds = ANNOUNCED_MS / 1000 - 0.025  # The looks at addresses and versions lie on both sides of the end.
    other = Announcement("other", "b:1", errors)
    await announce_once(other, coordination)
    assert "a:1" in other.known
    assert (other.versions.common, other.versions.held_back_by) == (LOG_VERSION, [])
    assert not errors
