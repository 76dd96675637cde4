"""Upkeep goes on: a defect in one step is counted and reported, and costs only that step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class UpkeepFailure(NamedTuple):
    """A defect in one step of upkeep. Only that step failed; it is tried again at the next tick."""

    kind: str
    subject: str
    error: Exception


class Guard:
    def __init__(self, report: Callable[[UpkeepFailure], None]) -> None:
        self.failures: Counter[str] = Counter()
        """Counts by kind."""
        self._report = report

    def run(self, kind: str, subject: str, step: Callable[[], T]) -> T | None:
        """Do one step. None if a defect ended it: the following steps still run."""
        try:
            return step()
        except Exception as error:  # noqa: BLE001 - It is counted and reported.
            self.failed(kind, subject, error)
            return None

    def failed(self, kind: str, subject: str, error: Exception) -> None:
        self.failures[kind] += 1
        self._report(UpkeepFailure(kind, subject, error))
