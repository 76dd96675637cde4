"""The output of a verb: for people, or JSON for scripts. Never both on stdout.

For people, control characters in keys and names are escaped, also into a pipe, which often ends at a terminal or in a
log: a key could hold an escape sequence, or a line break and what looks like another line. JSON has every key exactly.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.escapes import printable

WIDE = 10_000
"""Columns assumed when the output is not a terminal, so that no line is ever wrapped for a script."""
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Output:
    as_json: bool = False

    def data(self, value: object) -> None:
        """One JSON document."""
        document = json.dumps(plain(value), ensure_ascii=False)
        # JSON itself escapes only some of what a terminal obeys: not 0x9b, which begins a sequence as ESC [ does.
        sys.stdout.write((document if document.isprintable() else json.dumps(plain(value))) + "\n")

    def line(self, text: str) -> None:
        sys.stdout.write(printable(text) + "\n")

    def note(self, text: str) -> None:
        """A remark for people; it never mixes with what a script reads."""
        sys.stderr.write(printable(text) + "\n")

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = ()) -> None:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in headings:
            table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(str(cell))) for cell in row))
        _print(table)

    def facts(self, facts: Sequence[tuple[str, object]]) -> None:
        """Names and values, one per line."""
        table = Table.grid(padding=(0, 2))
        for name, value in facts:
            table.add_row(Text(name, style="bold"), Text(printable(str(value))))
        _print(table)


def _print(table: Table) -> None:
    on_terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if on_terminal else WIDE, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(table)
    # Cells are padded to the width of their column; the last one needs no padding.
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def plain(value: Any) -> Any:
    """Messages as JSON objects: on the wire they are arrays, which no script wants to count."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def human_bytes(count: float) -> str:
    """`1.5 GiB`; exact below one KiB."""
    power = min((max(int(count), 1).bit_length() - 1) // 10, len(UNITS) - 1)
    return f"{count / (1 << 10 * power):.{1 if power else 0}f} {UNITS[power]}"


def human_ms(milliseconds: float) -> str:
    """`850 ms`, `9.8 s`, `12 min`, `3.4 h`."""
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
