"""Rounds, medians, and the rows of the table."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

DURABLE = "memory:// (one master, no log to survive it)"
"""What is said beside the put figures of a single master."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. `figure` is absolute; `ratio` is to `baseline` in the same run; `target` is for either."""

    name: str
    figure: float
    unit: str
    ratio: float | None = None
    baseline: str = ""
    target: str = ""
    reached: bool | None = None
    durability: str = ""
    note: str = ""


@dataclass(slots=True)
class Scale:
    """How much to measure. `--quick` is for seeing that it works: its figures mean little."""

    quick: bool = False
    rounds: int = field(init=False)

    def __post_init__(self) -> None:
        self.rounds = 3 if self.quick else 9

    def of(self, full: int, quick: int) -> int:
        return quick if self.quick else full


def ratio_row(
    name: str, figures: list[float], unit: str, base: list[float], baseline: str, at_least: float, durability: str = ""
) -> Row:
    """A figure and its ratio to a baseline, round by round."""
    ratio = statistics.median(ours / theirs for ours, theirs in zip(figures, base, strict=True))
    return Row(
        name=name,
        figure=statistics.median(figures),
        unit=unit,
        ratio=ratio,
        baseline=baseline,
        target=f"ratio >= {at_least:g}",
        reached=ratio >= at_least,
        durability=durability,
    )


def least_row(name: str, figure: float, unit: str, at_least: float | None, durability: str = "", note: str = "") -> Row:
    return Row(
        name=name,
        figure=figure,
        unit=unit,
        target=f">= {at_least:,}" if at_least is not None else "",
        reached=figure >= at_least if at_least is not None else None,
        durability=durability,
        note=note,
    )


def most_row(name: str, figure: float, unit: str, at_most: float, durability: str = "", note: str = "") -> Row:
    return Row(
        name=name,
        figure=figure,
        unit=unit,
        target=f"<= {at_most:,}",
        reached=figure <= at_most,
        durability=durability,
        note=note,
    )


def rate(step: Callable[[], object], count: int) -> float:
    """Steps a second."""
    started = time.perf_counter()
    for _ in range(count):
        step()
    return count / (time.perf_counter() - started)


def rate_over(step: Callable[[str], object], keys: Iterable[str]) -> float:
    """Keys a second, one step for each."""
    keys = list(keys)
    started = time.perf_counter()
    for key in keys:
        step(key)
    return len(keys) / (time.perf_counter() - started)


def interleaved(rounds: int, turns: dict[str, Callable[[int], float]]) -> dict[str, list[float]]:
    """Every turn once in each round; the first round warms up and is not counted."""
    figures: dict[str, list[float]] = {name: [] for name in turns}
    gc.collect()
    for number in range(rounds + 1):
        for name, turn in turns.items():
            figure = turn(number)
            if number:
                figures[name].append(figure)
    return figures
