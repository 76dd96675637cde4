"""Stores, lookups and loads through an L2 adapter that LMCache itself makes from JSON, while the cluster is tormented.

    python lmcache_l2_traffic.py JSON

Prints `stored` after the first half and waits for a line; prints a JSON report at the end. Whoever started it does
something to the cluster meanwhile. A miss is counted; other bytes than were stored are an error.
"""

from __future__ import annotations

import argparse
import json
import select
import sys
import threading
import time
from typing import Any

import torch
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

KEYS_A_BATCH = 16
BATCHES = 12
FLOATS = 65_536
WAIT_S = 60.0


def chunk(number: int) -> ObjectKey:
    return ObjectKey(ObjectKey.IntHash2Bytes(number), "org/model", 0x01000100, 0, "tenant")


def memory(value: float) -> TensorMemoryObj:
    data = torch.full((FLOATS,), value, dtype=torch.float32)
    metadata = MemoryObjMetadata(
        shape=torch.Size([FLOATS]),
        dtype=torch.float32,
        address=0,
        phy_size=4 * FLOATS,
        fmt=MemoryFormat.KV_2LTD,
        ref_count=1,
    )
    return TensorMemoryObj(data, metadata, parent_allocator=None)


class Traffic:
    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        self.report = {"stored": 0, "failed": 0, "hits": 0, "misses": 0, "wrong": 0, "longest_s": 0.0}

    def wait(self, descriptor: int, taken: Any) -> Any:
        began = time.monotonic()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while time.monotonic() - began < WAIT_S:
            if (result := taken()) is not None:
                self.report["longest_s"] = max(self.report["longest_s"], round(time.monotonic() - began, 2))
                return result
            poll.poll(20)
        raise SystemExit("a task was never completed")

    def store(self, numbers: range) -> None:
        # Kept until the task is done: an adapter has addresses only, and the memory is its caller's.
        objects = [memory(float(i)) for i in numbers]
        task = self.adapter.submit_store_task([chunk(i) for i in numbers], objects)
        done = self.wait(self.adapter.get_store_event_fd(), lambda: self.adapter.pop_completed_store_tasks().get(task))
        self.report["stored" if done.is_successful() else "failed"] += len(numbers)

    def read(self, numbers: range) -> None:
        keys = [chunk(i) for i in numbers]
        task = self.adapter.submit_lookup_and_lock_task(keys, {})
        found = self.wait(
            self.adapter.get_lookup_and_lock_event_fd(), lambda: self.adapter.query_lookup_and_lock_result(task)
        )
        hits = [i for place, i in enumerate(numbers) if found.test(place)]
        self.report["misses"] += len(numbers) - len(hits)
        if not hits:
            return
        targets = [memory(-1.0) for _ in hits]
        task = self.adapter.submit_load_task([chunk(i) for i in hits], targets)
        loaded = self.wait(self.adapter.get_load_event_fd(), lambda: self.adapter.query_load_result(task))
        for place, (i, target) in enumerate(zip(hits, targets, strict=True)):
            self.report["hits" if loaded.test(place) else "misses"] += 1
            if loaded.test(place) and not bool((target.raw_data == float(i)).all()):
                self.report["wrong"] += 1
        self.adapter.submit_unlock([chunk(i) for i in hits])


def main() -> None:
    [config] = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[sys.argv[1]])).adapters
    traffic = Traffic(create_l2_adapter(config))
    batches = [range(first, first + KEYS_A_BATCH) for first in range(0, KEYS_A_BATCH * BATCHES, KEYS_A_BATCH)]
    for batch in batches[: BATCHES // 2]:
        traffic.store(batch)
        traffic.read(batch)
    before = dict(traffic.report)
    print("stored", flush=True)
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    rounds = 0
    while not told.is_set():
        traffic.read(batches[rounds % (BATCHES // 2)])
        rounds += 1
    during = dict(traffic.report)
    for batch in batches[BATCHES // 2 :]:
        traffic.store(batch)
    after_from = dict(traffic.report)
    for batch in batches:
        traffic.read(batch)
    lost = traffic.report["misses"] - after_from["misses"]
    traffic.adapter.close()
    print(json.dumps({**traffic.report, "rounds_meanwhile": rounds, "lost": lost, "before": before, "during": during}))


if __name__ == "__main__":
    main()
