"""Short scripts with a fault at every moment at which it makes a difference: no randomness, nothing left out.

A process can be killed, stopped or cut off between any two events, but that makes another run only after an event of
its own. So each fault is placed after each event of the process that it hits, from the first operation until the last
was answered. With `pairs`, every two of a selection are placed together.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import msgspec

from holdfast.simulation.kernel.scheduler import MS
from holdfast.simulation.runs.run import owners_of
from holdfast.simulation.scripts.script import Fault, FaultKind, Operation, Script, ScriptShape, Verb

FIRST_MS = 600
STEP_MS = 40
CALM_MS = 300
"""How long faults are placed after the last operation has begun."""
_WORLD = ScriptShape(masters=2, nodes=2, clients=2, segment_bytes=1 << 20)
_BIG = 200_000


def _script(*operations: Operation, faults: tuple[Fault, ...] = ()) -> Script:
    """One operation after the other, each by a client that may or may not have read the last one's write."""
    placed = tuple(
        msgspec.structs.replace(operation, at_ms=FIRST_MS + STEP_MS * i, number=i + 1)
        for i, operation in enumerate(operations)
    )
    return Script(1, _WORLD, placed, faults)


def _does(client: int, verb: Verb, size_bytes: int = 0, replicas: int = 1, hold_ms: int = 0) -> Operation:
    return Operation(0, client, verb, 0, ("key/0",), size_bytes, replicas, hold_ms=hold_ms)


SHORT_SCRIPTS: dict[str, Script] = {
    "put": _script(_does(0, "put", 1_000), _does(1, "get")),
    "replicas": _script(_does(1, "put", _BIG, replicas=2), _does(0, "get"), _does(1, "get")),
    "replace": _script(
        _does(0, "put", 1_000), _does(1, "view", hold_ms=400), _does(0, "upsert", 2_000), _does(1, "get")
    ),
    "remove": _script(
        _does(0, "put", 1_000), _does(1, "get"), _does(0, "force_remove"), _does(0, "put", 3_000), _does(1, "get")
    ),
    "hand-over": _script(
        _does(0, "put", 1_000),
        _does(1, "upsert", 2_000),
        _does(0, "get"),
        faults=(Fault(FIRST_MS + STEP_MS + 5, "hand_over", 0),),
    ),
}
_BEFALLS: dict[str, tuple[FaultKind, ...]] = {
    "master": ("kill_master", "pause_master", "partition"),
    "node": ("kill_node", "pause_node", "partition"),
    "client": ("kill_client", "pause_client", "partition"),
}
_LASTS_MS: dict[FaultKind, int] = {
    "kill_master": 500, "kill_node": 500, "kill_client": 500,
    "pause_master": 1_500, "pause_node": 1_500, "pause_client": 5_000, "partition": 1_500,
}  # fmt: skip


def single_faults(script: Script) -> list[Fault]:
    """Every fault of every process after every event of it."""
    last_ms = max(operation.at_ms for operation in script.operations) + CALM_MS
    found = []
    for steps, (when_ns, owner) in enumerate(owners_of(script, last_ms), 1):
        if when_ns < FIRST_MS * MS:
            continue
        for name, kinds in _struck_behind(script, owner):
            found += [Fault(when_ns // MS, kind, _LASTS_MS[kind], name, after_steps=steps) for kind in kinds]
    return found


def _struck_behind(script: Script, owner: str) -> Iterator[tuple[str, tuple[FaultKind, ...]]]:
    """The processes that a fault hits after an event of this one. Clients reach into nodes in their own events."""
    for prefix, kinds in _BEFALLS.items():
        if owner.startswith(prefix):
            yield owner, kinds
    if owner.startswith("client"):
        for i in range(script.shape.nodes):
            yield f"node-{i}", _BEFALLS["node"]


def exhausted(script: Script, every: int = 1, pairs: bool = False) -> Iterator[Script]:
    """The script with one fault at a time, or two; `every` n takes only each n-th fault."""
    faults = single_faults(script)[::every]
    chosen = combinations(faults, 2) if pairs else ((fault,) for fault in faults)
    for some in chosen:
        if len({fault.after_steps for fault in some}) == len(some):
            yield msgspec.structs.replace(script, faults=(*script.faults, *some))
