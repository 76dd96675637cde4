"""Text of strangers is shown on one line, and obeyed by no terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.escapes import printable, printable_lines


@given(st.text())
def test_whatever_is_in_a_text_it_is_one_printable_line(text: str) -> None:
    assert printable(text).isprintable()


@given(st.text().filter(str.isprintable))
def test_a_printable_text_is_shown_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_what_is_escaped_can_be_recognised() -> None:
    assert printable("a\x1b[31m\n\t\u202e\u2028\ue000\U000e0001ü") == r"a\x1b[31m\n\t\u202e\u2028\ue000\U000e0001ü"


def test_no_line_of_a_traceback_begins_as_another_entry_does() -> None:
    assert (
        printable_lines("Traceback\n2026-01-01 [info] forged\x1b[2J")
        == "Traceback\n    2026-01-01 [info] forged\\x1b[2J"
    )
