"""Standbys' knowledge of leases and evictions beside the log: soft, so that losing it breaks no promise; but once the
world has healed, none of it is lost.

If evictions are logged, a standby hides nothing. If renewals pass beside the log, it knows every use under the current
primary, as late as the primary does: otherwise it would first evict objects in use.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from holdfast.core.catalogue.catalogue import LIVE, MASKED
from holdfast.core.state.state import State
from holdfast.master.engine.engine import Engine
from holdfast.simulation.checks.log_checks import Report
from holdfast.simulation.kernel.process import ProcessLoop
from holdfast.simulation.kernel.scheduler import MS
from holdfast.simulation.world.masters import MasterMachine
from holdfast.simulation.world.world import World

LATE_MS = 1_500
"""How far clock drift and a value's delay may move one moment."""


@dataclass(eq=False)
class RenewalChecks:
    _world: World
    _report: Report
    _led_since: dict[str, int] = field(default_factory=dict)
    """By master: when it began to lead, by its own clock."""

    def leads(self, machine: MasterMachine) -> None:
        assert machine.process is not None
        self._led_since[machine.name] = _now_ms(machine.process)

    def look(self, name: str, state: State) -> None:
        """Check a standby. Called now and then."""
        if self._world.rules.logs_evictions and state.mask:
            self._report("I5", f"{name} hides {len(state.mask)} objects, where evictions are in the log", name)

    def untold(self, leading: MasterMachine, engine: Engine) -> str:
        """At rest: a use of an object that a standby does not know."""
        if self._world.rules.lease_sync == "off" or leading.process is None:
            return ""
        catalogue = engine.state.catalogue
        slots = np.flatnonzero((catalogue.flags[: catalogue.top] & (LIVE | MASKED)) == LIVE)
        slots = slots[catalogue.last_used[slots] >= self._led_since[leading.name]]
        now = _now_ms(leading.process)
        uses = [(catalogue.id_at[slot], now - catalogue.used_at[slot]) for slot in slots.tolist()]
        for name, machine in self._world.masters.items():
            if machine.alive is not None and machine is not leading and machine.process is not None:
                late = self._late(machine.alive.standby.state, _now_ms(machine.process), uses)
                if late:
                    return f"{name} {late}"
        return ""

    def _late(self, state: State, now: int, uses: list[tuple[int, int]]) -> str:
        catalogue = state.catalogue
        slots = catalogue.by_id.slots_of([oid for oid, _ in uses])
        for (_, unused_ms), slot in zip(uses, slots, strict=True):
            if slot >= 0 and now - catalogue.used_at[slot] > unused_ms + LATE_MS:
                ago = now - catalogue.used_at[slot]
                return f"takes {catalogue.keys[slot]} for unused since {ago} ms; it was used {unused_ms} ms ago"
        return ""


def _now_ms(process: ProcessLoop) -> int:
    return process.now_ns() // MS
