"""Waiting for tasks that run beside each other."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from holdfast.errors import HoldfastError


async def first(*tasks: asyncio.Task[Any]) -> None:
    """Until one of them is done; its error, if it failed. Of several, the first in this order."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():
            task.result()


async def until_ended(task: asyncio.Task[Any]) -> None:
    """Cancel it, and wait until nothing of it runs any more."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, HoldfastError):
        await task
