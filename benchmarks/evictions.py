"""A cache that is full: puts that must not be refused while something can go, and how fast the core lets go."""

from __future__ import annotations

import gc
import os
import random
import statistics
import time

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import DURABLE, Row, Scale, least_row, most_row
from benchmarks.processes import Cluster
from holdfast import errors
from holdfast.core.objects.eviction import evicted, victims
from holdfast.core.primary.decision import Parked
from holdfast.core.primary.primary import Primary
from holdfast.core.rules import Rules
from holdfast.core.state.state import State
from holdfast.ids import GrantId
from holdfast.master.engine.engine import Engine
from holdfast.messages.of_nodes import RegisterNode
from holdfast.messages.of_sessions import OpenSession
from holdfast.messages.requests import CommitPuts, Failed, GrantRanges
from holdfast.messages.shapes import Message

OBJECT = 64 << 10
BATCH = 128
CORE_BATCH = 2048
TRIES = 5
CLIENT, CONNECTION = 7, 1


def run_storm(scale: Scale) -> list[Row]:
    """Six times the capacity is put, in batches; nothing is read, so everything may go."""
    value = os.urandom(OBJECT)
    batches = scale.of(6 * 256, 2 * 256) * (1 << 20) // (BATCH * OBJECT)
    refused = stored = 0
    with Cluster("256MiB") as cluster, cluster.connect() as cache:
        started = time.perf_counter()
        for batch in range(batches):
            try:
                stored += cache.put_many({f"storm/{batch}/{each}": value for each in range(BATCH)})
            except errors.TryAgain:
                refused += BATCH
        seconds = time.perf_counter() - started
        kept = cache.status().objects
    refused += batches * BATCH - stored - refused
    return [
        Row(
            name="put storm, 64 KiB in batches of 128",
            figure=stored / seconds,
            unit="objects/s",
            durability=DURABLE,
            note=f"{batches * BATCH:,} put, {kept:,} kept, {batches * BATCH * OBJECT / seconds / 1e9:.2f} GB/s",
        ),
        most_row("put storm: puts refused for space", refused, "puts", 0),
    ]


def run_core(scale: Scale) -> list[Row]:
    """Choosing victims and freeing what they held, until nothing is left; no process, no socket."""
    objects = scale.of(128, 8) * CORE_BATCH
    rows = []
    for order, name in ((np.arange, "used in the order of their puts"), (_at_random, "used in random order")):
        tries = []
        for _ in range(TRIES):
            engine = _filled_engine(objects)
            catalogue = engine.state.catalogue
            catalogue.last_used[: catalogue.top] = order(catalogue.top)
            tries.append(objects / _evict_all(engine, objects))
        note = f"{objects:,} objects of 64 KiB, from full to empty; median of {TRIES}"
        rows.append(least_row(f"core: eviction, {name}", statistics.median(tries), "objects/s", 200_000, note=note))
    return rows


def _at_random(count: int) -> NDArray[np.int64]:
    return np.random.default_rng(1).permutation(count)


def _evict_all(engine: Engine, objects: int) -> float:
    """Seconds that it took."""
    primary = engine.primary
    gc.collect()
    gc.freeze()  # As the master does.
    gone = 0
    started = time.perf_counter()
    while gone < objects:
        slots = victims(engine.state, objects * OBJECT, 10**9, soft_too=True)
        primary.reclaim(primary.absorb(evicted(engine.state, slots), 10**9).freed)
        gone += len(slots)
    seconds = time.perf_counter() - started
    gc.unfreeze()
    for allocator in primary.allocators.values():
        allocator.check()
    if primary.free_bytes != primary.capacity_bytes:
        raise SystemExit("not all of the memory came back")
    return seconds


def _filled_engine(objects: int) -> Engine:
    """An engine with this many objects in memory that nobody touches."""
    engine = Engine(Primary(State(), Rules()))
    engine.start_log(1, "bench", bytes(32), 0)
    engine.start_epoch(1, 0)
    size = objects * OBJECT * 5 // 4 // 4096 * 4096
    _ask(engine, OpenSession(1, "n"))
    node = RegisterNode(session=1, boot=1, log_id=0, host="h", data_address="h:1", socket_path="", sizes=[size])
    _ask(engine, node)
    sizes = np.full(CORE_BATCH, OBJECT, "<u8")
    rows = np.zeros((CORE_BATCH, 3), "<u8")
    rows[:, 0] = np.arange(CORE_BATCH) * OBJECT
    rows[:, 1] = OBJECT
    rng = random.Random(1)
    for serial in range(1, objects // CORE_BATCH + 1):
        keys = [f"core/{serial}/{each}/{rng.getrandbits(64):016x}" for each in range(CORE_BATCH)]
        grant = GrantId(CLIENT, serial)
        _ask(engine, GrantRanges(grant, sizes.tobytes(), keys))
        _ask(engine, CommitPuts(grant, keys, rows.tobytes(), finished=[grant]))
    assert len(engine.state.catalogue.keys) >= objects
    return engine


def _ask(engine: Engine, request: Message) -> None:
    reply, _ = engine.handle(request, CLIENT, CONNECTION, 1)
    if isinstance(reply, Parked | Failed):
        raise SystemExit(f"{type(request).__name__} was answered by {reply}")
