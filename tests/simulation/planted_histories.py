"""Bugs of masters that meet another history, planted on purpose."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from holdfast.master.histories import histories
from holdfast.master.histories.histories import Histories
from holdfast.master.roles import standby_role
from holdfast.replication.snapshot_store import SnapshotStore
from tests.simulation.planted import Patch, Planted, both


def trim_by_the_numbers_of_another_history() -> Patch:
    def trim_through(self: SnapshotStore, log_id: int) -> int:
        batches = sorted((one.batch for kept in self.histories().values() for one in kept), reverse=True)
        return batches[1] if len(batches) > 1 else 0

    return patch.object(SnapshotStore, "trim_through", trim_through)


def start_by_the_numbers_of_another_history() -> Patch:
    """The newest snapshot is taken whose number is in the log, whatever it is of."""

    async def goes_through(coordination: Any, position: Any) -> bool:
        return bool(await coordination.last_index() >= position.batch)

    return both(
        patch.object(histories, "goes_through", goes_through), patch.object(standby_role, "goes_through", goes_through)
    )


def begin_empty_without_being_told() -> Patch:
    async def is_first(self: Histories) -> bool:
        return True

    return patch.object(Histories, "_is_first", is_first)


PLANTED_IN_HISTORIES = [
    Planted("trim by another history", trim_by_the_numbers_of_another_history, ("I13",), 60),
    Planted(
        "start from another history", start_by_the_numbers_of_another_history, ("I5", "I13", "I19", "liveness"), 60
    ),
    Planted("begin empty unasked", begin_empty_without_being_told, ("I19",), 30),
]
