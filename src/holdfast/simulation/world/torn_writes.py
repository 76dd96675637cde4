"""Copies that take time: of a large put, the second half is written some time after the first, or never.

Between the two the process may be stopped, die, or have the call cancelled; the range must go to nobody else until the
thread has finished with it (I2, I11). Small puts are copied in the loop itself, in one step, as in production, where
nothing else of the process runs meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import xxhash

from holdfast.client.arguments import Gathered
from holdfast.client.async_runner import AsyncRunner
from holdfast.client.operations.transfer import MappedWrite, RemoteWrite
from holdfast.client.state.client import Core
from holdfast.messages.shapes import Message
from holdfast.operations.effects import Work
from holdfast.operations.masters import Masters
from holdfast.simulation.kernel.process import ProcessLoop
from holdfast.transport.async_channel import AsyncChannel, PendingAsyncCall

TORN_SHARE = 0.5


def halves_of(run: Callable[[], Any]) -> tuple[Callable[[], Any], Callable[[], Any]] | None:
    """The same copy as two halves, one after the other; None if it is not a copy."""
    if not isinstance(run, MappedWrite | RemoteWrite):
        return None
    # Simulated clients put bytes, none from several buffers.
    values = [memoryview(value) for value in run.values if not isinstance(value, Gathered)]
    cuts = [len(value) // 2 for value in values]
    first = replace(run, values=[value[:cut] for value, cut in zip(values, cuts, strict=True)])
    second = replace(
        run,
        values=[value[cut:] for value, cut in zip(values, cuts, strict=True)],
        offsets=[offset + cut for offset, cut in zip(run.offsets, cuts, strict=True)],
    )
    return first, second


class TearingRunner(AsyncRunner):
    def __init__(
        self, core: Core, masters: Masters, process: ProcessLoop, sent: Callable[[Message], None] = lambda message: None
    ) -> None:
        """`sent` is called with every message at the moment it is sent."""
        super().__init__(core, masters)
        self._process = process
        self._sent = sent

    def _send(self, channel: AsyncChannel, message: Message, deadline: float) -> PendingAsyncCall:
        self._sent(message)
        return super()._send(channel, message, deadline)

    def _to_thread(self, work: Work) -> asyncio.Future[Any]:
        halves = halves_of(work.run)
        if halves is None or self._process.chance.random() >= TORN_SHARE:
            return super()._to_thread(work)
        assert isinstance(work.run, MappedWrite | RemoteWrite), "it has halves"
        return self._process.create_task(self._both(*halves, work.run))

    async def _both(
        self, first: Callable[[], Any], second: Callable[[], Any], whole: MappedWrite | RemoteWrite
    ) -> object:
        await self._process.run_in_executor(None, first)
        written = await self._process.run_in_executor(None, second)
        values = [value for value in whole.values if not isinstance(value, Gathered)]
        return [xxhash.xxh3_64_intdigest(value) or 1 for value in values] if whole.checksum else written
