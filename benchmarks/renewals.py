"""Leases and evictions as they pass to a standby: what they cost the primary, the log, coordination and the standby.

Without processes and under a clock of its own, so that a second of the workload is a second whatever the machine does;
only what is called CPU or rate is measured. `HOLDFAST_TRACE` names a trace for the hit rates; without it they are of
conversations made up by `holdfast lab`.
"""

from __future__ import annotations

import gc
import json
import os
import time
from pathlib import Path

import numpy as np

from benchmarks.conversing import Cache, Turn, hit_rates
from benchmarks.measure import Row, Scale, least_row, most_row
from holdfast.cli.lab.workload import conversations
from holdfast.core.objects.eviction import evicted, victims
from holdfast.core.objects.reads import renew_leases
from holdfast.core.primary.primary import Primary
from holdfast.core.promotion import guard_leases, promote
from holdfast.core.rules import Rules
from holdfast.core.state.state import Segment, State
from holdfast.ids import MAX_BATCH, SegmentName, object_id
from holdfast.messages.requests import RenewLeases
from holdfast.replication.batches import Position, encode_batch, encode_record
from holdfast.replication.renewals import RenewalReceiver, RenewalSender
from holdfast.replication.standby import Standby

MIB = 1 << 20
RENEWALS_A_SECOND = 15_000
EVICTIONS_A_SECOND = 130_000
EXTENT = 4096


def run(scale: Scale) -> list[Row]:
    objects = scale.of(1_000_000, 50_000)
    return [*_renewals(scale, objects), *_evictions(objects), *_promotion(objects), *_hit_rates(scale)]


def filled(objects: int) -> State:
    """A state with so many objects, without having been told of each."""
    state = State(cluster="bench", log_id=1, epoch=1, lease_ttl_ms=10_000, soft_pin_ttl_ms=1_800_000)
    state.grant_timeout_ms = 30_000
    state.segments[1] = Segment(1, SegmentName("a", 5, 0), objects * EXTENT, "a:1", "", "h")
    state.next_segment = 2
    for start in range(0, objects, MAX_BATCH):
        count = min(MAX_BATCH, objects - start)
        offsets = (start + np.arange(count, dtype=np.int64)) * EXTENT
        sizes = np.full(count, EXTENT, np.uint64)
        keys = [f"model-7/layer-31/block/{i:025d}" for i in range(start, start + count)]
        state.catalogue.insert_many(keys, object_id(1, start + 1), sizes, sizes, 1, offsets, 0, 0)
    return state


def _renewals(scale: Scale, objects: int) -> list[Row]:
    """Random objects are renewed, a few a millisecond; nobody held a lease on them, so that each is urgent."""
    seconds = scale.of(10, 2)
    state, other = filled(objects), filled(objects)
    primary = Primary(state, Rules())
    sender = RenewalSender(state, primary.rules, 1, 0, MIB)
    receiver = RenewalReceiver()
    rng = np.random.default_rng(1)
    gc.collect()
    gc.freeze()
    told_s = heard_s = 0.0
    longest_ms = 0.0
    for now in range(1, 1_000 * seconds + 1):
        slots = rng.integers(0, objects, RENEWALS_A_SECOND // 1_000)
        rows = np.stack([state.catalogue.ids[slots], np.ones(len(slots)), state.catalogue.offsets[slots]], axis=1)
        if renew_leases(primary, RenewLeases(rows.astype("<u8").tobytes()), 7, now).urgent:
            sender.urge(now)
        if now >= sender.due_at():
            began = time.process_time()
            values = sender.take(now)
            took = time.process_time() - began
            told_s += took
            longest_ms = max(longest_ms, took * 1_000)
            for name, value, part in values:
                sender.wrote(value, part, 0)
                began = time.process_time()
                receiver.take(other, {name: value}, now)
                heard_s += time.process_time() - began
    gc.unfreeze()
    what = f"{RENEWALS_A_SECOND:,} renewals/s of {objects:,} objects"
    return [
        most_row(f"{what}: coordination writes", sender.written / seconds, "writes/s", 2),
        most_row(f"{what}: bytes", sender.size_bytes / seconds, "bytes/s", 300_000),
        most_row(f"{what}: primary CPU", 100 * told_s / seconds, "% of a core", 2, note=f"longest {longest_ms:.1f} ms"),
        Row(name=f"{what}: standby CPU", figure=100 * heard_s / seconds, unit="% of a core"),
        Row(name="renewal in coordination", figure=sender.size_bytes / max(1, sender.renewals), unit="bytes"),
        Row(name="from a renewal to its value", figure=sender.delay_ms, unit="ms"),
    ]


def _evictions(objects: int) -> list[Row]:
    """Victims as a full cache chooses them, in random order of use; the records go to a standby in batches."""
    state = filled(objects)
    standby = Standby(filled(objects))
    order = np.random.default_rng(2).permutation(objects)
    state.catalogue.last_used[:objects] = order
    primary = promote(state, Rules(), 0, proven=True, now=-(10**6))
    position = Position()
    gone = size_bytes = 0
    seconds = 0.0
    wanted = min(objects * 9 // 10, 4 * EVICTIONS_A_SECOND)
    gc.collect()
    gc.freeze()
    while gone < wanted:
        slots = victims(state, 1 << 60, 10**9, soft_too=True)
        record = evicted(state, slots)
        primary.reclaim(primary.absorb(record, 10**9).freed)
        batch, position = encode_batch(position, [encode_record(record)])
        began = time.perf_counter()
        standby.take(position.batch, batch, 10**9)
        seconds += time.perf_counter() - began
        gone += len(slots)
        size_bytes += len(batch)
    gc.unfreeze()
    rate, each = gone / seconds, size_bytes / gone
    return [
        least_row("evictions that a standby applies", rate, "objects/s", EVICTIONS_A_SECOND, note=f"{gone:,} evicted"),
        most_row(f"{EVICTIONS_A_SECOND:,} evictions/s: standby behind by", EVICTIONS_A_SECOND / rate, "s", 1),
        most_row(f"{EVICTIONS_A_SECOND:,} evictions/s: log", each * EVICTIONS_A_SECOND, "bytes/s", 2_000_000),
        most_row("an evicted id in the log", each, "bytes", 8),
    ]


def _promotion(objects: int) -> list[Row]:
    state = filled(objects)
    figures = []
    for now in range(10):
        began = time.perf_counter()
        guard_leases(state, 10_000 + now)
        figures.append((time.perf_counter() - began) * 1_000)
    return [most_row(f"leases of {objects:,} objects at promotion", sorted(figures)[5], "ms", 10)]


def _hit_rates(scale: Scale) -> list[Row]:
    """The same requests with and without a failover in the middle; compared over the minute after it."""
    turns, what = _turns(scale)
    middle = turns[len(turns) // 2].at_ms
    whole = hit_rates(Cache(turns), turns, None, middle)
    killed = hit_rates(Cache(turns), turns, middle, middle)
    lost = 100 * (whole - killed)
    note = f"{whole:.1%} without a failover, {killed:.1%} with one; {what}"
    return [most_row("hit rate lost in the minute after a failover", lost, "points", 2, note=note)]


def _turns(scale: Scale) -> tuple[list[Turn], str]:
    count = scale.of(12_000, 1_500)
    trace = os.environ.get("HOLDFAST_TRACE", "")
    if trace:
        lines = Path(trace).read_text(encoding="utf-8").splitlines()[:count]
        found = [json.loads(line) for line in lines]
        return [
            Turn(int(one["timestamp"]), tuple(one["hash_ids"])) for one in found
        ], f"{len(found):,} turns of a trace"
    made = conversations(count, seed=1)
    return [Turn(300 * i, request) for i, request in enumerate(made)], f"{count:,} made-up turns"
