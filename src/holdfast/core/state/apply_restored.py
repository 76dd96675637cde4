"""Apply records of a restored history: memory that an older history wrote becomes trusted again, step by step.

1. `begin_history`: the catalogue of the older history, without what only that history could vouch for.
2. `MemorySettled`: no client of the older history reads or writes there any longer; free space may be granted (I9,
   I11).
3. `MemoryVerified`: every range was compared with its object's checksum; it may be read in place (I2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.core.state.applied import UNREMARKABLE, Applied
from holdfast.core.state.state import NamedSuccessor, Origin, State
from holdfast.instant import Instant
from holdfast.messages import records as r
from holdfast.messages.shapes import Record


def begin_history(state: State, log_id: int, secret: bytes, index: int, replaces: Iterable[int] = ()) -> None:
    """Make this catalogue of an older history the first state of a new one, `index` records into its log. `replaces`:
    histories that were served since, so that nodes may have mounted their memory under them.

    Grants, quarantine and sessions were promises of the older history and end with it (I19). Their ranges become
    free space, which nobody gets before the memory is settled.
    """
    catalogue = state.catalogue
    live = catalogue.live()
    state.origin = Origin(state.log_id, state.epoch, state.index, len(live), int(catalogue.sizes[live].sum()))
    # Nothing can tell whether the bytes of an object without a checksum are still its own (I2).
    unverifiable = live[catalogue.checksums[live] == 0].tolist()
    if unverifiable:
        catalogue.drop(unverifiable)
        state.origin.mismatched = len(unverifiable)
    state.continues = list(dict.fromkeys([*state.continues, state.log_id, *replaces]))
    state.log_id, state.secret, state.index = log_id, secret, index
    state.grants.clear()
    state.quarantine.clear()
    state.moved.clear()
    state.sessions.clear()
    state.session_owners.clear()
    state.revoked.clear()  # The same clients have other numbers under another secret (ADR 46).
    state.epoch_starts.clear()
    state.successor = NamedSuccessor()  # What it holds belongs to the older history (I19).
    state.unsettled = set(state.segments)
    state.unverified = set(state.segments)
    state.topology += 1


def _memory_settled(state: State, record: r.MemorySettled, now: Instant) -> Applied:
    state.unsettled.difference_update(record.handles)
    return UNREMARKABLE


def _memory_verified(state: State, record: r.MemoryVerified, now: Instant) -> Applied:
    state.unverified.difference_update(record.handles)
    state.topology += 1  # Clients learn from this that they may read in place.
    return Applied(topology_changed=True)


APPLY_RESTORED: dict[type[Record], Callable[[State, Any, Instant], Applied]] = {
    r.MemorySettled: _memory_settled,
    r.MemoryVerified: _memory_verified,
}
