"""The log index that must be durable before a reply may be sent (I1), and the one way to wait for it.

The acknowledgement of a put with durability `standby` waits for the same index, but the successor's word for it will do
(ADR 70).

A reply that depends on a record which is not durable might report something that never happened. So it waits, but only
for records of the keys that it depends on: reads of other keys are sent at once. Every reply gets its index here, also
that of a put which had to wait for room.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.primary.decision import NextStep, Parked, Unfinished, asked_for
from holdfast.core.state.applied import Applied
from holdfast.core.state.state import State
from holdfast.master.succession.succession import Succession
from holdfast.messages.of_sessions import KeepAlive
from holdfast.messages.requests import CommitPuts, Committed, Exists, ListSegments, Locate, Presence, RenewLeases, Stat
from holdfast.messages.shapes import Message, Record
from holdfast.replication.log_writer import PendingLog

BY_KEYS = (Exists, Locate, Stat)
"""Requests whose replies depend only on the objects under their keys."""
_RENEWING = (Exists, Locate, RenewLeases)
"""Requests whose only record is a lease renewal, on which no reply depends."""


class HeldIndex(int):
    """An index for which it is enough that the successor holds the log through it."""


class Durability:
    """Without a log a record counts as durable as soon as it is applied, and nothing waits."""

    def __init__(
        self, state: State, log: PendingLog | None, default: str, succession: Succession | None = None
    ) -> None:
        self.log = log
        self._succession = succession
        self._state = state
        self._default = default
        """For commits that do not name a durability."""
        self._topology_index = 0
        """The index of the last record that changed which segments there are."""

    @property
    def index(self) -> int:
        """Index of the last record."""
        return self.log.index if self.log is not None else self._state.index

    @property
    def durable(self) -> int:
        """Index of the last durable record."""
        return self.log.durable if self.log is not None else self._state.index

    def add(self, record: Record, applied: Applied) -> int:
        """Add a record that was applied to the log; return its index."""
        assert self.log is not None, "without a log there is nothing to write"
        index = self.log.add(record, applied.keys)
        if applied.topology_changed:
            self._topology_index = index
        return index

    def when_durable(self, index: int, then: Callable[[], None]) -> None:
        """Call `then`, which sends a reply or lends memory again, once the record of this index is durable."""
        if self.log is None:
            then()
        elif type(index) is HeldIndex and self._succession is not None:
            self._succession.when_held(index, then)
        else:
            self.log.when_durable(index, then)

    def required_index(self, request: Message | NextStep, reply: Message | Parked | Unfinished, before: int) -> int:
        """The index that must be durable before this reply is sent; 0: none. `before` is the index of the last record
        before the decision."""
        log = self.log
        if log is None or log.index == log.durable or isinstance(request, KeepAlive):
            return 0
        request = asked_for(request)
        if log.index > before and not isinstance(request, _RENEWING):
            wanted = (request.durability or self._default) if isinstance(request, CommitPuts) else "durable"
            grants = isinstance(reply, Committed) and reply.ahead is not None
            if wanted == "durable" or grants:
                return log.index
            return 0 if wanted == "memory" else HeldIndex(log.index)
        if isinstance(request, BY_KEYS):
            return log.needed_for(request.keys)
        if isinstance(request, ListSegments):
            # Every new client asks this first, and must be able to read even while the log is full.
            return self._topology_index if self._topology_index > log.durable else 0
        if isinstance(request, RenewLeases) and isinstance(reply, Presence) and 0 not in reply.found:
            return 0  # No object that it asked about is being removed, and objects that a reader has seen were durable.
        if before <= log.durable:
            return 0
        if isinstance(request, CommitPuts) and (request.durability or self._default) == "standby":
            return HeldIndex(before)  # It found the key there, or was made earlier.
        return before
