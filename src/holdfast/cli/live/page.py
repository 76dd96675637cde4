"""The page of `top`: lines of text from what was seen of the cluster, for a terminal of this size.

Everything is a word or a number, and colour only repeats it. A list that does not fit ends with how many are left out.
Text of others (names, reasons, events) is escaped.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from holdfast.cli.live.events import row_of_event
from holdfast.cli.output import counted, human_bytes, human_ms
from holdfast.dashboard import figures
from holdfast.dashboard.figures import Facts, Samples
from holdfast.escapes import printable
from holdfast.messages.of_masters import EventInfo

VIEWS = ("summary", "nodes", "requests", "tenants", "events")
WIDE = 10_000
BAR_COLUMNS = 20
SHOWN_MASTERS = 4
WIDEST_CELL = 28
HELP = (
    ("q, Ctrl-C", "quit"),
    ("p, space", "pause: the page stays as it is; again to go on"),
    ("s", "sort nodes: by name, by how full they are, by their state"),
    ("tab, right, left", "next or previous view; 1 to 5 choose one"),
    ("up, down", "scroll in a long list"),
    ("?", "this help; any key leaves it"),
)
FOOTER = "q quit p pause s sort ? help"
_STATES = {"expired": 0, "jeopardy": 1}


def _fullness(node: Facts) -> float:
    return node["used_bytes"] / node["capacity_bytes"] if node["capacity_bytes"] else 0.0


SORTS: dict[str, Callable[[Facts], Any]] = {
    "name": lambda node: node["name"],
    "fullest": lambda node: (-_fullness(node), node["name"]),
    "state": lambda node: (_STATES.get(node["standing"], 2), node["mode"] == "open", node["available"], node["name"]),
}


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """What is known of the cluster at one moment."""

    samples: Samples | None = None
    """None: no master has answered yet."""
    events: tuple[EventInfo, ...] = ()
    events_note: str = ""
    """Why there are none, if they may not be seen."""
    trouble: str = ""
    """Why no master answers now."""
    trouble_ms: int = 0
    """For how long."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What of it is shown."""

    view: str = VIEWS[0]
    sort: str = "name"
    first: int = 0
    """Rows of a list that are scrolled away."""
    paused: bool = False
    helps: bool = False

    def pressed(self, key: str) -> Choice:
        """After this key; `q` is not for here."""
        if self.helps:
            return replace(self, helps=False)
        place = VIEWS.index(self.view)
        if key in ("right", "left"):
            step = 1 if key == "right" else -1
            return replace(self, view=VIEWS[(place + step) % len(VIEWS)], first=0)
        if key.isdecimal() and 1 <= int(key) <= len(VIEWS):
            return replace(self, view=VIEWS[int(key) - 1], first=0)
        if key in ("p", " "):
            return replace(self, paused=not self.paused)
        if key == "s":
            sorts = list(SORTS)
            return replace(self, sort=sorts[(sorts.index(self.sort) + 1) % len(sorts)])
        if key in ("up", "down"):
            return replace(self, first=max(0, self.first + (1 if key == "down" else -1)))
        return replace(self, helps=True) if key == "?" else self


@dataclass(slots=True)
class Page:
    """Lines for a terminal of this size. `height` None: all there is, for a file or a pipe."""

    width: int = WIDE
    height: int | None = None
    colour: bool = False
    lines: list[str] = field(default_factory=list)

    def text(self, text: str, style: str = "", wraps: bool = False) -> None:
        self._take(Text(printable(text), style=style), wraps)

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[Any]], most: int | None = None, first: int = 0
    ) -> None:
        """A name that begins with `>` heads a column of numbers. At most this many lines, beside the heading."""
        if most is not None and most < 1:
            return
        first = min(first, max(0, len(rows) - (most or len(rows))))
        shown = rows[first:]
        left_out = 0
        if most is not None and len(shown) > most:
            left_out = len(shown) - most + 1
            shown = shown[: most - 1]
        cells = [[cell if isinstance(cell, Text) else Text(printable(str(cell))) for cell in row] for row in shown]
        titles = [Text(name.removeprefix(">"), "bold") for name in columns]
        widths = [
            max(min(row[place].cell_len, WIDEST_CELL) for row in [titles, *cells]) for place in range(len(titles))
        ]
        for row in [titles, *cells]:
            line = Text()
            for name, cell, width in zip(columns[:-1], row, widths, strict=False):
                cell.truncate(width, overflow="ellipsis")
                cell.align("right" if name.startswith(">") else "left", width)
                line.append_text(cell).append("  ")
            if columns[-1].startswith(">"):
                row[-1].align("right", max(widths[-1], row[-1].cell_len))
            self._take(line.append_text(row[-1]))
        if left_out:
            self.text(f"... and {left_out:,} more", "dim")

    def _take(self, shown: Text, wraps: bool = False) -> None:
        console = Console(
            file=io.StringIO(),
            width=self.width,
            force_terminal=self.colour,
            color_system="standard" if self.colour else None,
            markup=False,
            highlight=False,
        )
        with console.capture() as captured:
            console.print(shown, no_wrap=not wraps, overflow="fold" if wraps else "ellipsis")
        self.lines += [line.rstrip() for line in captured.get().splitlines()]

    @property
    def left(self) -> int | None:
        """Lines that are left above the last one, which is the footer's."""
        return None if self.height is None else max(0, self.height - 1 - len(self.lines))


def drawn(seen: ClusterSeen, look: Choice, page: Page) -> list[str]:
    """The lines of the page."""
    if look.helps:
        page.text("Keys of holdfast top", "bold")
        page.table(("KEY", "DOES"), HELP)
        return page.lines
    _title(page, seen, look)
    if seen.samples is not None:
        now = seen.samples.now
        match look.view:
            case "nodes":
                _nodes(page, now, look, page.left)
            case "requests":
                _requests(page, seen.samples, page.left)
            case "tenants":
                _tenants(page, now, look)
            case "events":
                _events(page, seen, page.left, look.first)
            case _:
                _summary(page, seen, look)
    if page.height is not None:
        del page.lines[page.height - 1 :]
        page.lines += [""] * (page.height - 1 - len(page.lines))
        names = " ".join(f"{place}{'*' if name == look.view else ' '}{name}" for place, name in enumerate(VIEWS, 1))
        page.text(f"{FOOTER}  {names}", "dim")
    return page.lines


def _title(page: Page, seen: ClusterSeen, look: Choice) -> None:
    if seen.samples is None:
        page.text(
            f"holdfast: {seen.trouble or 'looking for a master'}", "bold red" if seen.trouble else "bold", wraps=True
        )
        if seen.trouble:
            page.text(f"No master has answered for {human_ms(seen.trouble_ms)}; trying again.")
        return
    now = seen.samples.now
    leader = next((one for one in now["masters"] if one["role"] == "primary"), None)
    who = f"{leader['name']} leads, epoch {leader['epoch']}" if leader is not None else "no master leads now"
    mark = "  PAUSED" if look.paused else ""
    page.text(
        f"holdfast {now['cluster']}: {who}; {counted(now['objects'], 'object')}{mark}", "bold" if leader else "bold red"
    )
    if seen.trouble:
        age = human_ms(seen.trouble_ms)
        page.text(
            f"No master answers, for {age}; trying again. These figures are from before: {seen.trouble}", "bold red"
        )
    elif now["role"] != "primary":
        page.text(f"{now['name']} answers, a standby; one of these takes over when it can.", "red")
    else:
        page.text(figures.loss(now), "" if figures.successors(now) else "red")
    for text in now["insecure"]:
        page.text(f"INSECURE: {text}", "red")


def _summary(page: Page, seen: ClusterSeen, look: Choice) -> None:
    assert seen.samples is not None
    now = seen.samples.now
    _masters(page, now)
    _rates(page, seen.samples)
    if page.height is None:
        _nodes(page, now, look, None)
        _requests(page, seen.samples, None)
        if now["tenants"]:
            _tenants(page, now, look)
        _events(page, seen, 10, 0)
        return
    # Each list takes its share of the lines, and leaves to the next ones what it does not need.
    _nodes(page, now, look, ((page.left or 0) - 2) // 3)
    page.text("")
    _requests(page, seen.samples, ((page.left or 0) - 1) // 2, evictions=False)
    page.text("")
    _events(page, seen, page.left, 0)


def _masters(page: Page, now: Facts) -> None:
    rows = []
    for one in now["masters"]:
        leads = one["role"] == "primary"
        lag = "" if leads else f"{one['lag_batches']:,}" if one["lag_batches"] else "none"
        stands = "leads" if leads else "yes" if one["promotable"] else "no"
        style = "green" if leads or one["promotable"] else "red"
        rows.append(
            (one["name"], one["role"], one["epoch"], f"{one['index']:,}", lag, Text(stands, style), one["reason"])
        )
    columns = ("MASTER", "ROLE", ">EPOCH", ">INDEX", ">LAG", "PROMOTABLE", "WHY")
    page.table(columns, rows, None if page.height is None else SHOWN_MASTERS)


def _per_second(value: float | None, shown: Callable[[float], str]) -> str:
    return "-" if value is None else f"{shown(value)}/s"


def _number(value: float) -> str:
    return f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"


def _rates(page: Page, samples: Samples) -> None:
    now, rates = samples.now, samples.last_rates
    hit_rate = rates["hit_rate"]
    facts = (
        ("hit rate", "-" if hit_rate is None else f"{hit_rate:.1%}"),
        ("requests", _per_second(rates["requests"], _number)),
        ("found", _per_second(rates["found_bytes"], human_bytes)),
        ("stored", _per_second(rates["stored_bytes"], human_bytes)),
        ("evictions", _per_second(rates["evicted"], _number)),
        ("refused", _per_second(rates["refused"], _number)),
        ("TCP read", _per_second(rates["tcp_read_bytes"], human_bytes)),
        ("TCP written", _per_second(rates["tcp_written_bytes"], human_bytes)),
    )
    page.text("")
    for part in (facts[:4], facts[4:]):
        page.text("  ".join(f"{name} {value}" for name, value in part))
    if "free_bytes" in now:
        used, capacity = now["capacity_bytes"] - now["free_bytes"], now["capacity_bytes"]
        page.text(f"memory {_bar(used / capacity if capacity else 0.0)} {_of(used, capacity)}")
    page.text("")


def _bar(share: float) -> str:
    full = round(min(1.0, share) * BAR_COLUMNS)
    return f"[{'#' * full}{'.' * (BAR_COLUMNS - full)}]"


def _of(used: float, capacity: float) -> str:
    return f"{human_bytes(used)} of {human_bytes(capacity)}"


def _nodes(page: Page, now: Facts, look: Choice, most: int | None) -> None:
    if not now["nodes"]:
        primary = now["role"] == "primary"
        page.text("No node lends memory yet." if primary else "Nodes are the primary's to know.")
        return
    rows = []
    for node in sorted(now["nodes"], key=SORTS[look.sort]):
        standing = node["standing"]
        if standing == "safe" and not node["available"]:
            standing = "safe, takes nothing"
        mode = node["mode"] + (f": {node['waits_for']}" if node["waits_for"] else "")
        share = _fullness(node)
        rows.append(
            (
                node["name"],
                Text(standing, "green" if standing == "safe" else "red"),
                mode,
                _bar(share),
                f"{share:.0%}",
                _of(node["used_bytes"], node["capacity_bytes"]),
            )
        )
    heading = f"MEMORY (by {look.sort})"
    columns = ("NODE", "STATE", "MODE", heading, ">FULL", "USED")
    page.table(columns, rows, most - 1 if most is not None else None, look.first if look.view == "nodes" else 0)


def _seconds(value: float | None, recent: int) -> str:
    if not recent:
        return "-"
    if value is None:
        return "over the last bound"
    return f"{value * 1e6:.0f} us" if value < 1e-3 else human_ms(value * 1000)


def _requests(page: Page, samples: Samples, most: int | None, evictions: bool = True) -> None:
    now, before = samples.now, samples.before
    rows = [
        (
            one.verb.replace("_", " "),
            "-" if one.per_second is None else _number(one.per_second),
            _seconds(one.median_seconds, one.recent),
            _seconds(one.tail_seconds, one.recent),
            f"{one.total:,}",
        )
        for one in figures.verbs(now, before)
    ]
    page.table(
        ("VERB, LAST MINUTE", ">A SECOND", ">MEDIAN", ">99%", ">ALL"), rows, most - 1 if most is not None else None
    )
    if not evictions:
        return
    found = figures.evictions(now, before)
    reasons = [
        (
            reason,
            "-" if rate is None else _number(rate),
            f"{now['evicted_objects'][reason]:,}",
            human_bytes(now["evicted_bytes"][reason]),
        )
        for reason, rate in found.items()
    ]
    if reasons:
        page.text("")
        page.table(("EVICTED BY", ">A SECOND", ">OBJECTS", ">BYTES"), reasons, page.left)


def _tenants(page: Page, now: Facts, look: Choice) -> None:
    if not now["tenants"]:
        page.text("There are no tenants." if now["role"] == "primary" else "Tenants are the primary's to know.")
        return
    rows = [
        (
            one["name"],
            _of(one["used_bytes"], one["limit_bytes"]) if one["limit_bytes"] else human_bytes(one["used_bytes"]),
            human_bytes(one["guaranteed_bytes"]),
            f"{one['objects']:,}",
            f"{one['clients']:,}",
            f"{one['evicted']:,}",
            f"{one['refused']:,}",
        )
        for one in now["tenants"]
    ]
    columns = ("TENANT", "USED", ">GUARANTEED", ">OBJECTS", ">CLIENTS", ">EVICTED", ">REFUSED")
    most = page.left - 1 if page.left is not None else None
    page.table(columns, rows, most, look.first if look.view == "tenants" else 0)


def _events(page: Page, seen: ClusterSeen, most: int | None, first: int) -> None:
    if seen.events_note or not seen.events:
        page.text(seen.events_note or "No events yet.")
        return
    newest = sorted(seen.events, key=lambda event: -event.date_ms)[first:]
    rows = [row_of_event(event) for event in newest[: most - 1 if most is not None else None]]
    page.table(("WHEN", "MASTER", "EVENT", "ABOUT"), rows)
