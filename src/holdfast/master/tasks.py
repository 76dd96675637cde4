"""Wait for concurrent tasks."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.errors import HoldfastError


async def first(*tasks: asyncio.Task[Any]) -> None:
    """Wait until one of them is done, and raise its error if it failed. Of several errors, the first in this order."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():
            task.result()


async def until_ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel them, and wait until none of them runs.

    A cancellation of the waiting task itself is not lost: it is raised once all of them have ended. So is the first
    unexpected error (not a HoldfastError).
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
