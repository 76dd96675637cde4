"""Object events: which keys were stored and removed, as numbered messages for subscribers outside.

One message per durable batch of the log, with the number of the batch. So the numbers have no gaps, every master gives
the same message the same number, and a new primary continues where the old one was, without extra state (ADR 35).
A primary publishes a batch when it is durable (I1), a standby when it has applied it: a subscriber that listens to all
masters misses nothing when one of them dies.

A message whose number does not follow the last one means that something was missed; so does a repeated number with
another history. Then the subscriber asks for a replay, or lists the keys again.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from holdfast.core.catalogue.catalogue import Catalogue
from holdfast.core.catalogue.key_changes import Change, KeyChanges
from holdfast.core.state.state import State


class Told(NamedTuple):
    """The changes of one batch of the log."""

    number: int
    cleared: bool
    """A history begins: everything known before is void."""
    changes: list[Change]


class Publisher(Protocol):
    def publish(self, told: Told) -> None: ...


class ObjectEvents:
    """Collects, batch by batch, the key changes of the state that a master applies records to, in any role."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._changes = KeyChanges()
        self._log_id = 0
        self._last = 0
        """Number of the last message."""
        self._undurable: deque[tuple[int, bool, list[Change]]] = deque()
        """A primary's records: (index of the record, whether it began a history, its changes)."""

    def follow(self, state: State) -> None:
        """Collect from a new state, which is from a snapshot or empty. Keys that it already holds give no events."""
        self._attach(state.catalogue)
        self._log_id = state.log_id
        self._undurable.clear()

    def taken(self, number: int, state: State) -> None:
        """Publish the batch with this number, which a standby has applied."""
        if state.catalogue.changes is not self._changes:  # A restored history has a state of its own.
            self._attach(state.catalogue)
            self._changes.stored(_all_keys(state.catalogue))
        changes = self._changes.take()
        cleared = self._begins(state)
        if cleared:
            self._last = number - 1
        if number > self._last:
            self._tell(Told(number, cleared, changes))

    def restored(self, number: int, state: State) -> None:
        """This master has written the catalogue of an older history to the log, in batches up to this number."""
        self._attach(state.catalogue)
        self._begins(state)
        self._tell(Told(number, True, [(True, _all_keys(state.catalogue))]))

    def applied(self, index: int, state: State) -> None:
        """A primary has applied the record with this index, which is not durable yet."""
        changes = self._changes.take()
        cleared = self._begins(state)
        if changes or cleared:
            self._undurable.append((index, cleared, changes))

    def durable(self, number: int, index: int) -> None:
        """Publish the batch with this number, which is durable and whose last record has this index."""
        cleared = False
        changes: list[Change] = []
        while self._undurable and self._undurable[0][0] <= index:
            _, begins, rows = self._undurable.popleft()
            if begins:
                cleared, changes = True, []
            changes += rows
        self._tell(Told(number, cleared, changes))

    def alone(self, state: State) -> None:
        """Publish a decision of a master whose log is in memory, with a number of its own."""
        changes = self._changes.take()
        cleared = self._begins(state)
        if changes or cleared:
            self._tell(Told(self._last + 1, cleared, changes))

    def _begins(self, state: State) -> bool:
        """Has another history begun since this was last asked?"""
        if state.log_id == self._log_id:
            return False
        self._log_id = state.log_id
        return True

    def _attach(self, catalogue: Catalogue) -> None:
        self._changes.take()
        catalogue.changes = self._changes

    def _tell(self, told: Told) -> None:
        self._last = told.number
        self._publisher.publish(told)


def _all_keys(catalogue: Catalogue) -> list[str]:
    return [key for key in catalogue.keys if key is not None]
