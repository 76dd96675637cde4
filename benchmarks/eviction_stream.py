"""A stream of evictions from a real primary through a real log to a real standby: does it keep up?

No client written in Python puts fast enough to have 130,000 small objects a second evicted, so a full catalogue is let
go of: the watermark is lowered step by step, at the pace asked for, and then all at once, which has the primary evict
as fast as it can. The lag of the standby is how long ago the primary had decided the first record that the standby
lacks, judged by samples of both; what a sample cannot tell counts as lag.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from benchmarks.failover import ETCD, SQLITE, coordination_on, fill, wait_for_snapshot
from benchmarks.measure import Row, Scale, least_row, most_row
from benchmarks.processes import Cluster
from holdfast.cli.cluster.masters import ask_one
from holdfast.cli.lab.run import cpu_seconds
from holdfast.ids import extent_of
from holdfast.instant import now_seconds
from holdfast.messages.requests import ChangeSettings, GetStatus, Hello, SettingsInForce, Status
from holdfast.transport.channel import Channel
from holdfast.wire.codec import expect

EVICTIONS_A_SECOND = 130_000
STEP_S = 0.1
"""Short against the lag that counts; much shorter, and the masters would mostly tell how they are."""
WITHIN_S = 120.0
SNAPSHOT_OBJECTS = 950_000
"""The log of so many is longer than what lies between two snapshots."""
OBJECT = 64
SPARE_BYTES = 32 << 20
"""So that nothing is evicted while the catalogue is filled."""
SAMPLER = 0x5A5A


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    primary: Status
    standby: Status


@dataclass(slots=True)
class Watched:
    """The two masters, and what they said so far."""

    channels: tuple[Channel, Channel]
    samples: list[Sample] = field(default_factory=list)

    def look(self) -> Sample:
        deadline = now_seconds() + WITHIN_S
        at = time.perf_counter()
        first, second = (expect(channel.call(GetStatus(), deadline), Status) for channel in self.channels)
        self.samples.append(Sample(at, first, second))
        return self.samples[-1]

    def lag_s(self, since: int) -> float:
        """The longest that the standby was behind, from this sample on."""
        worst = 0.0
        for number, sample in enumerate(self.samples[since:], since):
            has = sample.standby.applied_index
            # The last time that the primary was seen not to be ahead of what the standby has now.
            seen = [one.at for one in self.samples[: number + 1] if one.primary.applied_index <= has]
            worst = max(worst, sample.at - seen[-1])
        return worst


def run(scale: Scale) -> list[Row]:
    rows: list[Row] = []
    for name, durability in (("sqlite", SQLITE), ("etcd", ETCD)):
        rows += _run_on(name, durability, scale.of(1_000_000, 100_000))
    return rows


def _run_on(name: str, durability: str, objects: int) -> list[Row]:
    capacity = objects * extent_of(OBJECT) + SPARE_BYTES
    with ExitStack() as stack:
        url = stack.enter_context(coordination_on(name))
        cluster = stack.enter_context(
            Cluster(str(capacity), masters=2, coordination=url, high_watermark=1.0, eviction_margin=0)
        )
        with cluster.connect() as cache:
            fill(cache, objects)
            if objects > SNAPSHOT_OBJECTS:
                wait_for_snapshot(cluster, cache)  # Else it would be written meanwhile.
        found = {one: cluster.masters[one][1]["address"] for one in cluster.masters}
        statuses = {one: ask_one(at, "", GetStatus(), Status, now_seconds() + WITHIN_S) for one, at in found.items()}
        leader = next(one for one, status in statuses.items() if status.role == "primary")
        other = next(one for one in found if one != leader)
        opened = [
            Channel.open(found[one], Hello(SAMPLER, looks=True), now_seconds() + WITHIN_S) for one in (leader, other)
        ]
        for channel in opened:
            stack.enter_context(closing(channel))
        watched = Watched((opened[0], opened[1]))
        pids = [cluster.masters[one][0].pid for one in (leader, other)]
        _settle(watched)
        paced = _measure(watched, pids, capacity, pace=EVICTIONS_A_SECOND, until=objects // 2)
        flat_out = _measure(watched, pids, capacity, pace=0, until=0)
        return [*_rows(f"{name}, at {EVICTIONS_A_SECOND:,} a second", durability, paced, paced=True),
                *_rows(f"{name}, as fast as it can", durability, flat_out, paced=False)]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stretch:
    """What happened between two moments."""

    evicted: int
    seconds: float
    lag_s: float
    log_bytes: int
    primary_cpu_s: float
    standby_cpu_s: float


def _measure(watched: Watched, pids: list[int], capacity: int, pace: int, until: int) -> Stretch:
    """Evict until so many objects are left, at this pace or as fast as the primary can."""
    was = watched.look()
    since = len(watched.samples) - 1
    cpu = [cpu_seconds(pid) for pid in pids]
    least = max(until, int(capacity * 0.011) // extent_of(OBJECT))
    now = was
    while now.primary.objects > least:
        due = was.primary.objects - int((time.perf_counter() - was.at + STEP_S) * pace) if pace else least
        _lower(watched, max(least, due), capacity)
        # In the middle of a step: at its end the standby would always have caught up.
        time.sleep(STEP_S / 2)
        now = watched.look()
        if now.at - was.at > WITHIN_S:
            raise SystemExit(f"{now.primary.objects:,} objects are left after {WITHIN_S:g} s")
        time.sleep(STEP_S / 2)
    evicted_in = now.at - was.at
    used = [cpu_seconds(pid) - before for pid, before in zip(pids, cpu, strict=True)]
    end = _settle(watched)
    return Stretch(
        evicted=was.standby.objects - end.standby.objects,
        seconds=evicted_in,
        lag_s=watched.lag_s(since),
        log_bytes=end.primary.log_bytes - was.primary.log_bytes,
        primary_cpu_s=used[0],
        standby_cpu_s=used[1],
    )


def _lower(watched: Watched, objects: int, capacity: int) -> None:
    share = max(0.01, objects * extent_of(OBJECT) / capacity)
    request = ChangeSettings({"high_watermark": share})
    expect(watched.channels[0].call(request, now_seconds() + WITHIN_S), SettingsInForce)


def _settle(watched: Watched) -> Sample:
    """Until both stand at the same record, with the same catalogue (I5)."""
    deadline = now_seconds() + WITHIN_S
    while True:
        found = watched.look()
        if found.primary.applied_index == found.standby.applied_index == found.primary.durable_index:
            if found.primary.digest != found.standby.digest:
                raise SystemExit("the catalogues differ at the same record")
            return found
        if now_seconds() > deadline:
            raise SystemExit("the standby does not catch up")
        time.sleep(STEP_S)


def _rows(what: str, durability: str, found: Stretch, paced: bool) -> list[Row]:
    rate, each = found.evicted / found.seconds, found.log_bytes / found.evicted
    primary, standby = (1e6 * cpu / found.evicted for cpu in (found.primary_cpu_s, found.standby_cpu_s))
    note = f"{found.evicted:,} objects; CPU an object: primary {primary:.1f} us, standby {standby:.1f} us"
    wanted = None if paced else EVICTIONS_A_SECOND
    log = most_row(
        f"{what}: log", found.log_bytes / found.seconds, "bytes/s", 2_000_000, note=f"{each:.2f} bytes an id"
    )
    return [
        least_row(f"{what}: evictions that reach the standby", rate, "objects/s", wanted, durability, note),
        most_row(f"{what}: standby behind by at most", found.lag_s, "s", 1),
        log,
    ]
