"""Keys that records bound and unbound, in the order of the log, for publishing them.

The catalogue adds to it if one is attached (`Catalogue.changes`); without one, nothing is collected.
"""

from __future__ import annotations

from typing import TypeAlias

Change: TypeAlias = tuple[bool, list[str]]
"""(True: stored, False: removed; the keys)."""


class KeyChanges:
    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: list[Change] = []

    def stored(self, keys: list[str]) -> None:
        self._rows.append((True, keys))

    def removed(self, keys: list[str]) -> None:
        self._rows.append((False, keys))

    def take(self) -> list[Change]:
        """The changes since the last call."""
        rows, self._rows = self._rows, []
        return rows
