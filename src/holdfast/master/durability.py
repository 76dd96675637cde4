"""What an answer rests on: the index of the last record that must be durable before it may leave (I1).

An answer that looked at something with a record on its way would tell of what may never have been. So it waits, but
for no more than it looked at: reads of other keys go out at once.
"""

from __future__ import annotations

from holdfast.core.primary.primary import Parked
from holdfast.messages.of_sessions import KeepAlive
from holdfast.messages.requests import CommitPuts, Committed, Exists, ListSegments, Locate, Presence, RenewLeases, Stat
from holdfast.messages.shapes import Message
from holdfast.replication.pending_log import PendingLog

BY_KEYS = (Exists, Locate, Stat)
"""Whose answers rest on the objects under their keys and on nothing else."""
_RENEWING = (Exists, Locate, RenewLeases)
"""Whose only record is that of a renewal, which nothing rests on."""


def rests_on(
    log: PendingLog, request: Message, reply: Message | Parked, before: int, durability: str, topology_index: int
) -> int:
    """0: nothing. `before` is the last record's index from before it was decided, `topology_index` that of the last one
    that changed which segments there are."""
    if log.index == log.durable or isinstance(request, KeepAlive):
        return 0
    if log.index > before and not isinstance(request, _RENEWING):
        in_memory = isinstance(request, CommitPuts) and (request.durability or durability) == "memory"
        grants = isinstance(reply, Committed) and reply.ahead is not None
        return 0 if in_memory and not grants else log.index
    if isinstance(request, BY_KEYS):
        return log.needed_for(request.keys)
    if isinstance(request, ListSegments):
        # Whoever connects asks this first, and must be able to read while the log takes no more.
        return topology_index if topology_index > log.durable else 0
    if isinstance(request, RenewLeases) and isinstance(reply, Presence) and 0 not in reply.found:
        return 0  # Nothing that it looked at is on its way out, and what a reader has seen was durable.
    return before if before > log.durable else 0
