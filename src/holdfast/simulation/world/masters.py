"""A simulated master: the production roles, engine and server in a process of the world."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.coordination.memory import MemoryCoordination, MemoryStore
from holdfast.identity.identities import Identities
from holdfast.instant import now_seconds
from holdfast.master.engine.engine import Engine
from holdfast.master.engine.guard import UpkeepFailure
from holdfast.master.plan import Plan
from holdfast.master.roles.master import Master
from holdfast.master.server import RpcServer
from holdfast.master.status.view import MasterView
from holdfast.simulation.kernel.process import ProcessLoop
from holdfast.simulation.world.disks import Disk, SnapshotDisk, at_once
from holdfast.simulation.world.store import StoreFaults, StoreLink
from holdfast.supervisor import Supervisor

PORT = 7070


class StrictSupervisor(Supervisor):
    """Counts a defect in background work as a failure of the process, though a real process would go on."""

    def __init__(self, machine: MasterMachine) -> None:
        super().__init__()
        self._machine = machine

    def found_defect(self, name: str, error: BaseException) -> None:
        process = self._machine.process
        if process is not None and not process.dead:
            trace = "".join(traceback.format_exception(error)[-3:])
            process.failures.append(f"{process.name}: {name} failed by {error!r}\n{trace}")


class ObservedServer(RpcServer):
    def __init__(self, machine: MasterMachine) -> None:
        super().__init__(machine.name, "", supervisor=StrictSupervisor(machine), identities=machine.identities)
        self.tick_seconds = 0.1  # Half as many events; no promise depends on it.
        self._machine = machine

    def lead(self, engine: Engine) -> None:
        self._machine.leads(self._machine, engine)
        super().lead(engine)

    def upkeep_failed(self, failure: UpkeepFailure) -> None:
        """Count it as a violation: the checkers report errors that no code of the process handled."""
        super().upkeep_failed(failure)
        assert self._machine.process is not None
        trace = "".join(traceback.format_exception(failure.error)[-3:])
        self._machine.process.failures.append(f"upkeep, {failure.kind} {failure.subject}: {failure.error!r}\n{trace}")


@dataclass(slots=True)
class MasterMachine:
    """One master through all its lives."""

    name: str
    plan: Plan
    store: MemoryStore
    faults: StoreFaults
    leads: Callable[[MasterMachine, Engine], None]
    """Called when it begins to serve as primary."""
    identities: Identities | None = None
    """Of the tenants' clients, and of everybody else; None: everybody may do everything."""
    disk: Disk = field(default_factory=Disk)
    process: ProcessLoop | None = None
    master: Master | None = None

    def start(self, process: ProcessLoop) -> None:
        self.process = process
        self.master = None  # That of its last life is dead, also until this one has begun.
        process.spawn(self._main)

    async def _main(self) -> None:
        assert self.process is not None
        server = ObservedServer(self)
        await server.start(self.name, PORT)
        coordination = MemoryCoordination(
            self.store,
            leader_ttl_ms=self.plan.leader_ttl_ms,
            clock=now_seconds,
            link=StoreLink(self.store, self.process, self.faults),
            supervisor=server.supervisor,
        )
        self.master = Master(server, coordination, self.plan, SnapshotDisk(self.disk))
        MasterView(self.master)  # It answers requests about the process, such as for snapshots.
        assert self.master.snapshots is not None
        self.master.snapshots.in_child = at_once  # type: ignore[assignment]
        await self.master.run()

    @property
    def alive(self) -> Master | None:
        """The master, while its process lives."""
        return self.master if self.process is not None and not self.process.dead else None
