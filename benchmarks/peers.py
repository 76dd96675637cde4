"""`python -m benchmarks.peers`: holdfast beside Mooncake Store, Redis and memcached, interleaved in one run.

Every round gives each store a turn, so that a bad minute of the machine is everybody's; figures are medians, and ratios
are taken round by round. `make bench-peers` installs the others into an environment of their own.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.baselines import spawned
from benchmarks.measure import interleaved, rate, rate_over
from benchmarks.peer_blocks import measure_blocks
from benchmarks.peer_clients import measure_clients
from benchmarks.peer_lines import Latencies, Line, libraries_silenced, print_lines
from benchmarks.peer_network import measure_network
from benchmarks.peer_stores import (
    LARGE,
    Holdfast,
    Mooncake,
    Started,
    Store,
    all_stores,
    ha_flags,
    start_mooncake,
)
from benchmarks.peer_trace import measure_trace
from benchmarks.processes import Cluster, memory_of
from tests.contract.servers import Server
from tests.waiting import wait_until

SMALL = 1 << 10
BATCH = 512
KEY_BYTES = 48
VERBS = ("put", "get", "exists")
BACK_WITHIN_S = 90.0


@dataclass(slots=True)
class Amounts:
    rounds: int = 9
    keys: int = 400
    batches: int = 6
    large: int = 6
    objects: int = 200_000
    kills: int = 3
    requests: int = 3_000
    seconds_before_a_kill: float = 3.0


QUICK = Amounts(rounds=2, keys=50, batches=1, large=1, objects=20_000, kills=1, requests=250, seconds_before_a_kill=1.0)


def measure_keys(stores: list[Store], amounts: Amounts) -> list[Line]:
    """One key at a time, 1 KiB. Each key is read once, so that no store answers from what its client remembers."""
    value = os.urandom(SMALL)

    def names(number: int) -> list[str]:
        return [f"one/{number}/{i}" for i in range(amounts.keys)]

    latencies = Latencies()

    def turn(verb: str, store: Store, number: int) -> float:
        step = {"put": lambda key: store.put(key, value), "get": store.get, "exists": store.exists}[verb]
        took = _times(step, names(number))
        latencies.note(verb, store.name, number, took)
        return len(took) / sum(took)

    lines = [
        each
        for verb, line in zip(VERBS, _in_turns(stores, amounts, "1 KiB, one key", "ops/s", VERBS, turn), strict=True)
        for each in (line, *latencies.lines(verb, line.name))
    ]
    for store in stores:
        for number in range(amounts.rounds + 1):
            store.remove_many(names(number))
    return lines


def _times(step: Callable[[str], object], keys: list[str]) -> list[float]:
    """How long the step took for each key."""
    took: list[float] = []
    for key in keys:
        began = time.perf_counter()
        step(key)
        took.append(time.perf_counter() - began)
    return took


def measure_batches(stores: list[Store], amounts: Amounts) -> list[Line]:
    value = os.urandom(SMALL)

    def batches(number: int) -> list[list[str]]:
        return [[f"many/{number}/{j}/{i}" for i in range(BATCH)] for j in range(amounts.batches)]

    def turn(verb: str, store: Store, number: int) -> float:
        def run() -> None:
            for keys in batches(number):
                if verb == "put":
                    store.put_many(keys, value)
                elif (store.get_many(keys) if verb == "get" else store.exists_many(keys)) != BATCH:
                    raise SystemExit(f"{store.name} does not have what was put")

        return rate(run, 1) * BATCH * amounts.batches

    lines = _in_turns(stores, amounts, f"1 KiB, {BATCH} keys", "keys/s", ("put", "get", "exists"), turn)
    for store in stores:
        for number in range(amounts.rounds + 1):
            for keys in batches(number):
                store.remove_many(keys)
    return lines


def measure_large(stores: list[Store], amounts: Amounts) -> list[Line]:
    def turn(verb: str, store: Store, number: int) -> float:
        keys = [f"large/{number}/{i}" for i in range(amounts.large)]
        figure = rate_over(store.put_large if verb == "put" else store.get_large, keys) * LARGE / (1 << 30)
        if verb == "get":
            store.remove_many(keys)
        return figure

    return _in_turns(stores, amounts, "16 MiB", "GiB/s", ("put", "get"), turn)


def _in_turns(
    stores: list[Store],
    amounts: Amounts,
    what: str,
    unit: str,
    verbs: tuple[str, ...],
    turn: Callable[[str, Store, int], float],
) -> list[Line]:
    lines = [Line(f"{verb}, {what}", unit) for verb in verbs]
    turns: dict[str, Callable[[int], float]] = {}
    for verb in verbs:
        for store in stores:
            if store.has_exists or verb != "exists":
                turns[f"{verb} {store.name}"] = lambda number, verb=verb, store=store: turn(verb, store, number)  # type: ignore[misc]
    figures = interleaved(amounts.rounds, turns)
    for verb, line in zip(verbs, lines, strict=True):
        line.figures = {s.name: figures[f"{verb} {s.name}"] for s in stores if f"{verb} {s.name}" in figures}
    return lines


def measure_memory(stores: list[Store], amounts: Amounts) -> list[Line]:
    """What an object takes in the process that keeps the catalogue; Redis and memcached keep its 16 bytes there too."""
    line = Line(f"memory an object, {amounts.objects:,} of 16 bytes, {KEY_BYTES}-byte keys", "bytes", {}, True)
    for store in stores:
        before = memory_of(store.pid)
        for first in range(0, amounts.objects, BATCH):
            keys = [f"{number:0{KEY_BYTES}d}" for number in range(first, min(first + BATCH, amounts.objects))]
            store.put_many(keys, b"0123456789abcdef")
        line.figures[store.name] = [(memory_of(store.pid) - before) / amounts.objects]
    return [line]


@dataclass(slots=True)
class Fall:
    """What a kill -9 of the primary under batches of puts did."""

    back_s: float
    acknowledged: int
    lost: int


def measure_failover(amounts: Amounts) -> list[Line]:
    back = Line("kill -9 of the primary, log in etcd: until a key is found again", "s", {}, True)
    lost = Line("the same: acknowledged keys of batches that are gone", "%", {}, True)
    for _ in range(amounts.kills):
        for name, fall in (("holdfast, etcd", _fall_of_holdfast), ("Mooncake, etcd", _fall_of_mooncake)):
            # A process of Mooncake's clients talks to one etcd in its life.
            with ProcessPoolExecutor(1, spawned) as process:
                fell = process.submit(fall, amounts).result()
            back.figures.setdefault(name, []).append(fell.back_s)
            lost.figures.setdefault(name, []).append(100 * fell.lost / fell.acknowledged)
    return [back, lost]


def _fall_of_holdfast(amounts: Amounts) -> Fall:
    with ExitStack() as opened:
        etcd = Started(opened).start_etcd("etcd")
        cluster = opened.enter_context(Cluster("2GiB", masters=2, coordination=f"etcd://{etcd}/fall"))
        cache = opened.enter_context(cluster.connect_warm())
        store = Holdfast("holdfast, etcd", cache, cluster.master.pid)
        leader = cluster.masters[cache.status().name][0]

        def found(key: str) -> bool:
            return cache.exists(key, touch=True)

        return _fall(store, leader.kill, leader.wait, found, amounts)


def _fall_of_mooncake(amounts: Amounts) -> Fall:
    with ExitStack() as opened:
        started = Started(opened)
        flags = ha_flags(started.start_etcd("etcd"))
        leader: Server = started.start("leader", start_mooncake, *flags)
        started.start("standby", start_mooncake, *flags, wait=False)
        store = Mooncake("Mooncake, etcd", f"etcd://{flags[2].partition('=')[2]}", leader.process.pid)
        opened.callback(store.store.close)
        time.sleep(3)  # It cannot be asked whether its standby follows; that looks at the log once a second.
        return _fall(store, leader.process.kill, leader.process.wait, store.exists, amounts)


def _fall(
    store: Store,
    kill: Callable[[], object],
    wait: Callable[[], object],
    found: Callable[[str], bool],
    amounts: Amounts,
) -> Fall:
    value = os.urandom(SMALL)
    acknowledged: list[str] = []
    began = time.monotonic()
    while time.monotonic() < began + amounts.seconds_before_a_kill:
        keys = [f"fall/{len(acknowledged) + i}" for i in range(BATCH)]
        store.put_many(keys, value)
        acknowledged += keys
    kill()
    wait()
    killed = time.monotonic()
    wait_until(lambda: found(acknowledged[0]), BACK_WITHIN_S, f"{store.name} is back")
    back_s = time.monotonic() - killed
    time.sleep(2)  # For what may be on its way to the new primary.
    pieces = [acknowledged[first : first + BATCH] for first in range(0, len(acknowledged), BATCH)]
    there = sum(store.exists_many(keys) for keys in pieces)
    return Fall(back_s, len(acknowledged), len(acknowledged) - there)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="see that it works; the figures mean little")
    parser.add_argument("--rounds", type=int, help="how many turns each store has; 9 unless given")
    parser.add_argument("--json", type=Path, help="write all rounds to this file, too, as JSON")
    parser.add_argument("--trace", type=Path, help="a trace of requests to replay, JSON lines with hash_ids")
    given = parser.parse_args()
    amounts = QUICK if given.quick else Amounts()
    amounts.rounds = given.rounds or amounts.rounds
    lines: list[Line] = []

    def add(more: list[Line]) -> None:
        """Keep what was measured, also if something goes wrong later."""
        lines.extend(more)
        if given.json is not None:
            given.json.write_bytes(msgspec.json.format(msgspec.json.encode(lines), indent=2))

    with libraries_silenced() as say:
        with all_stores() as stores:
            names = [store.name for store in stores]
            for measure in (measure_keys, measure_batches, measure_large, measure_memory):
                say(f"measuring: {measure.__name__.removeprefix('measure_')}")
                add(measure(stores, amounts))
            say("measuring: clients")
            add(measure_clients(stores, amounts.rounds, amounts.keys, amounts.batches))
        say("measuring: network")
        add(measure_network(amounts.rounds, amounts.batches, amounts.large, say))
        if given.trace is None:
            say("left out: the replay of a trace; give its path with --trace")
        else:
            say("measuring: trace")
            add(measure_trace(given.trace, amounts.requests))
        say("measuring: blocks")
        add(measure_blocks(amounts.rounds))
        say("measuring: failover")
        add(measure_failover(amounts))
    print_lines(lines, names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
