"""Who leads, as coordination shows it, and how long this master lets another one win first."""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from holdfast.coordination.interface import Coordination, Leader
from holdfast.errors import HoldfastError
from holdfast.instant import now_seconds
from holdfast.master.plan import Plan
from holdfast.master.server import RpcServer

log = structlog.get_logger("holdfast.master")
BACK_OFF_SECONDS = 3.0


class LeaderWatch:
    """The last leader seen, in either role. It gives the server its hint for clients that ask the wrong master."""

    def __init__(self, server: RpcServer, plan: Plan) -> None:
        self.leader: Leader | None = None
        self._server = server
        self._plan = plan
        self._another_leads = asyncio.Event()
        self._campaigns_from = 0.0
        self._gives_way_until = 0.0

    async def run(self, coordination: Coordination) -> None:
        """Run until cancelled."""
        while True:
            try:
                async with contextlib.aclosing(coordination.watch_leader()) as leaders:
                    async for leader in leaders:
                        self._see(leader)
            except HoldfastError as error:
                log.warning("who leads cannot be seen now; it is looked at again", why=str(error))
            await asyncio.sleep(self._plan.again_seconds)

    def _see(self, leader: Leader | None) -> None:
        self.leader = leader
        other = leader is not None and leader.address != self._plan.address
        self._server.leader_hint = leader.address if leader is not None and other else ""
        (self._another_leads.set if other else self._another_leads.clear)()

    def back_off(self) -> None:
        """Let another master win the next term: this one hands over, or cannot serve."""
        self._campaigns_from = now_seconds() + BACK_OFF_SECONDS

    def give_way(self, seconds: float) -> None:
        """Let a certain other master win: this one does not campaign for so long, whoever else may lead meanwhile."""
        self._gives_way_until = now_seconds() + seconds

    async def backed_off(self) -> None:
        """Return when this master may campaign again: another one leads, or none has won for a while."""
        if (left_s := self._gives_way_until - now_seconds()) > 0:
            await asyncio.sleep(left_s)
        with contextlib.suppress(TimeoutError):
            # Not `asyncio.wait_for`: until Python 3.12 it loses a cancellation that comes together with the event, and
            # a master that was told to end would campaign on.
            async with asyncio.timeout(max(0.0, self._campaigns_from - now_seconds())):
                await self._another_leads.wait()
