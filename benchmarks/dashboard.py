"""What a dashboard costs a master of a million objects, and how soon its page is there.

The map of the memory is counted in the master's loop: its longest step is what everybody else waits for. Steps are
measured in time of the processor, because others may run on this machine. The page is loaded as a browser does it: its
files, then the first overview of its stream.
"""

from __future__ import annotations

import statistics
import time
import urllib.request

import numpy as np

from benchmarks.measure import Row, Scale, most_row
from benchmarks.processes import Cluster
from holdfast.core.catalogue.catalogue import SEVERAL, ReplicaAt
from holdfast.core.state.state import Segment, State
from holdfast.dashboard.page_files import PAGE_FILES
from holdfast.ids import SegmentName, object_id
from holdfast.master.status.memory_map import MemorySurvey

OBJECT_BYTES = 4_096
SEGMENTS = 8
AT_ONCE = 10_000


def run(scale: Scale) -> list[Row]:
    objects = scale.of(1_000_000, 50_000)
    state = _full(objects)
    longest, whole = zip(*[_surveyed(state, 1) for _ in range(scale.rounds)], strict=True)
    _replicate(state)
    replicated, _ = zip(*[_surveyed(state, 2) for _ in range(scale.rounds)], strict=True)
    with Cluster("64MiB") as cluster, cluster.connect_warm() as cache:
        cache.put_many({f"key/{number}": b"x" * 100 for number in range(1_000)})
        loads = [_load(cluster.masters["master-0"][1]["http"]) for _ in range(scale.rounds)]
    return [
        most_row(f"map of {objects:,} objects: longest step", 1000 * statistics.median(longest), "ms", 5),
        most_row(f"map of {objects:,} objects, 2 replicas: longest", 1000 * statistics.median(replicated), "ms", 5),
        most_row(f"map of {objects:,} objects: all steps", 1000 * statistics.median(whole), "ms", 1_000),
        most_row("page: files and the first overview", 1000 * statistics.median(loads), "ms", 500),
    ]


def _full(objects: int) -> State:
    state = State()
    size = -(-objects // SEGMENTS) * OBJECT_BYTES
    for handle in range(1, SEGMENTS + 1):
        state.segments[handle] = Segment(handle, SegmentName(f"node-{handle}", 1, 0), size, "", "", "")
        for first in range(0, objects // SEGMENTS, AT_ONCE):
            count = min(AT_ONCE, objects // SEGMENTS - first)
            begin = (handle - 1) * objects + first
            state.catalogue.insert_many(
                [f"key/{number}" for number in range(begin, begin + count)],
                object_id(1, begin),
                np.full(count, OBJECT_BYTES, np.uint64),
                np.zeros(count, np.uint64),
                handle,
                np.arange(first, first + count) * OBJECT_BYTES,
                0,
                0,
            )
    state.catalogue.lease_until[: state.catalogue.top : 3] = 10
    return state


def _replicate(state: State) -> None:
    """Give every object a second replica; where it lies does not matter to the count."""
    catalogue = state.catalogue
    catalogue.flags[: catalogue.top] |= SEVERAL
    for slot in range(catalogue.top):
        after = catalogue.segment_at[slot] % SEGMENTS + 1
        catalogue.others[slot] = (ReplicaAt(after, catalogue.offset_at[slot]),)


def _surveyed(state: State, replicas: int) -> tuple[float, float]:
    """Seconds of its longest step, and of all of them."""
    took = []
    survey, goes_on = MemorySurvey(state, 5), True
    while goes_on:
        began = time.thread_time()
        goes_on = survey.step()
        took.append(time.thread_time() - began)
    began = time.thread_time()
    found = survey.found()
    took.append(time.thread_time() - began)
    if (
        sum(sum(parts) for one in found["segments"] for parts in one["parts"].values())
        != replicas * state.objects * OBJECT_BYTES
    ):
        raise SystemExit("the map does not hold every object")
    return max(took), sum(took)


def _load(http: str) -> float:
    began = time.perf_counter()
    for path in PAGE_FILES:
        with urllib.request.urlopen(f"http://{http}{path}", timeout=30) as answer:
            answer.read()
    with urllib.request.urlopen(f"http://{http}/api/v1/stream", timeout=30) as stream:
        while b"event: overview" not in stream.readline():
            pass
    return time.perf_counter() - began
