"""The simulated coordination service: the memory backend at the end of a network that loses, delays and repeats.

A request may be lost before the change, or its reply after the change. Watch events are late, lost or repeated. The
store can fail altogether, and can drop a leader as a server drops a lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.coordination.interface import CoordinationLost
from holdfast.coordination.memory import Cluster, MemoryLink, MemoryStore
from holdfast.errors import ReplyLost
from holdfast.instant import Clock
from holdfast.simulation.kernel.process import ProcessLoop
from holdfast.simulation.kernel.scheduler import SECOND

STORE = "store"
ANSWER_S = 1.0


@dataclass(slots=True)
class StoreFaults:
    """The current faults of the store; shares are between 0 and 1."""

    outages: int = 0
    lost_requests: float = 0.0
    lost_answers: float = 0.0
    lost_watches: float = 0.0
    repeated_watches: float = 0.0
    late_ms: int = 0


class ObservedCluster(Cluster):
    """Reports every change to the checkers, at the moment it happens."""

    __slots__ = ("observe",)
    observe: Callable[[], None]

    def changed(self) -> None:
        self.observe()
        super().changed()


class ObservedStore(MemoryStore):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.only = ObservedCluster()
        self.only.observe = lambda: None

    def cluster(self, name: str) -> Cluster:
        return self.only


class StoreLink(MemoryLink):
    def __init__(self, store: MemoryStore, process: ProcessLoop, faults: StoreFaults) -> None:
        super().__init__(store)
        self._process = process
        self._faults_now = faults

    def _is_lost(self, sender: str, receiver: str, share: float) -> bool:
        process = self._process
        return process.network.is_cut(sender, receiver) or process.chance.random() < share

    async def _travel(self) -> None:
        process = self._process
        late_ns = int(process.chance.random() * self._faults_now.late_ms * 1_000_000)
        await asyncio.sleep((process.network.delay_ns() + late_ns) / SECOND)

    async def arrive(self) -> None:
        await self._travel()
        faults = self._faults_now
        if faults.outages or self._is_lost(self._process.name, STORE, faults.lost_requests):
            await asyncio.sleep(ANSWER_S)
            raise CoordinationLost("the store does not answer; nothing was changed")

    async def answer(self) -> None:
        faults = self._faults_now
        if faults.outages or self._is_lost(STORE, self._process.name, faults.lost_answers):
            await asyncio.sleep(ANSWER_S)
            raise ReplyLost("the store's answer was lost")
        await self._travel()

    def tell(self) -> None:
        process = self._process
        faults = self._faults_now
        if process.dead or faults.outages or self._is_lost(STORE, process.name, faults.lost_watches):
            return
        for _ in range(2 if process.chance.random() < faults.repeated_watches else 1):
            late_ns = int(process.chance.random() * faults.late_ms * 1_000_000)
            process.scheduler.after(process.network.delay_ns() + late_ns, self.changes.bump, process)
