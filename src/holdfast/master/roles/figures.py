"""Figures of a master's roles since the process began: for metrics, nothing depends on them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from holdfast.operations.durations import Durations
from holdfast.replication.log_writer import LogFigures


@dataclass(frozen=True, slots=True)
class RoleFigures:
    log: LogFigures = field(default_factory=LogFigures)
    promotions: Durations = field(default_factory=Durations)
    """From winning a term to serving under it."""
    coordination_errors: Counter[str] = field(default_factory=Counter)
    """Calls of coordination that failed, by what they were for; appends to the log are counted with it."""
