"""What clients at work notice when their primary is killed, stopped, or hands over; and what is lost: nothing may be.

Three clients put, read and remove all the while. The outage is the longest time in which the one of them that removes
nothing got no answer; afterwards every acknowledged object is read back, and every removed one is looked for.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Row, Scale, most_row
from holdfast.messages.of_masters import HandOver
from tests.failover.cluster import Cluster, Process, call
from tests.failover.load import Load
from tests.waiting import wait_until

LEADER_TTL_MS = 1_500
AFTERWARDS = 200
"""Calls that must succeed after each blow."""


def run(scale: Scale) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        url = f"sqlite://{folder}/coordination.db?cluster=torment"
        with Cluster(Path(folder), url, leader_ttl_ms=LEADER_TTL_MS, size="512MiB") as cluster:
            return [
                *_rows(cluster, "kill -9 under load", Process.kill, scale.of(20, 2), 1_000),
                *_rows(cluster, "SIGSTOP under load", Process.pause, scale.of(5, 1), LEADER_TTL_MS + 1_500),
                *_rows(cluster, "handover under load", hand_over, scale.of(5, 1), 500),
            ]


def hand_over(primary: Process) -> None:
    with primary.channel() as channel:
        call(channel, HandOver())


def _rows(cluster: Cluster, name: str, strike: Callable[[Process], None], times: int, most_ms: int) -> list[Row]:
    outages: list[int] = []
    lost = back = checked = 0
    for number in range(times):
        cluster.heal()
        old = cluster.primary()
        with Load(cluster, f"{name}/{number}") as load:
            strike(old)
            wait_until(lambda old=old: cluster.primaries(but=old), 60, "another master leads")
            load.go_on_for(AFTERWARDS)
        cluster.heal()
        outages.append(load.longest_gap_ms())
        with cluster.connect() as cache:
            found = cache.get_many(list(load.acked))
            lost += sum(found.get(key) != data for key, data in load.acked.items())
            back += sum(cache.exists_many(sorted(load.removed)))
            checked += len(load.acked) + len(load.removed)
            cache.remove_all(force=True)
    note = f"{times} times; worst {max(outages):,} ms; {checked:,} objects checked, {back} removed ones came back"
    figure = statistics.median(outages)
    outage = Row(
        name=f"{name}: outage",
        figure=figure,
        unit="ms",
        target=f"<= {most_ms:,}",
        reached=figure <= most_ms,
        note=note,
    )
    return [outage, most_row(f"{name}: acknowledged objects lost", lost + back, "objects", 0)]
