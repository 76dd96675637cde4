"""The output of a verb: for people, or JSON for scripts. Never both on stdout.

For people, control characters in keys and names are escaped, also into a pipe, which often ends at a terminal or in a
log: a key could hold an escape sequence, or a line break and what looks like another line. JSON has every key exactly.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.cli.tables import lines_of, widths_of, without_spare
from holdfast.escapes import printable

MOST_EXACT = 1 << 53
"""Numbers beyond this are texts in JSON: readers that keep numbers as floating point would round them."""
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class Output:
    as_json: bool = False

    def data(self, value: object) -> None:
        """One JSON document."""
        self.data_lines([value])

    def data_lines(self, values: Iterable[object]) -> None:
        """A JSON document a line."""
        sys.stdout.write("".join(f"{_document(plain(value))}\n" for value in values))

    def line(self, text: str) -> None:
        sys.stdout.write(printable(text) + "\n")

    def lines(self, texts: Iterable[str]) -> None:
        sys.stdout.write("".join(f"{printable(text)}\n" for text in texts))

    def note(self, text: str) -> None:
        """A remark for people; it never mixes with what a script reads."""
        sys.stderr.write(printable(text) + "\n")

    def table(
        self,
        headings: Sequence[str],
        rows: Sequence[Sequence[object]],
        right: Sequence[str] = (),
        spare: Sequence[str] = (),
    ) -> None:
        """`spare`: columns that are left out, in this order, on a terminal that is too narrow for all."""
        shown: Sequence[str] = headings
        texts: Sequence[Sequence[str]] = [[printable(str(cell)) for cell in row] for row in rows]
        left_out: list[str] = []
        most = columns()
        if most is not None:
            shown, texts, left_out = without_spare(headings, texts, spare, most)
        aligned = [place for place, heading in enumerate(shown) if heading in right]
        sys.stdout.writelines(f"{line}\n" for line in lines_of([shown, *texts], aligned, most))
        if left_out:
            self.note(f"a wider terminal, or --json, also shows: {', '.join(left_out)}")

    def facts(self, facts: Sequence[tuple[str, object]]) -> None:
        """Names and values, one per line."""
        rows = [(name, printable(str(value))) for name, value in facts]
        sys.stdout.writelines(f"{line}\n" for line in lines_of(rows, most=columns(), bold_column=True))


def _document(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    # JSON itself escapes only some of what a terminal obeys: not 0x9b, which begins a sequence as ESC [ does.
    return text if text.isprintable() else json.dumps(value)


class Listing:
    """A table whose rows come page by page, each shown when it is there. Columns never become narrower."""

    def __init__(self, headings: Sequence[str], right: Sequence[str] = ()) -> None:
        self._headings = headings
        self._right = [place for place, heading in enumerate(headings) if heading in right]
        self._widths: list[int] | None = None

    def show(self, rows: Sequence[Sequence[str]]) -> None:
        texts: list[Sequence[str]] = [[printable(cell) for cell in row] for row in rows]
        if self._widths is None:
            texts.insert(0, self._headings)
        if texts:
            lines = lines_of(texts, self._right, columns(), least=self._widths)
            self._widths = list(map(max, widths_of(texts), self._widths or [0] * len(self._headings)))
            sys.stdout.write("\n".join([*lines, ""]))


def columns() -> int | None:
    """The width of the terminal; None if the output is none, as nothing is ever folded for a script."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def plain(value: Any) -> Any:
    """Messages as JSON objects: on the wire they are arrays, which no script wants to count."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, int) and abs(value) > MOST_EXACT:
        return str(value)
    return value


def human_bytes(count: float) -> str:
    """`1.5 GiB`, `4 GiB`; exact below one KiB."""
    power = min((max(int(count), 1).bit_length() - 1) // 10, len(UNITS) - 1)
    number = f"{count / (1 << 10 * power):.{1 if power else 0}f}".removesuffix(".0")
    return f"{number} {UNITS[power]}"


def counted(count: int, noun: str) -> str:
    """`1 node`, `2,000 nodes`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def human_ms(milliseconds: float) -> str:
    """`850 ms`, `9.8 s`, `12 min`, `3.4 h`."""
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
