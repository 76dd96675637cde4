"""Bugs of renewals and of evictions that no record tells of, planted on purpose."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np

from holdfast.core.catalogue.catalogue import LIVE, MASKED
from holdfast.core.state import apply as applying
from holdfast.core.state.apply import apply
from holdfast.core.state.unlogged import EvictionMask
from holdfast.master.engine import engine
from holdfast.messages.records import ObjectsEvicted, ObjectsRemoved, RangesGranted
from holdfast.messages.rows import pack_ids, unpack_ids
from holdfast.replication import standby
from holdfast.replication.renewals import RenewalSender
from tests.simulation.planted import Patch, Planted


def forget_renewals_that_were_not_written() -> Patch:
    """The bits are cleared when a value is made, and stay so when the write fails."""

    def lost(self: RenewalSender, part: Any) -> None:
        self.failed += 1

    return patch.object(RenewalSender, "lost", lost)


def evict_on_the_standby_by_its_own_leases() -> Patch:
    """What has no live lease there is taken for dead, whatever the preset."""
    real = standby.Standby.take

    def take(self: standby.Standby, number: int, batch: bytes, now: int, note: Any = None) -> None:
        real(self, number, batch, now, note)
        catalogue = self.state.catalogue
        shown = (catalogue.flags[: catalogue.top] & (LIVE | MASKED)) == LIVE
        slots = np.flatnonzero(shown & (catalogue.lease_until[: catalogue.top] <= now))
        if len(slots):
            self.state.mask.add(catalogue, slots)

    return patch.object(standby.Standby, "take", take)


def a_lease_outlives_a_removal_on_the_standby() -> Patch:
    """An object that the standby holds for leased is not removed there, whatever the log says."""

    def keep(state: Any, record: Any, now: int) -> Any:
        if isinstance(record, ObjectsRemoved):
            ids = unpack_ids(record.ids) + unpack_ids(record.leased)
            slots = state.catalogue.by_id.slots_of(ids)
            ended = [i for i, slot in zip(ids, slots, strict=True) if state.catalogue.lease_at[slot] <= now]
            record = ObjectsRemoved(pack_ids(ended), b"", record.cause)
        return apply(state, record, now)

    return patch.object(standby, "apply", keep)


def keep_what_was_evicted_where_a_grant_is() -> Patch:
    """Whoever applies the grant leaves in the catalogue what lay there."""
    real = applying._ranges_granted

    def granted(state: Any, record: RangesGranted, now: int) -> Any:
        return real(state, RangesGranted(record.grant, record.length, record.ranges), now)

    return patch.dict(applying._APPLY, {RangesGranted: granted})


def forget_hidden_objects_under_a_key() -> Patch:
    """A removal or a put under the key of an object that was evicted without a record does not name it."""
    return patch.object(EvictionMask, "slots_under", lambda self, keys: [])


def lend_at_once_what_a_standby_hid() -> Patch:
    """At promotion, though the old primary may have leased it."""
    real = engine.evicted_alone

    def alone(state: Any) -> list[Any]:
        return [ObjectsEvicted(record.ids) for record in real(state)]  # type: ignore[attr-defined]

    return patch.object(engine, "evicted_alone", alone)


PLANTED_IN_RENEWALS = (
    Planted("forget renewals that were not written", forget_renewals_that_were_not_written, ("liveness",), 300),
    Planted("evict on the standby by its own leases", evict_on_the_standby_by_its_own_leases, ("I5",), 60),
    Planted("a lease outlives a removal on the standby", a_lease_outlives_a_removal_on_the_standby, ("I5", "I10"), 60),
    Planted(
        "keep what was evicted where a grant is", keep_what_was_evicted_where_a_grant_is, ("I5", "I7", "I9", "I10"), 60
    ),
    Planted("forget hidden objects under a key", forget_hidden_objects_under_a_key, ("I5", "I7", "I9", "I10"), 200),
    Planted("lend at once what a standby hid", lend_at_once_what_a_standby_hid, ("I2", "I8", "I9"), 60),
)
