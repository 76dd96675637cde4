"""Waiting for tasks that run beside each other."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.errors import HoldfastError


async def first(*tasks: asyncio.Task[Any]) -> None:
    """Until one of them is done; its error, if it failed. Of several, the first in this order."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():
            task.result()


async def until_ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel them, and wait until nothing of them runs any more.

    Whoever cancels the waiting itself is not overheard: that it was asked to end is told once all of them have. The
    first error that was not foreseen is raised, also after all of them have ended.
    """
    this = asyncio.current_task()
    assert this is not None, "it is awaited by a task"
    asked_before = this.cancelling()
    for task in tasks:
        task.cancel()
    defect: Exception | None = None
    for task in tasks:
        try:
            await task
        except (asyncio.CancelledError, HoldfastError):
            continue
        except Exception as error:  # noqa: BLE001 - it is raised below.
            defect = defect or error
    if this.cancelling() > asked_before:
        raise asyncio.CancelledError
    if defect is not None:
        raise defect
