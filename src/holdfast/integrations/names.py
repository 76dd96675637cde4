"""Parts of object keys that engines' identities become: readable, without separators in them, and never ambiguous."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from urllib.parse import quote

LONGEST_PART = 160
"""Of 1,024 bytes that a key may have; the rest is for ranks, shapes and hashes."""


def part(text: str) -> str:
    """The text without `/`, so that two identities cannot run into each other; a long one is cut and digested."""
    quoted = quote(text, safe="@:+,=")
    if len(quoted) <= LONGEST_PART:
        return quoted
    return f"{quoted[: LONGEST_PART - 33]}.{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def digest(facts: Mapping[str, object]) -> str:
    """16 hexadecimal digits that differ where any fact does."""
    told = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:16]
