"""Whole masters in the test's own event loop, over a coordination in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.coordination.memory import MemoryCoordination
from holdfast.master.plan import Plan
from holdfast.master.roles.master import Master
from holdfast.master.server import RpcServer
from holdfast.replication.log_writer import LogWriter
from holdfast.replication.snapshot_store import SnapshotStore


@asynccontextmanager
async def running_master(
    coordination: MemoryCoordination, plan: Plan, folder: Path | None, name: str = "here"
) -> AsyncIterator[Master]:
    master = Master(RpcServer(name, ""), coordination, plan, SnapshotStore(folder))
    task = asyncio.create_task(master.run())
    try:
        yield master
    finally:
        task.cancel()
        await asyncio.wait([task])
        await coordination.close()


def gate_flush(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Promotions stop where their epoch is about to become durable: that one has come there, and that it may go on."""
    reached, may_go_on = asyncio.Event(), asyncio.Event()
    flush = LogWriter.flush

    async def gated(writer: LogWriter) -> None:
        reached.set()
        await may_go_on.wait()
        await flush(writer)

    monkeypatch.setattr(LogWriter, "flush", gated)
    return reached, may_go_on
