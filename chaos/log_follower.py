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
from typing import Self

from holdfast.coordination.interface import CoordinationLost
from holdfast.coordination.opening import open_coordination
from holdfast.core.digest import digest
from holdfast.messages import records as r
from holdfast.replication.batches import Position, decode_batch
from holdfast.simulation.log_checks import LogChecks, spans_of

AGAIN_S = 0.2
PARTITION_EVERY = 500


class LogOnly(LogChecks):
    """The simulator's checks, without those that walk over all objects at every batch; the whole partition is looked at
    now and then instead (I9), and the digest at the end (I5)."""

    def _granted(self, record: r.RangesGranted) -> None:
        self._gone_unlogged(record)

    def _note_digest(self) -> None:
        pass

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
        self.checks = LogOnly({}, self._broken)
        self.terms: list[tuple[int, int]] = []
        """(time in nanoseconds, epoch) of each term, when its beginning was read here."""
        self.position = Position()
        self._batches: list[bytes] = []
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
        self._batches.append(batch)
        self.terms += [(time.monotonic_ns(), record.epoch) for record in records if isinstance(record, r.EpochStarted)]

    def check(self) -> str:
        """Play all that was collected; the digest of what it comes to."""
        for number, batch in enumerate(self._batches, 1):
            self.checks.appended(number, 0, 0, batch)
            if number % PARTITION_EVERY == 0 or number == len(self._batches):
                self.checks.check_partition()
        self._batches = []
        return digest(self.checks.state.catalogue)
