"""The events of a run, one line per event, and which of the lines are one key's story.

A line without a subject (a fault, a new epoch, a segment that comes or goes) belongs to every story; one with subjects
only to theirs. Lines are gathered only when a run is replayed: a run that keeps its promises needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec

from holdfast.core.state.packed_numbers import unpack_sorted_ids
from holdfast.messages import records as r
from holdfast.messages.rows import unpack_ids
from holdfast.messages.shapes import Record
from holdfast.simulation.kernel.scheduler import MS
from holdfast.simulation.scripts.history import ClientCall, number_of

Line: TypeAlias = tuple[int, str, tuple[str, ...]]
"""(millisecond, what happened, the subjects whose story it belongs to; none: every story)"""
MOST_LINES = 120


def told(lines: Iterable[Line], subject: str) -> list[str]:
    """The story of one key; of everything, cut to its end, if no line is about the subject."""
    everything = sorted(lines, key=lambda line: line[0])
    if not subject or not any(subject in subjects for _, _, subjects in everything):
        return shown(everything[-MOST_LINES:])
    return shown(line for line in everything if not line[2] or subject in line[2])


def shown(lines: Iterable[Line]) -> list[str]:
    return [f"{at_ms:>7} ms  {text}" for at_ms, text, _ in lines]


def lines_of_calls(calls: Iterable[ClientCall]) -> list[Line]:
    """Each call when it was made, and when it was answered."""
    found: list[Line] = []
    for call in calls:
        operation = call.operation
        size = (
            f", {operation.size_bytes} bytes"
            if operation.verb in ("put", "upsert", "put_many", "reserve", "abandon")
            else ""
        )
        name = f"{operation.verb} {operation.number} of {' '.join(operation.keys)}"
        found.append((call.called_ns // MS, f"client-{operation.client}: {name}{size}", operation.keys))
        if call.answered_ns >= 0:
            answer = call.error or _answer(call.result)
            text = f"client-{operation.client}: {name} is answered: {call.outcome} {answer}"
            found.append((call.answered_ns // MS, text, operation.keys))
    return found


def _answer(result: object) -> str:
    if isinstance(result, dict):
        return " ".join(f"{key}={_answer(value)}" for key, value in result.items()) or "nothing"
    if isinstance(result, bytes):
        number = number_of(result)
        return f"<{len(result)} bytes of {f'put {number}' if number is not None else 'no put'}>"
    return repr(result)


def subjects_of(record: Record, key_of: Callable[[int], str]) -> tuple[str, ...]:
    """The keys that a record is about; if it is only about a range, the key of that range's owner."""
    match record:
        case r.ObjectsCommitted():
            gone = unpack_ids(record.replaced) + unpack_ids(record.leased)
            return (*record.keys, *map(key_of, gone))
        case r.ObjectsRemoved():
            return tuple(map(key_of, unpack_ids(record.ids) + unpack_ids(record.leased)))
        case r.ObjectsEvicted():
            return tuple(map(key_of, unpack_sorted_ids(record.ids).tolist()))
        case r.RangesGranted() | r.GrantEnded() | r.GrantCleared():
            return (f"grant {record.grant.serial}",)
        case r.RangesFreed():
            return tuple(f"quarantine entry {entry}" for entry in record.entries)
        case r.RemovalAnswered():
            return (f"client {record.client:x}",)
        case _:
            return ()


def text_of(record: Record) -> str:
    fields: Mapping[str, object] = {name: getattr(record, name) for name in record.__struct_fields__}
    return f"{type(record).__name__} " + " ".join(f"{name}={_value(value)}" for name, value in fields.items())


def _value(value: object) -> str:
    if isinstance(value, bytes):
        if len(value) % 8 == 0 and len(value) <= 64:
            return "[" + " ".join(f"{word:x}" for word in unpack_ids(value)) + "]"
        return f"<{len(value)} bytes>"
    return str(msgspec.to_builtins(value))
