"""`python -m benchmarks.pages`: pages of an engine's cache, as one object each or as one object for each buffer.

The pages are those of a model with 32 layers in SGLang's two kinds of layout: page_first, where keys and values lie in
two pieces, and layer_first, where each layer has two. Both ways move the same bytes; they differ in how many objects
there are to place, commit, look up and keep.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

import numpy as np

from benchmarks.processes import Cluster, wait_until_mapped
from holdfast import memory_at
from holdfast.client.cache import Cache

PAGES = 64
PAGE_BYTES = 1 << 20
ROUNDS = 9
LAYOUTS = {"page_first": 2, "layer_first": 64}
Pieces = list[list[memoryview]]


def main() -> None:
    memory = np.random.default_rng(1).integers(0, 256, PAGES * PAGE_BYTES, np.uint8)
    print(f"{PAGES} pages of {PAGE_BYTES >> 10} KiB, median of {ROUNDS} rounds, ms for the batch")
    with Cluster("2GiB") as cluster, cluster.connect_warm() as writer, cluster.connect_warm() as reader:
        for layout, buffers in LAYOUTS.items():
            size = PAGE_BYTES // buffers
            # As in the pool: the pieces of a page are far from each other.
            pieces = [
                [memory_at(memory.ctypes.data + (piece * PAGES + page) * size, size) for piece in range(buffers)]
                for page in range(PAGES)
            ]
            for way, split in (("an object per page", False), ("an object per buffer", True)):
                figures = measure(writer, reader, pieces, split, f"{layout}/{split}")
                told = ", ".join(f"{name} {figure * 1e3:.1f}" for name, figure in figures.items())
                print(f"{layout} ({buffers} buffers), {way}: {told}", flush=True)
                wait_until_mapped()


def measure(writer: Cache, reader: Cache, pieces: Pieces, split: bool, name: str) -> dict[str, float]:
    values: Pieces = [[piece] for page in pieces for piece in page] if split else pieces
    seconds: dict[str, list[float]] = {"put": [], "exists": [], "get": []}
    for number in range(ROUNDS):
        keys = [f"{name}/{number}/{each}" for each in range(len(values))]
        took(seconds["put"], lambda keys=keys: writer.put_many(zip(keys, values, strict=True), outcomes=True))
        took(seconds["exists"], lambda keys=keys: reader.exists_many(keys))
        took(seconds["get"], lambda keys=keys: reader.get_many_into(keys, values))
        writer.remove_matching(f"^{name}/", force=True)
    return {what: statistics.median(times) for what, times in seconds.items()}


def took(times: list[float], call: Callable[[], list[object]]) -> None:
    began = time.perf_counter()
    answers = call()
    times.append(time.perf_counter() - began)
    bad = list(itertools.islice((each for each in answers if not isinstance(each, int) or not each), 1))
    if bad:
        raise SystemExit(f"not every object was moved: {bad[0]!r}")


if __name__ == "__main__":
    main()
