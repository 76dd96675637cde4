"""Which version of the log a record belongs to: a master reads records of its own version and of all before (ADR 64).

A release that adds a record, or a field to a record, raises `LOG_VERSION` and adds a row here. The primary writes such
a record only while every master that it knows reads that version; until then the request is refused with
`LogHeldBack`, or does what the release before did.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.messages.records import GrantCleared, PinsChanged, RangesGranted, SuccessorNamed
from holdfast.messages.shapes import Record

OLDEST_LOG_VERSION = 1
"""The records of release 0.2.0, whose masters announce no version."""
LOG_VERSION = 3
"""The newest version that this release reads and writes."""
CLEARANCES = 2
"""The version that knows of memory that is to be cleared for another tenant (ADR 55)."""
SUCCESSORS = 3
"""The version that knows of a successor, who holds the tail of the log (ADR 70)."""
PINS = 3
"""The version that knows of pins that are changed after the put (ADR 72)."""
NEW_RECORDS: dict[type[Record], int] = {GrantCleared: CLEARANCES, PinsChanged: PINS, SuccessorNamed: SUCCESSORS}
"""Record -> the version that introduced it; records that are not listed are of the oldest version."""
NEW_FIELDS: dict[type[Record], dict[str, int]] = {RangesGranted: {"uncleared": CLEARANCES}}
"""Record -> field -> the version that introduced it. With the field's default the record is one of before."""


def version_of(record: Record) -> int:
    """The log version that a master must read to understand this record."""
    kind = type(record)
    if kind not in NEW_RECORDS and kind not in NEW_FIELDS:
        return OLDEST_LOG_VERSION  # Most are, and each put asks.
    version = NEW_RECORDS.get(kind, OLDEST_LOG_VERSION)
    if kind in NEW_FIELDS:
        defaults = _defaults_of(kind)
        for name, since in NEW_FIELDS[kind].items():
            if since > version and getattr(record, name) != defaults[name]:
                version = since
    return version


def _defaults_of(kind: type[Record]) -> dict[str, Any]:
    return {
        field.name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        for field in msgspec.structs.fields(kind)
    }
