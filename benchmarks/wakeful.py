"""Cores that do not sleep.

A virtual core that has nothing to do is taken away by its host, and to get it back takes 50 us in a good hour and
milliseconds in a bad one: more than most of what is measured here. A machine of one's own does not do that. So a loop
of the lowest priority on each core keeps it; it runs only when nothing else would, and gives way at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.baselines import spawned

TURNS = 1_000_000


@contextmanager
def awake() -> Iterator[None]:
    loops = [spawned.Process(target=_spin, args=(core, os.getpid()), daemon=True) for core in os.sched_getaffinity(0)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def _spin(core: int, parent: int) -> None:
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while os.getppid() == parent:
        for _ in range(TURNS):
            pass
