"""Bugs about bytes that are on their way, planted on purpose."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from holdfast.client.async_runner import AsyncRunner
from simulation.planted import Patch, Planted


def leave_a_cancelled_put_to_its_thread() -> Patch:
    """Its grant is given back while the thread still copies into it."""

    async def finish(self: AsyncRunner, working: Any, into_caller: bool) -> object:
        return await working  # Cancelled with its caller; the thread knows nothing of it.

    return patch.object(AsyncRunner, "_finish", finish)


PLANTED_IN_BYTES = (
    Planted("leave a cancelled put to its thread", leave_a_cancelled_put_to_its_thread, ("I2", "I9", "I11"), 2000),
)
