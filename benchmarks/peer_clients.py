"""Four clients at once, each a process of its own: all stores of `benchmarks.peers`, a turn for each in every round."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.baselines import ANSWER_WITHIN_S, workers
from benchmarks.measure import interleaved
from benchmarks.peer_lines import Latencies, Line
from benchmarks.peer_stores import Refused, Store, connected

CLIENTS = 4
VALUE = os.urandom(1 << 10)
BATCH = 512
VERBS = ("put", "get", "exists", "put_many", "get_many")


def measure_clients(stores: list[Store], rounds: int, keys: int, batches: int) -> list[Line]:
    latencies = Latencies()
    with ExitStack() as opened:
        crowds = {store.name: opened.enter_context(_clients(store)) for store in stores}

        def turn(verb: str, store: Store, number: int) -> float:
            figure, took = _ask_all(crowds[store.name], verb, number, batches if verb.endswith("many") else keys)
            latencies.note(verb, store.name, number, took)
            return figure

        turns: dict[str, Callable[[int], float]] = {
            f"{verb} {store.name}": lambda number, verb=verb, store=store: turn(verb, store, number)  # type: ignore[misc]
            for verb in VERBS
            for store in stores
            if store.has_exists or verb != "exists"
        }
        figures = interleaved(rounds, turns)
    lines: list[Line] = []
    for verb in VERBS:
        what = f"1 KiB, {BATCH} keys" if verb.endswith("many") else "1 KiB, one key"
        name = f"{verb.partition('_')[0]}, {what}, {CLIENTS} clients"
        of_each = {s.name: figures[f"{verb} {s.name}"] for s in stores if f"{verb} {s.name}" in figures}
        lines += [Line(name, "keys/s", of_each), *latencies.lines(verb, name)]
    return lines


def _ask_all(pipes: list[Connection], verb: str, number: int, count: int) -> tuple[float, list[float]]:
    """Keys a second of all of them together, and how long each call took."""
    took: list[float] = []
    began = time.perf_counter()
    for pipe in pipes:
        pipe.send((verb, number, count))
    for pipe in pipes:
        took += _answer(pipe)
    seconds = time.perf_counter() - began
    return len(took) * (BATCH if verb.endswith("many") else 1) / seconds, took


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(ANSWER_WITHIN_S):
        raise SystemExit("one of the clients does not answer")
    return pipe.recv()


@contextmanager
def _clients(store: Store) -> Iterator[list[Connection]]:
    given = [(store.name, store.address, number) for number in range(CLIENTS)]
    with workers(_do_what_is_asked_for, given) as pipes:
        for pipe in pipes:
            _answer(pipe)
        yield pipes


def _do_what_is_asked_for(pipe: Connection, name: str, address: str, client: int) -> None:
    store = connected(name, address)
    pipe.send("ready")
    while True:
        try:
            verb, number, count = pipe.recv()
        except EOFError:
            os._exit(0)  # Mooncake's threads do not end by themselves.
        took: list[float] = []
        for each in range(count):
            began = time.perf_counter()
            _call(store, verb, f"clients/{client}/{number}/{each}")
            took.append(time.perf_counter() - began)
        pipe.send(took)


def _call(store: Store, verb: str, key: str) -> None:
    keys = [f"{key}/{place}" for place in range(BATCH)] if verb.endswith("many") else []
    if verb == "put":
        store.put(key, VALUE)
    elif verb == "put_many":
        store.put_many(keys, VALUE)
    elif verb == "get" and store.get(key) != VALUE:
        raise Refused(f"{store.name} does not have what was put")
    elif verb == "exists" and not store.exists(key):
        raise Refused(f"{store.name} does not know what was put")
    elif verb == "get_many" and store.get_many(keys) != BATCH:
        raise Refused(f"{store.name} does not have all that was put")
