"""Tables of text for people: columns padded to their longest cell, and on a terminal no wider than that.

On a terminal that is too narrow, columns that a table can do without are left out first; then the longest cells are
folded. Anywhere else nothing is left out or folded, so that a script sees one row a line.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from itertools import zip_longest

GAP = "  "
LEAST_WIDTH = 8
"""Columns are folded to this width at the least; on a terminal that has not even this, lines run over."""
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"


def width_of(text: str) -> int:
    """How many columns of a terminal it takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(mark) else 2 if unicodedata.east_asian_width(mark) in "WF" else 1 for mark in text
    )


def widths_of(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(width_of, column)) for column in zip(*rows, strict=True)]


def lines_of(
    rows: Sequence[Sequence[str]],
    right: Sequence[int] = (),
    most: int | None = None,
    bold_column: bool = False,
    least: Sequence[int] | None = None,
) -> list[str]:
    """These rows as lines of at most `most` columns. The columns of these numbers are aligned to the right. The first
    row is bold on a terminal, which is where there is a `most`, unless that is a dumb one; or the first column is.
    `least`: the widths of rows that were shown before, which these continue."""
    widths = widths_of(rows)
    if least is not None:
        widths = list(map(max, widths, least))
    if most is not None:
        widths = narrowed(widths, most)
    lines = []
    for number, row in enumerate(rows):
        bold = (
            most is not None and os.environ.get("TERM") != "dumb" and (bold_column or (number == 0 and least is None))
        )
        parts = [fold(cell, width) for cell, width in zip(row, widths, strict=True)]
        for cells in zip_longest(*parts, fillvalue=""):
            padded = [
                _padded(cell, width, place in right)
                for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ]
            if bold and bold_column:
                padded[0] = f"{BOLD}{padded[0]}{PLAIN}"
            line = GAP.join(padded).rstrip()
            lines.append(f"{BOLD}{line}{PLAIN}" if bold and not bold_column else line)
    return lines


def without_spare(
    headings: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], most: int
) -> tuple[list[str], list[Sequence[str]], list[str]]:
    """Headings and rows without as many of the columns that can be spared, the first of them first, as do not fit; and
    the headings of those columns."""
    left_out: list[str] = []
    kept = list(range(len(headings)))
    widths = widths_of([headings, *rows])
    for heading in spare:
        if sum(widths[place] for place in kept) + len(GAP) * (len(kept) - 1) <= most:
            break
        kept.remove(headings.index(heading))
        left_out.append(heading)
    return [headings[place] for place in kept], [[row[place] for place in kept] for row in rows], left_out


def narrowed(widths: list[int], most: int) -> list[int]:
    """Widths that fit together: the widest columns give the most."""
    room = most - len(GAP) * (len(widths) - 1)
    narrow = list(widths)
    while sum(narrow) > room and max(narrow) > LEAST_WIDTH:
        widest = max(narrow)
        next_widest = max([width for width in narrow if width < widest], default=LEAST_WIDTH)
        holders = narrow.count(widest)
        step = min(widest - max(next_widest, LEAST_WIDTH), -(-(sum(narrow) - room) // holders))
        narrow = [width - step if width == widest else width for width in narrow]
    return narrow


def fold(text: str, width: int) -> list[str]:
    """The text in pieces of at most this width, between words where that is possible."""
    pieces = []
    while width_of(text) > width:
        taken = _fitting(text, width)
        blank = text.rfind(" ", 1, taken + 1)
        cut = blank if blank > 0 else taken
        pieces.append(text[:cut])
        text = text[cut:].lstrip(" ") if blank > 0 else text[cut:]
    return [*pieces, text] if text or not pieces else pieces


def _fitting(text: str, width: int) -> int:
    """How many characters of the text fit, one at the least."""
    used = 0
    for place, mark in enumerate(text):
        used += width_of(mark)
        if used > width:
            return max(1, place)
    return len(text)


def _padded(cell: str, width: int, right: bool) -> str:
    blanks = " " * (width - width_of(cell))
    return blanks + cell if right else cell + blanks
