"""Bugs of `holdfast restore`, planted on purpose: memory that is trusted too early, promises of the history before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

from holdfast.client.state.segments import Segments
from holdfast.core import promotion, upkeep
from holdfast.core.nodes import restored_memory
from holdfast.core.primary.primary import Primary
from holdfast.core.state.state import State
from holdfast.instant import Instant
from holdfast.master.roles import standby_role
from holdfast.messages.records import MemorySettled
from holdfast.messages.shapes import Record
from holdfast.replication import carried
from holdfast.replication.standby import Standby
from holdfast.simulation.world import nodes
from tests.simulation.planted import Patch, Planted, both


def verify_no_range() -> Patch:
    """The nodes say that everything is as the catalogue has it."""
    return patch.object(nodes, "mismatched", lambda *given: b"")


def look_at_unverified_memory() -> Patch:
    """Clients read what the catalogue names before its node has compared it, as they read all else."""

    def update(self: Segments, told: Any, now: float) -> Any:
        gone = real(self, told, now)
        self.unverified, self.trusted_after = frozenset(), 0.0
        return gone

    real = Segments.update
    return patch.object(Segments, "update", update)


def grant_before_old_writers_are_gone() -> Patch:
    """Free space is granted at once: nobody asks whether somebody of the older history is still at it."""

    def settle(primary: Primary, now: Instant) -> list[Record]:
        handles = sorted(primary.state.unsettled)
        return [MemorySettled(handles)] if handles else []

    return both(patch.object(upkeep, "settle", settle), patch.object(restored_memory, "settle", settle))


def give_restored_ranges_to_others() -> Patch:
    """What the restored catalogue names, and no node has verified yet, counts as free."""
    real = promotion.ranges_of

    def ranges_of(state: State, slots: Any) -> Any:
        return [one for one in real(state, slots) if one[0] not in state.unverified]

    return patch.object(promotion, "ranges_of", ranges_of)


def keep_old_grants() -> Patch:
    """The grants of the older history stay good under the new one."""
    real = carried.begin_history

    def begin(state: State, *given: Any, **named: Any) -> None:
        grants = dict(state.grants)
        real(state, *given, **named)
        state.grants.update(grants)

    return patch.object(carried, "begin_history", begin)


def trust_old_leases_once_verified() -> Patch:
    """A lease from before the verification is as good as one from after it."""
    return patch.object(Segments, "doubts", lambda self, handle, until: handle in self.unverified)


def snapshot_between_pieces() -> Patch:
    """Standbys write snapshots in the middle of a catalogue that is carried."""
    return patch.object(Standby, "carries", False)


def void_what_a_repeated_restore_finds() -> Patch:
    """The history that gives way is forgotten: nodes that mounted their memory under it have it void."""
    real = standby_role.append_catalogue

    async def append(*given: Any) -> Any:
        return await real(*given[:-1])

    return patch.object(standby_role, "append_catalogue", append)


def restore_less_than_is_held() -> Patch:
    """The last objects of the catalogue are left out."""
    real = carried.begin_history

    def begin(state: State, *given: Any, **named: Any) -> None:
        _forget(state, state.catalogue.live().tolist()[-1:])
        real(state, *given, **named)

    return patch.object(carried, "begin_history", begin)


def _forget(state: State, slots: Iterable[int]) -> None:
    state.catalogue.drop(list(slots))


SCENE = "restored store"
PLANTED_IN_RESTORES = [
    Planted("verify no range", verify_no_range, ("I2", "I10"), 300, SCENE),
    Planted("look at unverified memory", look_at_unverified_memory, ("I2",), 300, SCENE),
    Planted("grant before old writers are gone", grant_before_old_writers_are_gone, ("I2", "I9", "I11"), 60, SCENE),
    Planted("give restored ranges to others", give_restored_ranges_to_others, ("I2", "I9"), 60, SCENE),
    Planted("trust old leases once verified", trust_old_leases_once_verified, ("I2",), 300, SCENE),
    Planted("keep old grants", keep_old_grants, ("I11", "I17", "I19"), 60, SCENE),
    Planted("void what a repeated restore finds", void_what_a_repeated_restore_finds, ("I14",), 300, SCENE),
    Planted("restore less than is held", restore_less_than_is_held, ("I1",), 60, SCENE),
]
SNAPSHOT_BETWEEN_PIECES = Planted("snapshot between pieces", snapshot_between_pieces, ("I13", "liveness"), 0)
"""A standby must write its last snapshot within the few milliseconds of the pieces, in a log that another history had
begun, and then start again: no seed meets that, a script by hand does (test_directed_scripts)."""
