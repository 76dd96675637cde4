"""A promise that was broken: which, when, and about what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    promise: str
    """I1 to I18, or another rule that must hold."""
    at_ms: int
    what: str
    subject: str = ""
    """The key, object id or process that it is about: `story` tells what happened to it."""

    def __str__(self) -> str:
        return f"{self.promise} broken at {self.at_ms} ms: {self.what}"


class Broken(Exception):
    """Raised by a checker; ends the run."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation
