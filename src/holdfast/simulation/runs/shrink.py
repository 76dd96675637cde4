"""Make a failing script short: only what is needed to break the promise is left.

First everything after the violation goes; then operations and faults, in halves, quarters and so on down to single
ones (delta debugging); then clients, nodes and the third master. A cut is kept if the same promise still breaks.
A cut also shifts delays, which are drawn during the run; so a cut that seems to heal the run is tried with the delays
of a few other seeds before it is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from holdfast.simulation.runs.run import Run, run
from holdfast.simulation.scripts.script import Fault, Operation, Script, ScriptShape

Step = TypeVar("Step", bound=Operation | Fault)
MOST_RUNS = 600
OTHER_DELAYS = 2


@dataclass(slots=True)
class Shrinking:
    """The shortest failing script so far, and how many runs it took to find."""

    best: Run
    play: Callable[[Script], Run] = run
    most_runs: int = MOST_RUNS
    runs: int = 0
    on_shorter: Callable[[Run], None] = lambda shorter: None

    @property
    def promise(self) -> str:
        assert self.best.violation is not None, "only a run that breaks a promise can be made shorter"
        return self.best.violation.promise

    def shrink(self) -> Run:
        self._cut_the_rest()
        before = None
        while before != self.best.script and self.runs < self.most_runs:
            before = self.best.script
            self._leave_out_faults()
            self._leave_out_operations()
            self._leave_out_processes()
            self._make_simple()
        return self.best

    def _holds_with(self, script: Script) -> bool:
        """Does this shorter script keep the promise? If not, it is the best one now."""
        if script == self.best.script:
            return True
        for other in range(OTHER_DELAYS + 1):
            if self.runs >= self.most_runs:
                return True
            self.runs += 1
            shorter = self.play(msgspec.structs.replace(script, seed=script.seed + other * 1_000_003))
            if shorter.violation is not None and shorter.violation.promise == self.promise:
                self.best = shorter
                self.on_shorter(shorter)
                return False
        return True

    def _cut_the_rest(self) -> None:
        assert self.best.violation is not None, "only a run that breaks a promise can be made shorter"
        end_ms, script = self.best.violation.at_ms, self.best.script
        self._holds_with(
            msgspec.structs.replace(
                script,
                operations=tuple(one for one in script.operations if one.at_ms <= end_ms),
                faults=tuple(one for one in script.faults if one.at_ms <= end_ms),
            )
        )

    def _leave_out_faults(self) -> None:
        def without(kept: Sequence[Fault]) -> Script:
            return msgspec.structs.replace(self.best.script, faults=tuple(kept))

        self._leave_out(lambda: self.best.script.faults, without)

    def _leave_out_operations(self) -> None:
        def without(kept: Sequence[Operation]) -> Script:
            return msgspec.structs.replace(self.best.script, operations=tuple(kept))

        self._leave_out(lambda: self.best.script.operations, without)

    def _leave_out(self, steps: Callable[[], Sequence[Step]], without: Callable[[Sequence[Step]], Script]) -> None:
        size = max(1, len(steps()))
        while True:
            start = 0
            while start < len(steps()):
                now = steps()
                if self._holds_with(without([*now[:start], *now[start + size :]])):
                    start += size
            if size == 1:
                return
            size = (size + 1) // 2

    def _leave_out_processes(self) -> None:
        for smaller in list(smaller_worlds(self.best.script)):
            self._holds_with(smaller)

    def _make_simple(self) -> None:
        """Simplify operations where it still fails: one replica, default durability, no pin, not cancelled, small."""
        for index, operation in enumerate(self.best.script.operations):
            for simple in simpler(operation):
                script = self.best.script
                changed = (*script.operations[:index], simple, *script.operations[index + 1 :])
                self._holds_with(msgspec.structs.replace(script, operations=changed))


def simpler(operation: Operation) -> Iterator[Operation]:
    if operation.replicas > 1:
        yield msgspec.structs.replace(operation, replicas=1)
    if operation.durability is not None:
        yield msgspec.structs.replace(operation, durability=None)
    if operation.pin:
        yield msgspec.structs.replace(operation, pin="")
    if operation.cancel_ms:
        yield msgspec.structs.replace(operation, cancel_ms=0)
    if operation.size_bytes > 4096 + operation.number:
        yield msgspec.structs.replace(operation, size_bytes=64 + operation.number)


def smaller_worlds(script: Script) -> Iterator[Script]:
    """The script with one client, node or master fewer, and without its operations and faults."""
    shape = script.shape
    if shape.clients > 1:
        for gone in range(shape.clients):
            yield without_client(script, gone)
    if shape.nodes > 1:
        yield without_process(script, f"node-{shape.nodes - 1}", _with(shape, nodes=shape.nodes - 1))
    if shape.masters > 1:
        yield without_process(script, f"master-{shape.masters - 1}", _with(shape, masters=shape.masters - 1))


def without_client(script: Script, gone: int) -> Script:
    """The clients after it take its number, and with it perhaps another place."""
    operations = tuple(
        msgspec.structs.replace(one, client=one.client - (one.client > gone))
        for one in script.operations
        if one.client != gone
    )
    tenants = (*script.shape.tenants[:gone], *script.shape.tenants[gone + 1 :])
    shape = _with(script.shape, clients=script.shape.clients - 1, tenants=tenants)
    fewer = without_process(script, f"client-{gone}", shape)
    names = {f"client-{i}": f"client-{i - 1}" for i in range(gone + 1, script.shape.clients)}
    faults = tuple(
        msgspec.structs.replace(fault, one=names.get(fault.one, fault.one), other=names.get(fault.other, fault.other))
        for fault in fewer.faults
    )
    return msgspec.structs.replace(fewer, operations=operations, faults=faults)


def without_process(script: Script, name: str, shape: ScriptShape) -> Script:
    faults = tuple(fault for fault in script.faults if name not in (fault.one, fault.other))
    # Replicas are on distinct nodes, so there can be no more of them than nodes.
    operations = tuple(
        msgspec.structs.replace(one, replicas=min(one.replicas, shape.nodes)) for one in script.operations
    )
    return msgspec.structs.replace(script, shape=shape, faults=faults, operations=operations)


def _with(shape: ScriptShape, **changes: int | tuple[str, ...]) -> ScriptShape:
    return msgspec.structs.replace(shape, **changes)
