"""A node's testimony that a primary on its own machine has ended.

Each registration tells the node which process the primary is, and which earlier ones may still be answering. The node
reports the end of those that it can see, and nothing about the others.
"""

from __future__ import annotations

import math

from holdfast.ids import ProcessName
from holdfast.instant import Instant
from holdfast.messages.of_nodes import Registered
from holdfast.witness import can_see, is_gone, this_process

LOOK_SECONDS = 0.05


class Testimony:
    def __init__(self) -> None:
        self._primary: ProcessName | None = None
        self._suspects: list[ProcessName] = []
        self._wanted_until: Instant = 0

    def told(self, registered: Registered, now: Instant) -> None:
        self._primary = registered.primary
        self._suspects = [one for one in registered.suspects if can_see(one)]
        self._wanted_until = now + registered.doubt_ms

    def primary_is_gone(self) -> bool:
        return self._primary is not None and is_gone(self._primary)

    def pause_seconds(self, now: Instant) -> float:
        """How long until the next check: for ever while there is no suspect whose end would be of use."""
        return LOOK_SECONDS if self._suspects and now < self._wanted_until else math.inf

    def machine(self) -> str:
        return this_process().machine

    def gone(self) -> list[ProcessName]:
        """The suspects that have ended, to be reported."""
        return [one for one in self._suspects if is_gone(one)]

    def said(self, gone: list[ProcessName]) -> None:
        """Forget these suspects: a master has taken the report."""
        self._suspects = [one for one in self._suspects if one not in gone]
