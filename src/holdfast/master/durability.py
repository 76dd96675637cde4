"""The log index that must be durable before a reply may be sent (I1).

A reply that depends on a record which is not durable might report something that never happened. So it waits, but only
for records of the keys that it depends on: reads of other keys are sent at once.
"""

from __future__ import annotations

from holdfast.core.primary.primary import Parked
from holdfast.messages.of_sessions import KeepAlive
from holdfast.messages.requests import CommitPuts, Committed, Exists, ListSegments, Locate, Presence, RenewLeases, Stat
from holdfast.messages.shapes import Message
from holdfast.replication.pending_log import PendingLog

BY_KEYS = (Exists, Locate, Stat)
"""Requests whose replies depend only on the objects under their keys."""
_RENEWING = (Exists, Locate, RenewLeases)
"""Requests whose only record is a lease renewal, on which no reply depends."""


def rests_on(
    log: PendingLog, request: Message, reply: Message | Parked, before: int, durability: str, topology_index: int
) -> int:
    """The index that must be durable; 0: none. `before` is the index of the last record before the decision,
    `topology_index` that of the last record that changed which segments there are."""
    if log.index == log.durable or isinstance(request, KeepAlive):
        return 0
    if log.index > before and not isinstance(request, _RENEWING):
        in_memory = isinstance(request, CommitPuts) and (request.durability or durability) == "memory"
        grants = isinstance(reply, Committed) and reply.ahead is not None
        return 0 if in_memory and not grants else log.index
    if isinstance(request, BY_KEYS):
        return log.needed_for(request.keys)
    if isinstance(request, ListSegments):
        # Every new client asks this first, and must be able to read even while the log is full.
        return topology_index if topology_index > log.durable else 0
    if isinstance(request, RenewLeases) and isinstance(reply, Presence) and 0 not in reply.found:
        return 0  # No object that it asked about is being removed, and objects that a reader has seen were durable.
    return before if before > log.durable else 0
