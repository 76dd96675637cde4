"""Commands of simulated nodes: production's table and copies; bytes are read in one step if the network allows it.

Orders for the disk have a worker of their own, as in production: a slow disk delays only the disk's work. So has the
comparison of its files with a restored catalogue.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from holdfast.errors import HoldfastError, Unreachable
from holdfast.ids import GrantId, SegmentName
from holdfast.instant import now_seconds
from holdfast.messages.hello import fresh_hello
from holdfast.messages.shapes import Ticket
from holdfast.node.commands.copier import CONNECT_SECONDS, Copier, Pace
from holdfast.node.commands.handlers import DiskLane, Lane
from holdfast.node.memory.lent_memory import Lending
from holdfast.node.memory.proofs import RefusedGrants, TicketBook
from holdfast.operations.effects import Operation, Work
from holdfast.operations.link import LinkOptions, PlainCaller
from holdfast.operations.masters import Masters
from holdfast.operations.tasks import TaskRunner
from holdfast.simulation.kernel.process import ProcessLoop
from holdfast.simulation.world.node_disks import SimulatedDisk
from holdfast.transport.data_tcp import WantedRange


class Served(Protocol):
    def read(self, wanted: WantedRange) -> None: ...
    def check_file(self, segment: SegmentName, ticket: Ticket, offset: int) -> None: ...


class Peer(Protocol):
    """Another node, whose bytes may be reachable."""

    name: str
    process: ProcessLoop | None

    @property
    def alive(self) -> Served | None: ...


class LateRunner(TaskRunner):
    """Its threads begin their work late, if the disk that they work on is slow."""

    late_seconds: Callable[[], float]

    def _to_thread(self, work: Work) -> asyncio.Future[Any]:
        late = self.late_seconds()
        return self._loop.create_task(self._later(late, work)) if late else super()._to_thread(work)

    async def _later(self, late_seconds: float, work: Work) -> Any:
        await asyncio.sleep(late_seconds)
        return await super()._to_thread(work)


class SimulatedWorker:
    """Carries out orders one after the other, over a connection of its own."""

    def __init__(self, late_seconds: Callable[[], float]) -> None:
        self._late_seconds = late_seconds
        self._orders: asyncio.Queue[Operation[Any]] = asyncio.Queue(1_024)

    def add(self, what: str, order: Operation[Any]) -> bool:
        self._orders.put_nowait(order)
        return True

    async def run(self, masters: str) -> None:
        runner = LateRunner(Masters(masters), PlainCaller(fresh_hello()), LinkOptions(CONNECT_SECONDS))
        runner.late_seconds = self._late_seconds
        try:
            while True:
                # If no master got the message, the grant times out.
                with contextlib.suppress(HoldfastError):
                    await runner.run(await self._orders.get())
        finally:
            runner.hang_up("the node has ended")


class SimulatedCopies:
    """The workers of a node: for copies, and for its disk if it has one."""

    def __init__(
        self,
        node: str,
        lending: Lending,
        peers: Mapping[str, Peer],
        process: ProcessLoop,
        tickets: TicketBook,
        disk: SimulatedDisk | None = None,
    ) -> None:
        self._tickets = tickets
        self.refused = RefusedGrants()
        self._lending = lending
        self._peers = peers
        self._process = process
        copier = Copier(node, self, self, lending.disk, Pace(), now_seconds)
        self.workers = [SimulatedWorker(lambda: 0.0)]
        self.memory = Lane(self.workers[0], copier)
        self.disk: DiskLane | None = None
        if disk is not None and lending.disk is not None:
            self.workers += [SimulatedWorker(lambda: disk.late_seconds) for _ in range(2)]
            self.disk = DiskLane(self.workers[1], copier, self.workers[2], lending.disk)

    def lends(self, name: SegmentName) -> bool:
        return self._lending.lends(name)

    def range_of(self, name: SegmentName, offset: int, length: int) -> memoryview:
        return self._lending.range_of(name, offset, length)

    def fetch(self, address: str, ranges: Sequence[WantedRange]) -> None:
        served = self._reach(address)
        for each in ranges:
            served.read(each)

    def _reach(self, address: str) -> Served:
        peer = self._peers[address.partition(":")[0]]
        network, me = self._process.network, self._process.name
        served = peer.alive
        paused = peer.process is not None and peer.process.paused
        if served is None or paused or network.is_cut(me, peer.name) or network.is_cut(peer.name, me):
            raise Unreachable(f"{peer.name} does not answer")
        return served

    def check_file(self, address: str, name: SegmentName, ticket: Ticket, offset: int) -> None:
        with contextlib.suppress(HoldfastError):  # The node reports damage itself.
            self._reach(address).check_file(name, ticket, offset)

    def begin_copy(self, grant: GrantId) -> None:
        self.refused.check(grant)

    def fence(self, segment: SegmentName, offset: int, length: int, issued: int) -> None:
        self._tickets.fences.put_up(segment, offset, length, issued)

    def end_copy(self, grant: GrantId) -> None:
        """Does nothing: a piece is copied in one step, so that `clean` never finds one half done."""

    def is_refused(self, grant: GrantId) -> bool:
        return grant in self.refused
