"""The table of the benchmarks beside other stores: an operation a line, a store a column, and the ratio to Mooncake."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Line:
    """One operation, and what each store made of it: round by round, or once."""

    name: str
    unit: str
    figures: dict[str, list[float]] = field(default_factory=dict)
    less_is_better: bool = False

    def median(self, store: str) -> float | None:
        figures = self.figures.get(store)
        return statistics.median(figures) if figures else None

    def ratio(self, store: str, of: str) -> float | None:
        ours, theirs = self.figures.get(store), self.figures.get(of)
        if not ours or not theirs or not all(theirs):
            return None
        return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


class Latencies:
    """How long single calls took, in each counted round: the middle one, and the slowest in a hundred."""

    def __init__(self) -> None:
        self._figures: dict[tuple[str, str], dict[str, list[float]]] = {}

    def note(self, verb: str, store: str, number: int, seconds: list[float]) -> None:
        """Of round `number`. That of 0 is not counted."""
        if not number:
            return
        ordered = sorted(seconds)
        for share, at in (("p50", len(ordered) // 2), ("p99", len(ordered) * 99 // 100)):
            self._figures.setdefault((verb, share), {}).setdefault(store, []).append(ordered[at] * 1e6)

    def lines(self, verb: str, name: str) -> list[Line]:
        return [
            Line(f"{name}: {share} of a call", "us", self._figures.get((verb, share), {}), less_is_better=True)
            for share in ("p50", "p99")
        ]


def print_lines(lines: list[Line], names: list[str]) -> None:
    width = max(len(line.name) for line in lines) + 1
    print(" " * width + "".join(f"{name:>16}" for name in names) + f"{'unit':>8}  to Mooncake")
    for line in lines:
        shown = [line.median(name) for name in names]
        cells = "".join(f"{'' if one is None else _number(one):>16}" for one in shown)
        pairs = (("holdfast", "Mooncake"), ("holdfast, etcd", "Mooncake, etcd"))
        ratios = [line.ratio(*pair) for pair in pairs]
        said = " / ".join("" if ratio is None else f"{ratio:.2f}" for ratio in ratios).strip(" /")
        better = " (less is better)" if line.less_is_better and said else ""
        print(f"{line.name:<{width}}{cells}{line.unit:>8}  {said}{better}".rstrip(), flush=True)


def _number(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 100 or figure == int(figure) else f"{figure:,.2f}"


@contextmanager
def libraries_silenced() -> Iterator[Callable[[str], None]]:
    """What libraries write to standard error goes nowhere; what is said by what this gives goes there."""
    own = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield lambda text: os.write(own, f"{text}\n".encode()) and None
    finally:
        os.dup2(own, 2)
        os.close(own)
        os.close(nowhere)
