"""Tables on a terminal of any width, and anywhere else."""

from __future__ import annotations

import pytest

from holdfast.cli.tables import BOLD, PLAIN, fold, lines_of, narrowed, width_of, without_spare

ROWS = [["NAME", "SIZE", "KEY"], ["a", "1", "short"], ["\u65e5\u672c", "2,000", "some words and a-very-long-key/" * 3]]


def plain(line: str) -> str:
    return line.replace(BOLD, "").replace(PLAIN, "")


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    lines = lines_of(ROWS, right=[1])
    assert lines[0] == "NAME   SIZE  KEY"
    assert lines[1] == "a         1  short"
    assert lines[2].startswith("\u65e5\u672c  2,000  some")  # Each of these marks takes two columns.
    assert len(lines) == 3


@pytest.mark.parametrize("most", [30, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_lost(most: int) -> None:
    lines = [plain(line) for line in lines_of(ROWS, most=most)]
    assert max(map(width_of, lines)) <= most
    shown = "".join("".join(lines).split())
    assert all("".join(cell.split()) in shown for row in ROWS[:2] for cell in row)
    assert sum(map(shown.count, "kwy/")) == sum("".join(map("".join, ROWS)).count(mark) for mark in "kwy/")


def test_the_headings_are_bold_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert lines_of(ROWS, most=200)[0].startswith(BOLD)
    assert BOLD not in "".join(lines_of(ROWS))
    assert lines_of(ROWS, most=200, bold_column=True)[1].startswith(f"{BOLD}a")


@pytest.mark.parametrize("bold_column", [True, False])
def test_a_dumb_terminal_is_sent_text_alone(monkeypatch: pytest.MonkeyPatch, bold_column: bool) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert BOLD not in "".join(lines_of(ROWS, most=200, bold_column=bold_column))


def test_columns_are_left_out_until_the_others_fit() -> None:
    headings, rows = ["A", "B", "C"], [["a" * 10, "b" * 10, "c" * 10]]
    assert without_spare(headings, rows, ["C", "B"], 34) == (headings, rows, [])
    assert without_spare(headings, rows, ["C", "B"], 33) == (["A", "B"], [["a" * 10, "b" * 10]], ["C"])
    assert without_spare(headings, rows, ["C", "B"], 5)[0] == ["A"]


def test_words_are_kept_whole_where_they_fit() -> None:
    assert fold("some words here", 11) == ["some words", "here"]
    assert fold("abcdefgh", 3) == ["abc", "def", "gh"]
    assert fold("\u65e5\u672c", 1) == ["\u65e5", "\u672c"]


def test_the_widest_columns_give_the_most() -> None:
    assert narrowed([4, 60, 30], 50) == [4, 21, 21]
    assert narrowed([4, 6], 50) == [4, 6]
    assert narrowed([20, 20, 20], 10) == [8, 8, 8]
