"""A backend's part that is the same on every backend: its timing, its campaigns and the terms that it has won."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator

from holdfast.coordination import watches
from holdfast.coordination.campaign import Contest, campaign
from holdfast.coordination.interface import Leader, Term
from holdfast.coordination.terms import Timing, WonTerms
from holdfast.supervisor import Supervisor


class Candidate(Contest):
    def __init__(self, timing: Timing, supervisor: Supervisor | None, changes: watches.Changes | None = None) -> None:
        """`changes` counts what may have changed the leader; if none is given, the backend bumps a count of its own."""
        self.timing = timing
        self.supervisor = supervisor if supervisor is not None else Supervisor()
        self.epoch_floor = 0
        self._leader_changes = changes if changes is not None else watches.Changes()
        self._terms = WonTerms()

    async def campaign(self, address: str, replacing: int | None = None) -> Term:
        return await campaign(self, address, replacing)

    def leader_changes(self) -> int:
        return self._leader_changes.count

    async def leader_changed(self, seen: int, wait_s: float) -> None:
        await self._leader_changes.beyond(seen, wait_s)

    @abstractmethod
    async def leader(self) -> Leader | None: ...

    def watch_leader(self) -> AsyncGenerator[Leader | None, None]:
        return watches.watch_leader(
            self.leader, self.leader_changes, self.leader_changed, self.look_every_s, self.timing.sleep
        )
