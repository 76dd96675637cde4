"""Text of strangers, made safe to show.

A key or a name may hold anything that UTF-8 can say: escape sequences that repaint a terminal, line breaks that forge
the next line of a log, marks that turn the direction of writing around. Whatever people read passes through here;
programs read JSON, which escapes in its own way.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """The text on one line, with everything escaped that is not simply seen: control characters, line and paragraph
    separators, invisible marks, private and unpaired code points. Backslashes stay single, so that usual keys with
    backslashes are shown as they are."""
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else mark.encode("unicode_escape").decode() for mark in text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines, such as a traceback. Every line after the first is indented, so that none
    of them can pass for the beginning of another entry."""
    return "\n    ".join(printable(line) for line in text.split("\n"))
