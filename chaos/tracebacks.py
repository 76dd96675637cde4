"""Errors in the logs of the run's processes that nothing foresaw: each is a defect, whatever came of it.

A master survives a step that fails, and a node an order; what that costs may be seen by no client of this run. An error
that the code expects is logged without its traceback.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path


def tracebacks(folder: Path) -> list[str]:
    """One line for each kind of error and process, with how often it was logged."""
    found: Counter[tuple[str, str, str]] = Counter()
    for path in sorted(folder.glob("*/log")):
        for line in path.read_text(errors="replace").splitlines():
            told = _told(line)
            if told is not None:
                found[path.parent.name, *told] += 1
    return [f"{name}: {event} ({error}), logged {count} times" for (name, event, error), count in found.items()]


def _told(line: str) -> tuple[str, str] | None:
    """What an entry with a traceback says, and the error; None for other lines."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None  # Half a line, of a process that was killed; or not holdfast's.
    if not isinstance(entry, dict) or not entry.get("exception"):
        return None
    return str(entry.get("event")), str(entry["exception"]).strip().splitlines()[-1]
