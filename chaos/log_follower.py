"""A follower of the log that misses nothing: every batch goes through the simulator's checks of a log.

It runs in a thread beside the faults, which never cut it off, and only collects: the log is trimmed behind snapshots,
so who follows must keep up. `check` plays it all afterwards. What that learns excuses what clients saw: an object that
the log says was evicted, or lost with its node, may be gone. The log's own rules are checked on the way (I5, I7, I9,
I13, I14).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from typing import NamedTuple, Self

from holdfast.coordination.backends import open_coordination
from holdfast.coordination.interface import CoordinationLost
from holdfast.core.catalogue.digest import digest
from holdfast.messages import records as r
from holdfast.replication.batches import Position, decode_batch
from holdfast.simulation.checks.linearizability import NEVER_NS
from holdfast.simulation.checks.log_checks import LogChecks, spans_of
from holdfast.simulation.checks.restore_checks import RestoreChecks

AGAIN_S = 0.2
PARTITION_EVERY = 500
_OF_DISKS = (r.DiskLeft, r.SegmentMounted, r.SegmentUnmounted)


class Away(NamedTuple):
    """An object on disks that were all away, from the one moment to the other."""

    key: str
    from_ns: int
    until_ns: int


class LogOnly(LogChecks):
    """The simulator's checks, without those that walk over all objects at every batch; the whole partition is looked at
    now and then instead (I9), and the digest at the end (I5)."""

    def _granted(self, record: r.RangesGranted) -> None:
        self._gone_unlogged(record)

    def _note_digest(self) -> None:
        pass

    def on_away_disks(self) -> set[str]:
        """Keys of objects that nobody can read until a disk is back."""
        catalogue, away = self.state.catalogue, self.state.away
        slots = {slot for handle in away for slot in catalogue.on_segment(handle)}
        return {
            key
            for slot in slots
            if all(place.segment in away for place in catalogue.replicas(slot))
            and (key := catalogue.keys[slot]) is not None
        }

    def check_partition(self) -> None:
        for handle, spans in spans_of(self.state).items():
            ends = 0
            for start, end in sorted(spans):
                if start < ends:
                    self.report("I9", f"two own bytes {start}.. of segment {handle}", f"segment {handle}")
                ends = max(ends, end)


class LogFollower:
    def __init__(self, url: str) -> None:
        self._url = url
        self.violations: list[str] = []
        self.checks = LogOnly({}, RestoreChecks(self._broken, {}, lambda: 0), self._broken)
        self.terms: list[tuple[int, int]] = []
        """(time in nanoseconds, epoch) of each term, when its beginning was read here."""
        self.position = Position()
        self.away: list[Away] = []
        """Known after `check`."""
        self._since: dict[str, int] = {}
        self._batches: deque[tuple[int, bytes]] = deque()
        """When each was read here, in nanoseconds, and its content."""
        self.failure = ""
        """Why it ended before it was told to."""
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="log-follower", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(30)
        self._loop.close()

    def _broken(self, promise: str, what: str, subject: str) -> None:
        self.violations.append(f"{promise}: {what}")

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._until_stopped())
        except Exception as error:  # noqa: BLE001 - It is told with the verdict, which is worth nothing without it.
            self.failure = repr(error)

    async def _until_stopped(self) -> None:
        following = asyncio.create_task(self._follow())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([following, stopping], return_when=asyncio.FIRST_COMPLETED)
        for task in (following, stopping):
            task.cancel()
        await asyncio.wait([following, stopping])
        if not following.cancelled():
            following.result()

    async def _follow(self) -> None:
        while True:
            try:
                coordination = await open_coordination(self._url)
            except CoordinationLost:
                await asyncio.sleep(AGAIN_S)
                continue
            try:
                async with contextlib.aclosing(coordination.follow(self.position.batch)) as news:
                    async for batches in news:
                        for number, batch in batches:
                            self._append(number, batch)
            except CoordinationLost:
                await asyncio.sleep(AGAIN_S)
            finally:
                await coordination.close()

    def _append(self, number: int, batch: bytes) -> None:
        records, self.position = decode_batch(self.position, number, batch)
        self._batches.append((time.monotonic_ns(), batch))
        self.terms += [(time.monotonic_ns(), record.epoch) for record in records if isinstance(record, r.EpochStarted)]

    def check(self) -> str:
        """Play all that was collected; the digest of what it comes to."""
        while self._batches:  # More may come meanwhile: nodes go on copying when the clients have ended.
            at_ns, batch = self._batches.popleft()
            number = self.checks.position.batch + 1
            if any(isinstance(record, _OF_DISKS) for record in self.checks.appended(number, 0, 0, batch)):
                self._note_away(at_ns)
            if number % PARTITION_EVERY == 0:
                self.checks.check_partition()
        self.checks.check_partition()
        return digest(self.checks.state.catalogue)

    def _note_away(self, now_ns: int) -> None:
        """Note whose disks came or went: what is on disks alone that are all away is not seen until one is back."""
        hidden = self.checks.on_away_disks()
        back = [key for key in self._since if key not in hidden]
        self.away += [Away(key, self._since.pop(key), now_ns) for key in back]
        for key in hidden:
            self._since.setdefault(key, now_ns)

    def away_at_last(self) -> list[Away]:
        """All of them, those too that are away still."""
        return [*self.away, *(Away(key, since, NEVER_NS) for key, since in self._since.items())]
