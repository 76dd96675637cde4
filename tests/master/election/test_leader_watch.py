"""A master that waits until another one leads ends when it is told to, in whatever moment that is."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.coordination.interface import Leader
from holdfast.core.rules import Rules
from holdfast.master.election.leader_watch import LeaderWatch
from holdfast.master.plan import Plan
from holdfast.master.server import RpcServer


@pytest.mark.parametrize("turns", range(6))
def test_a_cancellation_is_not_lost_when_another_master_is_seen_in_the_same_moment(turns: int) -> None:
    """`turns`: of the event loop, between the two."""

    async def campaign(watch: LeaderWatch) -> None:
        await watch.backed_off()
        await asyncio.Event().wait()

    async def story() -> None:
        watch = LeaderWatch(RpcServer("here", ""), Plan(Rules(), "c", "here:1"))
        watch.back_off()
        campaigning = asyncio.create_task(campaign(watch))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        watch._see(Leader(2, "there:1"))
        for _ in range(turns):
            await asyncio.sleep(0)
        campaigning.cancel()
        done, _ = await asyncio.wait([campaigning], timeout=5)
        assert done, "it campaigns on"
        assert campaigning.cancelled()

    asyncio.run(story())
