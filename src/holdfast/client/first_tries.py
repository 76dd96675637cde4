"""The blocking client's first try of `get` and of `exists`: one request over the open connection, and its plain reply.

Fast paths of `gets.get` and `verbs.exists`. On the caller's own thread such a request is one call, so it needs no
generator: that saves 1.6 us each of a round trip of 15 to 50. Whatever is not plain (no connection, an error, a removal
under way, memory that is not mapped) is left to the operation, which both clients have.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, TypeAlias

from holdfast.client.operations.places import lease_in
from holdfast.client.state.client import Core
from holdfast.client.state.leases import NO_LEASE, LeaseRow
from holdfast.messages.requests import Exists, Locate, Located, Presence
from holdfast.messages.shapes import Message

AtOnce: TypeAlias = Callable[[Message, float], Message | None]
"""Send this now, with this deadline. None: no reply came. (`operations.threads.ThreadRunner.at_once`)"""


class Unclear(enum.Enum):
    """The first try gave no answer: run the operation."""

    ASK = "ask"


ASK: Final = Unclear.ASK


def get(core: Core, at_once: AtOnce, key: str, deadline: float) -> bytes | LeaseRow | Unclear | None:
    """The bytes of an object in mapped memory, right after its location came; or its place there, if it got no lease:
    the operation asks after the copy whether it is still there. None: it is not stored."""
    sent_at = core.clock()
    own = core.own_removals
    if not core.bytes.maps or core.leases.live(key, sent_at) is not None:
        return ASK
    entry = own.begin_read((key,))
    try:
        if own.under_way:
            return ASK
        history = core.limits.log_id
        located = at_once(Locate([key]), deadline)
        if type(located) is not Located or located.others:
            return ASK
        core.segments.seen = located.topology
        lease = lease_in(located, sent_at, history)
        if lease is None:
            core.leases.drop(key)
            return None
        if lease[1] not in core.bytes.decided:
            return ASK
        if lease[0] == NO_LEASE:
            return lease if lease[1] in core.bytes.maps else ASK
        core.keep_lease(key, lease)
        return core.read_leased(key) or ASK  # No object is empty.
    finally:
        own.end_read(entry)


def exists(core: Core, at_once: AtOnce, key: str, touch: bool, deadline: float) -> bool | Unclear:
    if core.bytes.failing.by_address:
        return ASK
    reply = at_once(Exists([key], touch), deadline)
    return reply.found == b"\1" if type(reply) is Presence else ASK
