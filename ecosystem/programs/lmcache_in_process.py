"""LMCache's in-process remote backend on holdfast: batches are put and got, also after something befell the cluster.

    LMCACHE_CONFIG_FILE=config.yaml python lmcache_in_process.py

Prints `stored` when everything is put and was read once, waits for a line, reads and puts again, and prints a report.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from lmcache.integration.vllm.utils import lmcache_get_or_create_config
from lmcache.v1.check.utils import EventLoopManager, _get_default_metadata, create_test_key
from lmcache.v1.storage_backend import RemoteBackend
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

CHUNKS = 24
ELEMENTS = 131_072
WAIT_S = 60.0


class Story:
    def __init__(self) -> None:
        self.config = lmcache_get_or_create_config()
        self.metadata = _get_default_metadata("org/model", obj_size=ELEMENTS)
        self.loop = EventLoopManager()
        self.loop.start()
        self.memory = LocalCPUBackend(config=self.config, metadata=self.metadata, dst_device="cpu")
        # The first plugin that the configuration names; without one, its remote_url.
        plugin = None if self.config.remote_url else self.config.remote_storage_plugins[0]
        self.backend = RemoteBackend(
            config=self.config,
            metadata=self.metadata,
            loop=self.loop.get_loop(),
            local_cpu_backend=self.memory,
            dst_device="cpu",
            plugin_name=plugin,
        )
        self.problems: list[str] = []

    def keys(self, first: int) -> list[Any]:
        return [create_test_key("org/model", f"chunk {i}") for i in range(first, first + CHUNKS)]

    def put(self, first: int) -> None:
        connector = self.backend.connection.getWrappedConnector()
        objects = []
        for i in range(first, first + CHUNKS):
            one = self.memory.allocate(connector.meta_shapes, connector.meta_dtypes, connector.meta_fmt)
            one.tensor.fill_(float(i % 200))
            objects.append(one)
        keys = self.keys(first)
        self.backend.batched_submit_put_task(keys, objects)
        give_up_at = time.monotonic() + WAIT_S
        while any(one.get_ref_count() > 1 for one in objects) and time.monotonic() < give_up_at:
            time.sleep(0.01)
        for one in objects:
            one.ref_count_down()

    def get(self, first: int) -> int:
        """How many came. Each must have the bytes and the shape that were put."""
        found = self.backend.batched_get_blocking(self.keys(first))
        for i, one in enumerate(found, first):
            if one is None:
                continue
            if not bool(torch.all(one.tensor == float(i % 200))):
                self.problems.append(f"chunk {i} has other bytes")
            one.ref_count_down()
        return sum(one is not None for one in found)

    def all_come(self, first: int) -> int:
        """Until all have come, or the time is over: what a failing cluster misses is asked for again."""
        give_up_at = time.monotonic() + WAIT_S
        while (came := self.get(first)) < CHUNKS and time.monotonic() < give_up_at:
            time.sleep(0.05)
        return came


def main() -> None:
    story = Story()
    report: dict[str, object] = {"layout": "metadata" if story.backend.connection else "none"}
    story.put(0)
    report["before"] = story.all_come(0)
    report["prefix_hits"] = story.backend.batched_contains([*story.keys(0), *story.keys(1000)[:1]])
    report["contains"] = [story.backend.contains(story.keys(0)[0]), story.backend.contains(story.keys(1000)[0])]
    print("stored", flush=True)
    sys.stdin.readline()
    report["after"] = story.all_come(0)
    story.put(500)
    report["new"] = story.all_come(500)
    report["removed"] = story.backend.remove(story.keys(0)[0])
    report["gone"] = not story.backend.contains(story.keys(0)[0])
    report["problems"] = story.problems
    story.backend.close()
    story.loop.stop()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
