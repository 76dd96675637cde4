"""Bugs about bytes that are on their way, planted on purpose."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from holdfast.client.async_runner import AsyncRunner
from holdfast.client.operations import reservations
from holdfast.client.state.client import Core
from holdfast.client.state.grants import Grants, WriteGrant
from tests.simulation.planted import Patch, Planted


def leave_a_cancelled_put_to_its_thread() -> Patch:
    """Its grant is given back while the thread still copies into it."""

    async def finish(self: AsyncRunner, working: Any, into_caller: bool) -> object:
        return await working  # Cancelled with its caller; the thread knows nothing of it.

    return patch.object(AsyncRunner, "_finish", finish)


def use_what_came_ahead_after_it_was_given_back() -> Patch:
    """It was idle for too long, and its memory may be somebody else's."""
    retire = Grants._retire

    def keep_ahead(self: Grants, grant: WriteGrant, now: float) -> None:
        retire(self, grant, now)
        if grant.kind is not None and grant.kind[2]:
            self._shared[grant.kind] = grant

    return patch.object(Grants, "_retire", keep_ahead)


def free_an_abandoned_reservation_under_its_writer() -> Patch:
    """Its memory is given back while a thread still copies into it."""

    def give_up_ended(core: Core, share: reservations.Share) -> None:
        if share.ended and core.shares.pop(share, None) is not None:
            core.grants.release(share.grant, core.clock())

    return patch.object(reservations, "_give_up_ended", give_up_ended)


PLANTED_IN_BYTES = (
    Planted(
        "free an abandoned reservation under its writer",
        free_an_abandoned_reservation_under_its_writer,
        ("I2", "I9", "I11"),
        60,
        scene="engine",
    ),
    Planted("use what came ahead after it was given back", use_what_came_ahead_after_it_was_given_back, ("I2",), 1200),
    Planted("leave a cancelled put to its thread", leave_a_cancelled_put_to_its_thread, ("I2", "I9", "I11"), 2000),
)
