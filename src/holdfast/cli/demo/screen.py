"""The screen of `demo` while it runs: a live table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.cli.cluster.masters import MasterSeen, primary_of, row_of
from holdfast.cli.load import Load
from holdfast.instant import now_seconds

HEADINGS = ("MASTER", "ADDRESS", "ROLE", "EPOCH", "APPLIED", "LAG", "DIGEST EQUAL")
BY_ROLE = {"primary": "green", "standby": "cyan", "unreachable": "red"}


class Screen:
    def __init__(self, as_json: bool) -> None:
        self._stream = sys.stderr if as_json else sys.stdout
        self._live: Live | None = None
        if not as_json and sys.stdout.isatty():
            self._live = Live(console=Console(), refresh_per_second=10, transient=False)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, at_s: float, text: str) -> None:
        line = f"{at_s:7.2f} s  {text}"
        if self._live is None:
            print(line, file=self._stream, flush=True)
        else:
            self._live.console.print(Text(line))

    def show(self, masters: list[MasterSeen], load: Load) -> None:
        if self._live is None:
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in HEADINGS:
            table.add_column(heading)
        primary = primary_of(masters)
        for seen in masters:
            cells = [str(cell) for cell in row_of(seen, primary)[: len(HEADINGS)]]
            table.add_row(*cells, style=BY_ROLE.get(seen.role, ""))
        waited_ms = load.since_last_s(now_seconds()) * 1000
        writing = f"{len(load.acknowledged):,} of {load.objects:,} puts acknowledged, {load.failed} failed"
        silence = f"; the last one {waited_ms:,.0f} ms ago" if load.running and load.acknowledged else ""
        self._live.update(Group(Text(""), table, Text(writing + silence)))
