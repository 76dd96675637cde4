"""One script from beginning to end: faults, then healing, with every checker watching."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.simulation.checkers import Checkers
from holdfast.simulation.scheduler import MS
from holdfast.simulation.script import FAULT_MS, Script
from holdfast.simulation.violations import Broken, Violation
from holdfast.simulation.world import World, undisturbed

HEAL_MS = 15_000
"""The longest that a fault lasts, so that all are over this long after the last began."""
SETTLE_MS = 25_000
"""Within this long after healing the world must be as if nothing had been."""


@dataclass(frozen=True, slots=True)
class Run:
    script: Script
    violation: Violation | None
    steps: int
    trace: int
    story: tuple[str, ...]
    """What happened, a line each, if it was asked for."""


def run(script: Script, tell: bool = False) -> Run:
    """Play the script. The same script gives the same run, always."""
    with _quiet_end():
        with undisturbed():
            done = _play(script, tell)
        gc.collect()
        return done


def _play(script: Script, tell: bool) -> Run:
    world = World(script)
    world.lines = [] if tell else None
    checkers = Checkers(world)
    violation: Violation | None = None
    try:
        world.play(FAULT_MS + HEAL_MS)
        checkers.healed()
        world.scheduler.run_until((FAULT_MS + HEAL_MS + SETTLE_MS) * MS, checkers.settled)
        checkers.at_end()
    except Broken as broken:
        violation = broken.violation
    world.end()
    return Run(script, violation, world.scheduler.steps, world.scheduler.trace.intdigest(), checkers.story())


def told(script: Script) -> Run:
    """The same run again, with its story."""
    return run(script, tell=True)


@contextmanager
def _quiet_end() -> Iterator[None]:
    """Code of dead processes is thrown away in the middle of what it was doing, which Python would complain about."""
    said = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = said
