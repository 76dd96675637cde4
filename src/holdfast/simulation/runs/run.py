"""One script from beginning to end: faults, then healing, with every checker watching."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from holdfast.simulation.checks.checkers import Checkers
from holdfast.simulation.kernel.scheduler import MS
from holdfast.simulation.kernel.violations import Broken, Violation
from holdfast.simulation.scripts.script import Script
from holdfast.simulation.scripts.stories import Line, lines_of_calls
from holdfast.simulation.scripts.stories import told as story_of
from holdfast.simulation.world.world import World, undisturbed

SETTLE_MS = 25_000
"""Within this time after healing, the world must be at rest again."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    script: Script
    violation: Violation | None
    steps: int
    trace: int
    lines: tuple[Line, ...] = ()
    """The lines of the story, if it was asked for."""

    @property
    def story(self) -> list[str]:
        """The story of the violation's subject, or of everything."""
        return story_of(self.lines, self.violation.subject if self.violation is not None else "")


def run(script: Script, tell: bool = False) -> Run:
    """Play the script. The same script gives the same run, always."""
    with _quiet_end(), undisturbed():
        return _play(script, tell)


def within(script: Script, look: Callable[[World], T]) -> T:
    """For stories: the result of `look`, which plays the script itself in a world."""
    with _quiet_end(), undisturbed():
        return _look(script, look)


def _look(script: Script, look: Callable[[World], T]) -> T:
    world = World(script)
    try:
        return look(world)
    finally:
        world.end()


def _play(script: Script, tell: bool) -> Run:
    world = World(script)
    world.lines = [] if tell else None
    checkers = Checkers(world)
    violation: Violation | None = None
    healed_ms = script.heals_ms
    try:
        world.play(healed_ms)
        checkers.healed()
        world.scheduler.run_until((healed_ms + SETTLE_MS) * MS, checkers.converged)
        checkers.at_end()
    except Broken as broken:
        violation = broken.violation
    world.end()
    lines = (*world.lines, *lines_of_calls(world.history.calls)) if world.lines is not None else ()
    return Run(script, violation, world.scheduler.steps, world.scheduler.trace.intdigest(), lines)


def owners_of(script: Script, until_ms: int) -> list[tuple[int, str]]:
    """(time, owner) of every event up to that moment."""
    with _quiet_end(), undisturbed():
        return _owners(script, until_ms)


def _owners(script: Script, until_ms: int) -> list[tuple[int, str]]:
    world = World(script)
    owners = world.scheduler.owners = []
    world.play(until_ms)
    world.end()
    return owners


def told(script: Script) -> Run:
    """The same run again, with its story."""
    return run(script, tell=True)


@contextmanager
def _quiet_end() -> Iterator[None]:
    """Silence Python's complaints about dead processes, whose code is dropped in the middle of its work."""
    said = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = said
