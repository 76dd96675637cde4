"""Decisions as values: everything that is to happen because of a request, or because of time.

Whoever decides says here what it wants done, and whoever carries it out looks nowhere else: there is no outbox to be
emptied, no flag to be cleared and no counter to be compared. The order is always the same: the records are applied and
logged, then come the memory that is free without a record, the commands, and the reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from holdfast.core.state.applied import Freed
from holdfast.ids import GrantId
from holdfast.messages.shapes import Message, Record


class Parked:
    """No reply yet, because there is no room yet. Decide again when memory was freed, until the deadline."""


PARKED = Parked()


class NextStep(msgspec.Struct, frozen=True, gc=False):
    """The next step of a request that takes several: decided like a request, after others had their turn. The objects
    of one step are decided together, those of different steps by themselves: others may see the first without the
    second, and if the primary ends in between, the request is sent again (ADR 51)."""

    request: Message
    """The request that it is a part of."""


def asked_for(request: Message | NextStep) -> Message:
    """The request, of which this may be a later step."""
    return request.request if isinstance(request, NextStep) else request


class Unfinished(msgspec.Struct, frozen=True, gc=False):
    """No reply yet: one step of several was decided."""

    step: NextStep


class Clearing(NamedTuple):
    """A grant that waits until a node has cleared bytes for it."""

    grant: GrantId
    size_bytes: int


class Command(msgspec.Struct, frozen=True, gc=False):
    """A command to send to a node once everything logged before it is durable."""

    node: str
    name: str
    body: bytes
    confirm: bool = False
    clears: Clearing | None = None


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What follows from one request. A struct of msgspec, because one is made for every request: the plain case takes
    25 ns more than a tuple of two."""

    reply: Message | Parked | Unfinished
    records: Sequence[Record] = ()
    urgent: bool = False
    """A lease was renewed that was about to end: the standbys should learn of it soon."""
    freed: bool = False
    """There may be room for puts that wait, without a record to wait for: memory was freed by an unlogged eviction, the
    next step towards the room of this put can be made, or a node is back."""
    given_up: Freed = ()
    """Memory that was being emptied for a put and is not any longer: lend it again when all records so far are durable
    (I9)."""
    commands: Sequence[Command] = ()


class Planned(msgspec.Struct, frozen=True, gc=False):
    """What is due by time, or follows from the state: a decision without a reply."""

    records: Sequence[Record] = ()
    commands: Sequence[Command] = ()
    freed: bool = False
    """Memory was freed by an unlogged eviction."""


NOTHING_PLANNED = Planned()


def joined(*plans: Planned) -> Planned:
    """All of these, in this order."""
    return Planned(
        [record for plan in plans for record in plan.records],
        [command for plan in plans for command in plan.commands],
        any(plan.freed for plan in plans),
    )
