"""Play many seeds, on one process per core: each seed is a world of its own, so nothing is shared."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice

from holdfast.simulation.runs.run import Run, run
from holdfast.simulation.scripts.draw import draw
from holdfast.simulation.scripts.script import Script, ScriptShape

WAITING_PER_PROCESS = 3
_ENDING = (signal.SIGINT, signal.SIGTERM)


def cores() -> int:
    return len(os.sched_getaffinity(0))


def play_seed(seed: int, shape: ScriptShape | None = None) -> Run:
    return run(draw(seed, shape))


def play_seeds(seeds: Iterable[int], jobs: int, scene: str = "") -> Iterator[Run]:
    """Each seed's run, as it ends."""
    return play_scripts((draw(seed, scene=scene) for seed in seeds), jobs)


def play_scripts(scripts: Iterable[Script], jobs: int) -> Iterator[Run]:
    """Each script's run, as it ends; in their order with one process, in any with more."""
    if jobs <= 1:
        prepare()
        for script in scripts:
            yield run(script)
        return
    left = iter(scripts)
    # A fork of a process with threads may hang; a newly started process does not.
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_prepare_worker)
    try:
        with _uninterrupted():  # The first one starts all processes.
            under_way: set[Future[Run]] = {pool.submit(run, one) for one in islice(left, jobs * WAITING_PER_PROCESS)}
        while under_way:
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            under_way |= {pool.submit(run, one) for one in islice(left, len(done))}
            for future in done:
                yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay an interrupt until afterwards: a half-started pool can be neither used nor ended.

    The mask is for the processes that are started, which inherit it. It does not suffice here: a signal of the whole
    process goes to any thread that does not block it, as those of NumPy's libraries, and its handler runs in this one.
    """
    came: list[int] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    handlers = {each: signal.signal(each, lambda number, _: came.append(number)) for each in _ENDING}
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        for number in came:
            signal.raise_signal(number)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def prepare() -> None:
    """Keep the garbage collector off imported objects, which live as long as the process."""
    gc.collect()
    gc.freeze()


def _prepare_worker() -> None:
    # Ctrl-C goes to every process of the terminal; only the first one should handle it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    prepare()
