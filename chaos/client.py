"""`python -m chaos.client`: a client process that works until SIGTERM and writes down all it sees."""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import holdfast
from chaos.history import LEFT_OUT, HistoryFile, seen
from chaos.workload import Step, Workload
from holdfast.client.async_cache import AsyncCache
from holdfast.client.cache import Cache
from holdfast.client.state.client import Core
from holdfast.errors import HoldfastError, LeaseLost, ObjectNotFound, Refused, TryAgain
from holdfast.simulation.scripts.history import value_of

READS = ("get", "view", "get_many")
CALLS_AT_ONCE = 2
"""Of a client on asyncio."""


@dataclass(eq=False)
class Witness:
    """Notes each call in the history, and since when a lease may have answered it."""

    _history: HistoryFile
    _lease_ns: int
    _read_at: dict[str, int] = field(default_factory=dict)
    _without: int = 0
    _without_before: dict[int, int] = field(default_factory=dict)

    def watch_requests(self) -> None:
        """Count questions that leave out what lies on nodes that do not answer: a miss proves nothing then (ADR 41)."""
        unreachable = Core.unreachable_segments

        def noted(core: Core) -> list[int]:
            found = unreachable(core)
            self._without += bool(found)
            return found

        Core.unreachable_segments = noted  # type: ignore[method-assign]

    def began(self, step: Step) -> None:
        now = time.monotonic_ns()
        since: dict[str, int] = {}
        if step.verb in READS:
            # A location may be reused while its lease lives, so what is read may be as old as that.
            oldest = now - self._lease_ns
            since = {key: oldest for key in step.keys if self._read_at.get(key, oldest) > oldest}
            self._located(step)
        self._without_before[step.number] = self._without
        self._history.began(step.number, step.verb, step.keys, step.size, since, step.pin)

    def done(self, step: Step, result: object) -> None:
        self._located(step)
        without = self._without_before.pop(step.number) != self._without
        self._history.ended(step.number, "done", result, without=without)

    def _located(self, step: Step) -> None:
        """From its begin to its end, whatever that is, a read may leave leases to those that begin later."""
        if step.verb in READS:
            self._read_at.update(dict.fromkeys(step.keys, time.monotonic_ns()))

    def failed(self, step: Step, error: Exception) -> None:
        self._located(step)
        del self._without_before[step.number]
        if isinstance(error, Refused | TryAgain | LeaseLost):
            self._history.ended(step.number, "refused", None, f"{error.code}: {error}")
        elif isinstance(error, HoldfastError):
            self._history.ended(step.number, "unknown", None, f"{error.code}: {error}")
        else:
            self._history.ended(step.number, "unknown", None, repr(error))
            self._history.defect(f"{step.verb} raised {error!r}")


def do(cache: Cache, step: Step) -> object:
    key = step.keys[0]
    match step.verb:
        case "put" | "upsert":
            value = value_of(step.number, step.size)
            return cache.put(
                key, value, replicas=step.replicas, upsert=step.verb == "upsert", hard_pin=step.pin == "hard"
            )
        case "put_many":
            return cache.put_many(dict.fromkeys(step.keys, value_of(step.number, step.size)), replicas=step.replicas)
        case "get":
            return seen(cache.get(key, None))
        case "get_many":
            errors: dict[str, HoldfastError] = {}
            found = cache.get_many(step.keys, errors=errors)
            return {**{key: seen(value) for key, value in found.items()}, **dict.fromkeys(errors, LEFT_OUT)}
        case "view":
            try:
                with cache.view(key) as view:
                    return seen(bytes(view))
            except ObjectNotFound:
                return None
        case "exists":
            return cache.exists(key)
        case "remove" | "force_remove":
            return cache.remove(key, force=step.verb == "force_remove")
    raise AssertionError(step.verb)


async def do_async(cache: AsyncCache, step: Step) -> object:
    key = step.keys[0]
    match step.verb:
        case "put" | "upsert":
            value = value_of(step.number, step.size)
            return await cache.put(
                key, value, replicas=step.replicas, upsert=step.verb == "upsert", hard_pin=step.pin == "hard"
            )
        case "put_many":
            return await cache.put_many(
                dict.fromkeys(step.keys, value_of(step.number, step.size)), replicas=step.replicas
            )
        case "get":
            return seen(await cache.get(key, None))
        case "get_many":
            errors: dict[str, HoldfastError] = {}
            found = await cache.get_many(step.keys, errors=errors)
            return {**{key: seen(value) for key, value in found.items()}, **dict.fromkeys(errors, LEFT_OUT)}
        case "view":
            try:
                async with cache.view(key) as view:
                    return seen(bytes(view))
            except ObjectNotFound:
                return None
        case "exists":
            return await cache.exists(key)
        case "remove" | "force_remove":
            return await cache.remove(key, force=step.verb == "force_remove")
    raise AssertionError(step.verb)


def work(options: argparse.Namespace, witness: Witness, workload: Workload) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with until_it_connects(options, stopping.is_set) as cache:
        while not stopping.wait(options.pause):
            step = workload.next(time.monotonic())
            witness.began(step)
            try:
                result = do(cache, step)
            except Exception as error:  # noqa: BLE001 - Whatever it is, it is told.
                witness.failed(step, error)
            else:
                witness.done(step, result)


def until_it_connects(options: argparse.Namespace, stopping: Callable[[], bool]) -> Cache:
    while True:
        try:
            return holdfast.connect(options.address, timeout=options.timeout, shared_memory=options.shared)
        except HoldfastError:
            if stopping():
                raise
            time.sleep(0.2)


async def work_async(options: argparse.Namespace, witness: Witness, workload: Workload) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    while not stopping.is_set():
        try:
            cache = await holdfast.connect_async(options.address, timeout=options.timeout, shared_memory=options.shared)
        except HoldfastError:
            await asyncio.sleep(0.2)
            continue
        async with cache:
            await asyncio.gather(*(_calls(cache, options, witness, workload, stopping) for _ in range(CALLS_AT_ONCE)))


async def _calls(
    cache: AsyncCache, options: argparse.Namespace, witness: Witness, workload: Workload, stopping: asyncio.Event
) -> None:
    while not stopping.is_set():
        await asyncio.sleep(options.pause * CALLS_AT_ONCE * random.uniform(0.5, 1.5))
        step = workload.next(time.monotonic())
        witness.began(step)
        calling: Awaitable[object] = do_async(cache, step)
        try:
            result = await calling
        except Exception as error:  # noqa: BLE001 - Whatever it is, it is told.
            witness.failed(step, error)
        else:
            witness.done(step, result)


def main() -> None:
    parser = argparse.ArgumentParser(prog="chaos.client")
    parser.add_argument("--address", required=True)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--client", type=int, required=True)
    parser.add_argument("--life", type=int, default=0)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--copies", type=int, nargs=2, default=(1, 1), metavar=("FEWEST", "MOST"))
    parser.add_argument("--lease-ms", type=int, required=True)
    parser.add_argument("--timeout", type=float, default=15.0)
    parser.add_argument("--pause", type=float, default=0.01)
    parser.add_argument("--shared", action="store_true", help="take the bytes of nodes from shared memory")
    parser.add_argument("--asyncio", action="store_true")
    options = parser.parse_args()
    history = HistoryFile(options.history)
    witness = Witness(history, options.lease_ms * 1_000_000)
    witness.watch_requests()
    workload = Workload(options.client, options.life, options.seed, tuple(options.copies))
    if options.asyncio:
        asyncio.run(work_async(options, witness, workload))
    else:
        work(options, witness, workload)
    history.close()


if __name__ == "__main__":
    main()
