"""The machines of a simulated world: which processes share one, and what they see of each other there.

A process has one number through all its lives, and another start time in each life: so a restarted process has the
number of a dead one. A stopped process exists; a killed one does not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.ids import ProcessName
from holdfast.witness import Seen

if TYPE_CHECKING:
    from holdfast.simulation.kernel.process import ProcessLoop


@dataclass(slots=True)
class Machine:
    """One kernel; all processes on it see each other."""

    name: str
    processes: dict[int, ProcessLoop] = field(default_factory=dict)
    """Number -> the process that has it, dead or alive."""

    def started(self, number: int, process: ProcessLoop) -> None:
        self.processes[number] = process

    def name_of(self, process: ProcessLoop) -> ProcessName:
        return ProcessName(process.number, process.life, self.name)

    def see(self, number: int) -> Seen | None:
        process = self.processes.get(number)
        return Seen(process.life, exited=False) if process is not None and not process.dead else None


def place(seed: int, masters: list[str], nodes: list[str], others: list[str]) -> dict[str, Machine]:
    """Each process's machine. In half of the seeds there is a node beside each master, if there are enough; in a
    quarter all masters and a node share one machine; in a quarter every process is alone."""
    names = {name: name for name in (*masters, *nodes, *others)}
    kind = random.Random(f"machines {seed}").choice(("beside", "beside", "together", "alone"))
    if kind == "beside":
        names.update(zip(nodes, masters, strict=False))
    elif kind == "together":
        names.update(dict.fromkeys((*masters, nodes[0]), masters[0]))
    machines = {name: Machine(name) for name in names.values()}
    return {process: machines[name] for process, name in names.items()}
