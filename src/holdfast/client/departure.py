"""How a client ends: closed by its owner, or left to the parent by a process that was forked."""

from __future__ import annotations

import os
import weakref

from holdfast.client.operations.reservations import abandon_all
from holdfast.client.operations.views import abandon_views
from holdfast.client.state.client import Core

CLOSING_SECONDS = 1.0
CLOSED_TEXT = "the client was closed; connect again"

_open: weakref.WeakSet[Core] = weakref.WeakSet()


def leave_to_parent_at_fork(core: Core) -> None:
    """In a process that is forked from now on, the client is closed: its memory is not mapped there."""
    _open.add(core)


def retire_grants(core: Core) -> float:
    """Take no more memory, and give back what is reserved or idle. Returns the deadline for telling the master."""
    now = core.clock()
    abandon_all(core)
    core.grants.retire_all(now)
    return now + CLOSING_SECONDS


def forget_all(core: Core) -> None:
    """Close the client's state: nothing more is read under its leases."""
    core.closed = CLOSED_TEXT
    abandon_views(core)
    core.held_leases.clear()
    core.leases.clear()
    core.key_table = None


def _after_fork_in_child() -> None:
    for core in list(_open):
        core.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
