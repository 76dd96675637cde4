"""What clients saw, as lines of a file: each call when it began, and again when it ended.

Times are of CLOCK_MONOTONIC, which all processes of one machine share. A call that has no second line was under way
when its process was killed: it may have happened. The lines become the simulator's `ClientCall`s, so that its checkers
judge them. A value that was read is told by the number of the put that it is of and its length, never by its bytes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from holdfast.simulation.scripts.history import ClientCall, Outcome, number_of, value_of
from holdfast.simulation.scripts.script import Operation, Verb

WRONG = -1
"""As the number of a value: it is of no put, or of several."""
LEFT_OUT = "not read"
"""In place of a value: the key was left out of a batch because no node gave it."""
OF_NO_PUT = bytes(range(9))
assert number_of(OF_NO_PUT) is None, "it stands for bytes that nobody put"


class HistoryFile:
    """Written by one client; a line is handed to the kernel before the call begins, so that a kill loses none."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", buffering=1)

    def began(self, number: int, verb: Verb, keys: Iterable[str], size: int, since: dict[str, int], pin: str) -> None:
        self._say(begin=number, at=time.monotonic_ns(), verb=verb, keys=list(keys), size=size, since=since, pin=pin)

    def ended(
        self, number: int, outcome: Outcome, result: object = None, error: str = "", without: bool = False
    ) -> None:
        """`without`: what lies on nodes that do not answer was left out."""
        self._say(end=number, at=time.monotonic_ns(), outcome=outcome, result=result, error=error, without=without)

    def defect(self, text: str) -> None:
        self._say(defect=text, at=time.monotonic_ns())

    def close(self) -> None:
        self._file.close()

    def _say(self, **line: object) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


def seen(value: bytes | memoryview | None) -> list[int] | None:
    """A value as it is told: (number of its put, length)."""
    if value is None:
        return None
    number = number_of(bytes(value))
    return [WRONG if number is None else number, len(value)]


@dataclass(slots=True)
class Told:
    """What one client told."""

    client: str
    calls: list[ClientCall] = field(default_factory=list)
    reads: list[tuple[ClientCall, str, int, int]] = field(default_factory=list)
    """(call, key, number, length) of every value that was read."""
    defects: list[str] = field(default_factory=list)


def read_history(path: Path) -> Told:
    told = Told(path.stem)
    open_calls: dict[int, ClientCall] = {}
    for text in path.read_text().splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue  # The line that its writer was killed in.
        if "defect" in line:
            told.defects.append(f"{told.client}: {line['defect']}")
        elif "begin" in line:
            call = open_calls[line["begin"]] = _begun(line)
            told.calls.append(call)
        else:
            _end(told, open_calls.pop(line["end"]), line)
    return told


def _begun(line: dict[str, Any]) -> ClientCall:
    operation = Operation(
        at_ms=0,
        client=0,
        verb=line["verb"],
        number=line["begin"],
        keys=tuple(line["keys"]),
        size_bytes=line["size"],
        pin=line["pin"],
    )
    return ClientCall(operation, line["at"], leased_since_ns=line["since"])


def _end(told: Told, call: ClientCall, line: dict[str, Any]) -> None:
    call.answered_ns, call.outcome, call.error = line["at"], line["outcome"], line["error"]
    call.asked_without = line["without"]
    result = line["result"]
    if call.outcome == "done" and call.operation.verb in ("get", "view", "get_many"):
        found = result if call.operation.verb == "get_many" else {call.operation.keys[0]: result}
        call.left_out = frozenset(key for key, value in found.items() if value == LEFT_OUT)
        found = {key: value for key, value in found.items() if key not in call.left_out}
        call.result = {key: _value(told, call, key, value) for key, value in found.items()}
    else:
        call.result = result


def _value(told: Told, call: ClientCall, key: str, value: list[int] | None) -> bytes | None:
    if value is None:
        return None
    number, length = value
    told.reads.append((call, key, number, length))
    return OF_NO_PUT if number == WRONG else value_of(number, 8)
