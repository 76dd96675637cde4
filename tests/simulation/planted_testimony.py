"""Planted bugs about proof of a primary's end: testimony of what was not seen, or could not be."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

from holdfast.coordination import campaign
from holdfast.core import decide
from holdfast.core.nodes import testimony
from holdfast.core.primary.primary import Primary
from holdfast.ids import ProcessName
from holdfast.messages.of_nodes import ReportGone
from holdfast.node.session import testimony as of_nodes
from holdfast.simulation.kernel.process import ProcessLoop
from holdfast.witness import can_see, is_gone
from tests.simulation.planted import Patch, Planted, both


def take_a_stopped_process_for_gone() -> Patch:
    """By a standby, and by a node."""

    def gone_or_stopped(process: ProcessName) -> bool:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        other = loop.machine.processes.get(process.pid)
        stopped = can_see(process) and other is not None and other.paused and other.life == process.started
        return is_gone(process) or stopped

    return both(patch.object(campaign, "is_gone", gone_or_stopped), patch.object(of_nodes, "is_gone", gone_or_stopped))


def testify_without_looking() -> Patch:
    """That the new primary suspects it is reason enough."""
    return patch.object(of_nodes, "is_gone", can_see)


def testify_from_another_machine() -> Patch:
    """The process is not there, where it never was; and the master takes the word of whoever says so."""

    def gone_or_elsewhere(process: ProcessName) -> bool:
        return is_gone(process) or not can_see(process)

    def report_gone(primary: Primary, request: Any, connection: int, now: int) -> Any:
        request.machine = request.gone[0].machine
        return testimony.report_gone(primary, request, connection, now)

    blind = patch.multiple(of_nodes, can_see=lambda process: True, is_gone=gone_or_elsewhere)
    return both(blind, patch.dict(decide._DECIDE, {ReportGone: report_gone}))


def forget_the_dead_primarys_leases() -> Patch:
    """Its end is proven, so nothing that it promised counts."""
    real = testimony._shorten_guard

    def shorten(primary: Primary, now: int) -> None:
        leases = primary.state.catalogue.lease_until
        leases[leases == primary.doubt.guard_until] = now
        real(primary, now)

    return patch.object(testimony, "_shorten_guard", shorten)


PLANTED_IN_TESTIMONY = (
    Planted("take a stopped process for gone", take_a_stopped_process_for_gone, ("I2", "I7", "I8", "I12"), 400),
    Planted("testify without looking", testify_without_looking, ("I2", "I7", "I8", "I12"), 300),
    Planted("testify from another machine", testify_from_another_machine, ("I2", "I7", "I8", "I12"), 300),
    Planted("forget the dead primary's leases", forget_the_dead_primarys_leases, ("I2", "I8"), 60),
)
