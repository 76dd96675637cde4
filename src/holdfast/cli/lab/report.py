"""The lab's results, for people: a table, the hit rates over the run as lines of blocks, and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.cli.lab.run import Outcome
from holdfast.cli.output import Output, human_bytes
from holdfast.errors import Refused

HEADINGS = (
    "PRESET", "WRITES/S", "BYTES/S", "RENEWAL DELAY", "GONE", "KEPT", "WRONG", "HITS BEFORE", "HITS AFTER", "LOST",
    "OUTAGE", "FIRST PUT", "STANDBY CPU",
)  # fmt: skip
BLOCKS = "▁▂▃▄▅▆▇█"


NO_FAILOVER = "(no failover)"


def row_of(outcome: Outcome, name: str = "") -> tuple[object, ...]:
    lost = outcome.hit_rate_lost
    return (
        name or outcome.preset,
        f"{outcome.coordination_writes_per_s:.1f}",
        human_bytes(outcome.coordination_bytes_per_s),
        _ms(outcome.renewal_delay_ms),
        f"{outcome.gone:,}",
        f"{outcome.kept:,}",
        f"{outcome.wrong:,}",
        f"{outcome.hit_rate_before:.1%}",
        f"{outcome.hit_rate_after:.1%}",
        "-" if lost is None else f"{100 * lost:.1f} points",
        _ms(outcome.outage_ms),
        _ms(outcome.put_wait_ms),
        f"{outcome.standby_cpu:.1%}",
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} ms"


def bars(rates: list[float]) -> str:
    """One block per part of the run; a line where the primary was killed."""
    drawn = "".join(BLOCKS[min(len(BLOCKS) - 1, int(rate * len(BLOCKS)))] for rate in rates)
    middle = len(drawn) // 2
    return f"{drawn[:middle]}|{drawn[middle:]}"


def tell(out: Output, outcomes: list[Outcome], control: Outcome | None = None) -> None:
    """Print the results. `control` is the run whose primary was not killed."""
    rows = [row_of(outcome) for outcome in outcomes]
    named = [(outcome.preset, outcome) for outcome in outcomes]
    if control is not None:
        rows.append(row_of(control, NO_FAILOVER))
        named.append((NO_FAILOVER, control))
    out.table(HEADINGS, rows, HEADINGS[1:])
    out.line("")
    out.line("hit rate over the run; | is where the primary was killed")
    wide = max(len(name) for name, _ in named)
    for name, outcome in named:
        out.line(f"{name:<{wide}}  {bars(outcome.hit_rates)}")


def draw(outcomes: list[Outcome], path: Path) -> None:
    """The same as a picture."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise Refused(
            "the picture needs matplotlib: pip install 'holdfast[lab]'; the results are printed without it"
        ) from None
    figure, axes = plt.subplots(2, 3, figsize=(15, 8), layout="constrained")
    names = [outcome.preset for outcome in outcomes]
    charts: list[tuple[str, list[float]]] = [
        ("coordination writes/s", [one.coordination_writes_per_s for one in outcomes]),
        ("coordination KiB/s", [one.coordination_bytes_per_s / 1024 for one in outcomes]),
        ("objects gone that the primary had", [one.gone for one in outcomes]),
        ("objects kept that it had evicted", [one.kept for one in outcomes]),
        ("standby CPU, % of a core", [100 * one.standby_cpu for one in outcomes]),
    ]
    for axis, (title, values) in zip(axes.flat, charts, strict=False):
        _bars(axis, title, names, values)
    lines = axes.flat[len(charts)]
    for outcome in outcomes:
        shares = [(i + 0.5) / len(outcome.hit_rates) for i in range(len(outcome.hit_rates))]
        lines.plot(shares, outcome.hit_rates, label=outcome.preset)
    lines.axvline(0.5, color="black", linestyle=":", label="primary killed")
    lines.set_title("hit rate over the run")
    lines.set_ylim(0, 1)
    lines.legend(fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _bars(axis: Any, title: str, names: list[str], values: list[float]) -> None:
    axis.bar(names, values)
    axis.set_title(title)
    axis.tick_params(axis="x", labelrotation=30)
