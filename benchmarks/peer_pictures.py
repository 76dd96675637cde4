"""`python -m benchmarks.peer_pictures peers.json docs/pictures`: pictures of what `benchmarks.peers --json` wrote.

- peers-ratios.svg: how many times as good holdfast is as each other store, an operation a line
- peers-latency.svg: the middle and the slowest in a hundred of single calls

Needs matplotlib, which the extra `lab` brings.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.peer_lines import Line

OURS = "holdfast"
COLOURS = {"holdfast": "#1b6ac9", "Mooncake": "#d1495b", "Redis": "#c98a1b", "memcached": "#3f8f5f"}
MARKS = {"Mooncake": "o", "Redis": "s", "memcached": "^"}
LATENCY = re.compile(r"(?P<what>.+): (?P<share>p50|p99) of a call")
INK, FAINT = "#222222", "#d8d8d8"


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.peer_pictures")
    parser.add_argument("measured", type=Path, help="the file that `python -m benchmarks.peers --json` wrote")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    given = parser.parse_args()
    lines = msgspec.json.decode(given.measured.read_bytes(), type=list[Line])
    draw_ratios([line for line in lines if not LATENCY.fullmatch(line.name)], given.folder / "peers-ratios.svg")
    draw_latencies([line for line in lines if LATENCY.fullmatch(line.name)], given.folder / "peers-latency.svg")
    return 0


def times_as_good(line: Line, peer: str) -> float | None:
    """Above 1 where holdfast is ahead. None: one of the two was not measured, or lost nothing at all."""
    ratio = line.ratio(OURS, peer)
    if not ratio:
        return None
    return 1 / ratio if line.less_is_better else ratio


def draw_ratios(lines: list[Line], path: Path) -> None:
    shown = [line for line in lines if any(times_as_good(line, peer) for peer in MARKS)]
    figure, axes = _empty(len(shown))
    for peer, mark in MARKS.items():
        found = [(at, place) for place, line in enumerate(shown) if (at := times_as_good(line, peer)) is not None]
        good, places = [at for at, _ in found], [place for _, place in found]
        axes.scatter(good, places, marker=mark, s=36, color=COLOURS[peer], label=peer, zorder=3)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel(f"times as good as the other store (right of 1: {OURS} is ahead)")
    _finish(figure, axes, [line.name for line in shown], path)


def draw_latencies(lines: list[Line], path: Path) -> None:
    calls: dict[str, dict[str, Line]] = {}
    for line in lines:
        found = LATENCY.fullmatch(line.name)
        assert found is not None, "it was chosen by its name"
        calls.setdefault(found["what"], {})[found["share"]] = line
    figure, axes = _empty(len(calls))
    for number, (store, colour) in enumerate(COLOURS.items()):
        for place, shares in enumerate(calls.values()):
            middle, slow = (shares[share].median(store) for share in ("p50", "p99"))
            if middle is None or slow is None:
                continue
            height = place + (number - 1.5) * 0.18
            axes.plot([middle, slow], [height, height], color=colour, linewidth=2.5, solid_capstyle="round", zorder=3)
            axes.plot([middle], [height], "o", color=colour, markersize=5, zorder=4)
        axes.plot([], [], color=colour, marker="o", label=store)
    axes.set_xscale("log")
    axes.set_xlabel("microseconds of a call: from the middle one (dot) to the slowest in a hundred")
    _finish(figure, axes, list(calls), path)


def _empty(lines: int) -> tuple[Any, Any]:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "holdfast", "font.size": 9})
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(10, 1.2 + 0.3 * lines))


def _finish(figure: Any, axes: Any, names: list[str], path: Path) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.grid(axis="both", color=FAINT, linewidth=0.6)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(COLOURS), frameon=False)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    # matplotlib leaves blanks at the ends of lines.
    text = path.read_text()
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")


if __name__ == "__main__":
    sys.exit(main())
