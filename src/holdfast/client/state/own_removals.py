"""Keeps a client's own removals and its own reads apart.

A read that has ended must not keep its own client from removing the key, so a removal tells the master that this
client has forgotten its leases on the keys. That is only true while no other thread or task of the same client
reads them: the master frees the memory at once. Each side therefore announces itself before it looks for the other:

1. A read enters its keys, then waits for the removals of them that were announced before it.
2. A removal announces its keys, then looks for reads of them. If there is one, it tells the master (`forgotten=False`),
   which refuses the removal because of that read's live lease, like any other client's.

Whichever comes second sees the first (I2, I8). Reads under a kept lease need no entry: after the last byte they check
that the lease is still kept, and a removal drops it before it is announced.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from holdfast.errors import DeadlineExceeded
from holdfast.instant import Clock
from holdfast.operations.effects import Operation, Sleep

T = TypeVar("T")
LOOK_AGAIN_SECONDS = 0.002
Entry = object


class OwnRemovals:
    """One client's reads and removals under way. Every step is one dict operation, so that threads need no lock."""

    __slots__ = ("_reads", "_removals")

    def __init__(self) -> None:
        self._reads: dict[Entry, Collection[str]] = {}
        self._removals: dict[Entry, frozenset[str] | None] = {}
        """The keys of each removal, or None for a removal by pattern."""

    @property
    def under_way(self) -> bool:
        return bool(self._removals)

    def begin_read(self, keys: Collection[str]) -> Entry:
        entry = object()
        self._reads[entry] = keys
        return entry

    def end_read(self, entry: Entry) -> None:
        self._reads.pop(entry, None)

    def announced_on(self, keys: Collection[str]) -> list[Entry]:
        """Removals under way that may take one of these keys."""
        return [entry for entry, gone in list(self._removals.items()) if gone is None or not gone.isdisjoint(keys)]

    def is_under_way(self, removal: Entry) -> bool:
        return removal in self._removals

    def announce(self, keys: Collection[str] | None) -> tuple[Entry, bool]:
        """Begin a removal of these keys (None: of any key). Returns also whether no read of them is under way."""
        entry = object()
        removed = None if keys is None else frozenset(keys)
        self._removals[entry] = removed
        reads = list(self._reads.values())
        return entry, not (reads if removed is None else any(not removed.isdisjoint(read) for read in reads))

    def end_removal(self, entry: Entry) -> None:
        self._removals.pop(entry, None)

    def clear(self) -> None:
        self._reads.clear()
        self._removals.clear()


def guarded_read(
    own: OwnRemovals, keys: Collection[str], read: Operation[T], clock: Clock, deadline: float
) -> Operation[T]:
    """Run a read so that no removal by the same client frees the memory that it reads."""
    entry = own.begin_read(keys)
    try:
        if own.under_way:
            yield from wait_for_removals(own, keys, clock, deadline)
        return (yield from read)
    finally:
        own.end_read(entry)


def wait_for_removals(own: OwnRemovals, keys: Collection[str], clock: Clock, deadline: float) -> Operation[None]:
    """Wait until the removals announced before now have their replies; later ones see the read."""
    for removal in own.announced_on(keys):
        while own.is_under_way(removal):
            if clock() >= deadline:
                raise DeadlineExceeded("another call of this client still removes the key; nothing was read")
            yield Sleep(LOOK_AGAIN_SECONDS)
