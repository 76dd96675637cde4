"""`python -m benchmarks.peer_blocks`: KV blocks between callers' buffers and the store, holdfast beside Mooncake.

As engines do it: batches of 8 MiB in blocks, `put_many` and `get_many_into` beside `batch_put_from` and
`batch_get_into`. Mooncake's client lends the memory itself, so one client's bytes stay in its own process; four
processes read what another one has put. Every key is read twice: first without a lease ("cold"), then under one.
"""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any, Protocol

import holdfast
from benchmarks.baselines import workers
from benchmarks.measure import interleaved, rate
from benchmarks.peer_lines import Line, libraries_silenced, print_lines
from benchmarks.peer_stores import SEGMENT, Started, mooncake_client, start_mooncake
from benchmarks.processes import Cluster, wait_until_mapped
from holdfast.client.cache import Cache
from holdfast.transport.bulk_copy import address_of

GIB = 1 << 30
SHAPES = ((32, 256 << 10), (128, 64 << 10))
BATCHES = 3
"""A turn."""
PROCESSES = 4
ANSWER_WITHIN_S = 60.0
EXISTING = 1_000


class Blocks:
    """Touched memory of a batch, cut into blocks."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self.memory = mmap.mmap(-1, count * size)
        self.memory[:] = os.urandom(count * size)
        view = memoryview(self.memory)
        self.views = [view[start : start + size] for start in range(0, count * size, size)]
        at = address_of(view)
        self.addresses = [*range(at, at + count * size, size)]
        self.sizes = [size] * count


class BlockStore(Protocol):
    name: str

    def put(self, keys: list[str], blocks: Blocks) -> None: ...
    def get(self, keys: list[str], blocks: Blocks, verify: bool) -> None: ...
    def exists(self, keys: list[str]) -> int: ...
    def remove(self, keys: list[str]) -> None: ...


class HoldfastBlocks:
    name = "holdfast"

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def put(self, keys: list[str], blocks: Blocks) -> None:
        if self._cache.put_many(zip(keys, blocks.views, strict=True), outcomes=True) != [True] * len(keys):
            raise SystemExit("holdfast did not store the blocks")

    def get(self, keys: list[str], blocks: Blocks, verify: bool) -> None:
        if self._cache.get_many_into(keys, blocks.views, verify=verify) != blocks.sizes:
            raise SystemExit("holdfast does not have the blocks")

    def exists(self, keys: list[str]) -> int:
        return sum(self._cache.exists_many(keys))

    def remove(self, keys: list[str]) -> None:
        self._cache.remove_many(keys, force=True)


class MooncakeBlocks:
    name = "Mooncake"

    def __init__(self, store: Any) -> None:
        self._store = store

    def register(self, blocks: Blocks) -> None:
        if self._store.register_buffer(blocks.addresses[0], blocks.count * blocks.size) != 0:
            raise SystemExit("Mooncake does not register the buffers")

    def put(self, keys: list[str], blocks: Blocks) -> None:
        if any(self._store.batch_put_from(keys, blocks.addresses, blocks.sizes)):
            raise SystemExit("Mooncake did not store the blocks")

    def get(self, keys: list[str], blocks: Blocks, verify: bool) -> None:
        """It has no checksums, so nothing is verified."""
        if self._store.batch_get_into(keys, blocks.addresses, blocks.sizes) != blocks.sizes:
            raise SystemExit("Mooncake does not have the blocks")

    def exists(self, keys: list[str]) -> int:
        return sum(found == 1 for found in self._store.batch_is_exist(keys))

    def remove(self, keys: list[str]) -> None:
        self._store.batch_remove(keys, True)


def measure_blocks(rounds: int) -> list[Line]:
    lines: list[Line] = []
    with ExitStack() as opened:
        cluster = opened.enter_context(Cluster("2GiB"))
        master = Started(opened).start("mooncake", start_mooncake)
        address = f"127.0.0.1:{master.port}"
        mooncake = MooncakeBlocks(mooncake_client(address, SEGMENT))
        opened.callback(mooncake._store.close)
        ours = HoldfastBlocks(opened.enter_context(cluster.connect_warm()))
        stores: list[BlockStore] = [ours, mooncake]
        for count, size in SHAPES:
            blocks = Blocks(count, size)
            mooncake.register(blocks)
            lines += _one_client(stores, blocks, rounds)
            lines.append(_four_processes(stores, blocks, rounds, {"holdfast": cluster.address, "Mooncake": address}))
        lines.append(_existing(stores, rounds))
    return lines


def _keys(number: int, which: str, count: int) -> list[list[str]]:
    return [[f"{which}/{count}/{number}/{batch}/{i}" for i in range(count)] for batch in range(BATCHES)]


def _one_client(stores: list[BlockStore], blocks: Blocks, rounds: int) -> list[Line]:
    count = blocks.count
    what = f"{count} blocks of {blocks.size >> 10} KiB"

    def turn(store: BlockStore, verb: str, verify: bool, number: int) -> float:
        batches = iter(_keys(number, "checked" if verify else "plain", count))
        if verb == "put":
            return rate(lambda: store.put(next(batches), blocks), BATCHES) * count * blocks.size / GIB
        figure = rate(lambda: store.get(next(batches), blocks, verify), BATCHES) * count * blocks.size / GIB
        if verb == "get leased":
            for keys in _keys(number, "checked" if verify else "plain", count):
                store.remove(keys)
        return figure

    wanted = [(verb, verify) for verify in (False, True) for verb in ("put", "get cold", "get leased")]
    turns: dict[str, Callable[[int], float]] = {}
    for verb, verify in wanted:
        for store in stores:
            turns[f"{verb} {verify} {store.name}"] = (
                lambda number, store=store, verb=verb, verify=verify: turn(store, verb, verify, number)  # type: ignore[misc]
            )
    figures = interleaved(rounds, turns)
    return [
        Line(
            f"{verb}, {what}{'' if verb == 'put' else ', checksums compared' if verify else ', not compared'}",
            "GiB/s",
            {store.name: figures[f"{verb} {verify} {store.name}"] for store in stores},
        )
        for verb, verify in wanted
        if not (verb == "put" and verify)
    ]


def _existing(stores: list[BlockStore], rounds: int) -> Line:
    keys = [f"existing/{i}" for i in range(EXISTING)]
    small = Blocks(EXISTING, 64)
    for store in stores:
        if isinstance(store, MooncakeBlocks):
            store.register(small)
        store.put(keys, small)

    def turn(store: BlockStore) -> float:
        started = time.perf_counter()
        for _ in range(BATCHES):
            if store.exists(keys) != EXISTING:
                raise SystemExit(f"{store.name} does not have the keys")
        return (time.perf_counter() - started) / BATCHES * 1e3

    turns = {store.name: lambda _, store=store: turn(store) for store in stores}  # type: ignore[misc]
    return Line(f"exists, {EXISTING:,} keys", "ms", interleaved(rounds, turns), less_is_better=True)


def _four_processes(stores: list[BlockStore], blocks: Blocks, rounds: int, addresses: dict[str, str]) -> Line:
    with ExitStack() as opened:
        readers = {name: opened.enter_context(_readers(name, address, blocks)) for name, address in addresses.items()}

        def turn(store: BlockStore, number: int) -> float:
            batches = _keys(number, "shared", blocks.count)
            for keys in batches:
                store.put(keys, blocks)
            started = time.perf_counter()
            for line in readers[store.name]:
                line.send(batches)
            for line in readers[store.name]:
                if not line.poll(ANSWER_WITHIN_S):
                    raise SystemExit(f"a reader of {store.name} does not answer")
                line.recv()
            seconds = time.perf_counter() - started
            for keys in batches:
                store.remove(keys)
            return PROCESSES * BATCHES * blocks.count * blocks.size / seconds / GIB

        turns = {store.name: lambda number, store=store: turn(store, number) for store in stores}  # type: ignore[misc]
        figures = interleaved(rounds, turns)
    what = f"{blocks.count} blocks of {blocks.size >> 10} KiB"
    return Line(f"get cold, {what}, {PROCESSES} processes at once", "GiB/s", figures)


@contextmanager
def _readers(name: str, address: str, blocks: Blocks) -> Iterator[list[Connection]]:
    with workers(_read_what_is_asked_for, [(name, address, blocks.count, blocks.size)] * PROCESSES) as lines:
        for line in lines:
            if not line.poll(ANSWER_WITHIN_S):
                raise SystemExit(f"a reader of {name} did not start")
            line.recv()
        yield lines


def _read_what_is_asked_for(line: Connection, name: str, address: str, count: int, size: int) -> None:
    blocks = Blocks(count, size)
    store: BlockStore
    if name == "holdfast":
        cache = holdfast.connect(address)
        # The first read maps the memory; filling in its page tables takes a while.
        cache.put(f"warm/{os.getpid()}", b"up")
        cache.get(f"warm/{os.getpid()}")
        wait_until_mapped()
        store = HoldfastBlocks(cache)
    else:
        store = MooncakeBlocks(mooncake_client(address, 0))
        store.register(blocks)
    line.send("ready")
    while True:
        try:
            batches = line.recv()
        except EOFError:
            os._exit(0)  # Mooncake's threads do not end by themselves.
        for keys in batches:
            store.get(keys, blocks, True)
        line.send("read")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.peer_blocks")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    with libraries_silenced():
        lines = measure_blocks(given.rounds)
    print_lines(lines, ["holdfast", "Mooncake"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
