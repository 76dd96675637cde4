"""`python -m benchmarks.soak [--minutes 3]`: the days of a cluster in minutes, and what must not grow in them.

Snapshots are due a thousand times as often as they would be, memory is small enough that something is evicted all the
while, and the primary hands over now and then. Looked at every few seconds: the bytes that coordination holds, that the
log is trimmed, and the memory of the masters. Exit code 1, with the reason, if a bound is passed (I17).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.processes import memory_of
from benchmarks.torment import hand_over
from holdfast.coordination.backends import open_coordination
from holdfast.coordination.interface import Compacted
from tests.failover.cluster import Cluster
from tests.failover.load import Load

SNAPSHOT_BYTES = 256 << 10
MOST_LOG_BYTES = 12 * SNAPSHOT_BYTES
"""The log since the older of the last two snapshots, with what comes while one is written and fetched."""
LOOK_SECONDS = 5.0
HAND_OVER_EVERY = 6
MOST_GROWTH = 1.5


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description="Minutes of a cluster's life, and its bounds.")
    parser.add_argument("--minutes", type=float, default=3.0)
    minutes: float = parser.parse_args().minutes
    with tempfile.TemporaryDirectory(prefix="holdfast-soak-") as folder:
        url = f"sqlite://{folder}/coordination.db?cluster=soak"
        with Cluster(Path(folder), url, size="32MiB", snapshot_bytes=SNAPSHOT_BYTES, lease_ttl_ms=500) as cluster:
            faults = _soak(cluster, url, minutes * 60)
    for fault in faults:
        print(f"FAILED: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _soak(cluster: Cluster, url: str, seconds: float) -> list[str]:
    logs: list[int] = []
    memories: list[int] = []
    trimmed = looks = 0
    until = time.monotonic() + seconds
    # What is evicted reads as gone, so nothing is read back here.
    with Load(cluster, "soak", removals=False, reads=False) as load:
        while time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
            looks += 1
            first, held = asyncio.run(_log(url))
            memory = max(memory_of(master.process.pid) for master in cluster.masters)
            trimmed = max(trimmed, first)
            logs.append(held)
            memories.append(memory)
            print(f"log {held >> 10:,} KiB from batch {first:,}; master {memory >> 20:,} MiB", flush=True)
            if looks % HAND_OVER_EVERY == 0:
                cluster.standby()
                hand_over(cluster.primary())
    third = max(1, len(memories) // 3)
    growth = statistics.median(memories[-third:]) / statistics.median(memories[third : 2 * third] or memories)
    print(f"{len(load.acked):,} objects put; log at most {max(logs) >> 10:,} KiB; memory grew by {growth:.2f}")
    faults = [f"a call failed: {error}" for error in load.errors[:3]]
    if trimmed <= 1:
        faults.append("the log was never trimmed")
    if max(logs) > MOST_LOG_BYTES:
        faults.append(f"coordination held {max(logs):,} bytes of log, over {MOST_LOG_BYTES:,}")
    if growth > MOST_GROWTH:
        faults.append(f"a master's memory grew by a factor of {growth:.2f} from the second third to the last")
    return faults


async def _log(url: str) -> tuple[int, int]:
    """The number of its first batch, and its bytes."""
    coordination = await open_coordination(url, "soak", 5_000)
    try:
        held = await coordination.log_bytes()
        try:
            async with contextlib.aclosing(coordination.follow(0)) as batches:
                return (await anext(batches))[0][0], held
        except Compacted as error:
            return error.first_index, held
    finally:
        await coordination.close()


if __name__ == "__main__":
    sys.exit(main())
