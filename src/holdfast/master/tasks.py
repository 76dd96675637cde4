"""Concurrent tasks: wait for the first of several, end all of them, and let none outlive the role that started it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Self, TypeVar

from holdfast.errors import HoldfastError
from holdfast.supervisor import Supervisor

T = TypeVar("T")


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


class RoleTasks:
    """The tasks of one role. When its `async with` block is left, in any way, none of them runs any more.

    Unlike in an `asyncio.TaskGroup`, a task that fails ends no other. Either the role waits for it (`start`, then
    `first`) and the error ends the role, or the work is supervised (`keep`), and is tried again (ADR 30).
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work that the role waits for."""
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    def keep(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Run background work of the role. Its failure is logged and shown under its name; the role goes on."""
        self._tasks.append(asyncio.create_task(self._supervisor.keep(name, work), name=name))

    async def end(self) -> None:
        """End all of them. Raises as `until_ended` does."""
        tasks, self._tasks = self._tasks, []
        await until_ended(*tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()
