"""Apply records about replicas, nodes and disks: the part of `apply` for objects that are copied and moved.

A replica that moved away while it was leased leaves its range in quarantine under its object's id, so that a reader
who reads it in place may go on renewing (I2); the range is free when the last such lease has ended (I9).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from holdfast.core.catalogue.catalogue import ReplicaAt
from holdfast.core.state.applied import UNREMARKABLE, Applied
from holdfast.core.state.grants import Quarantined
from holdfast.core.state.state import DRAINING, OPEN, Drain, State
from holdfast.ids import ObjectId, SegmentHandle, extent_of
from holdfast.instant import Instant
from holdfast.messages import records as r
from holdfast.messages.rows import AddedRow, PlaceRow
from holdfast.messages.shapes import Record

Place: TypeAlias = tuple[ObjectId, SegmentHandle, int]


def _replica_added(state: State, record: r.ReplicaAdded, now: Instant) -> Applied:
    catalogue = state.catalogue
    grant = state.grants[record.grant]
    place = grant.ranges[0]
    kind = state.segments[place.segment].kind
    keys: list[str] = []
    for oid, offset in AddedRow.iter_unpack(record.rows):
        slot = catalogue.by_id.slot_of(oid)
        # Masking it was a wrong guess: the primary had it copied.
        state.mask.release(catalogue, [slot])
        there = ReplicaAt(place.segment, place.offset + offset, kind)
        catalogue.set_replicas(slot, (*catalogue.replicas(slot), there))
        grant.taken.add(offset, offset + extent_of(catalogue.size_at[slot]))
        grant.commits[offset] = oid
        if (key := catalogue.keys[slot]) is not None:
            keys.append(key)
    # Readers may be shown the new place. After a failover without this record it is granted to others at once (I2).
    return Applied(keys=keys)


def _replica_dropped(state: State, record: r.ReplicaDropped, now: Instant) -> Applied:
    freed: dict[SegmentHandle, list[tuple[int, int]]] = {}
    quarantined: list[int] = []
    for oid, handle, offset in PlaceRow.iter_unpack(record.rows):
        freed.setdefault(handle, []).append((offset, _without(state, oid, handle, offset)))
    for oid, handle, offset in PlaceRow.iter_unpack(record.held):
        length = _without(state, oid, handle, offset)
        entry = state.enter_quarantine(Quarantined(handle, ((offset, length),), moved=oid))
        state.moved[handle, offset] = entry
        quarantined.append(entry)
    columns = ((handle, np.array(pieces, np.int64)) for handle, pieces in freed.items())
    return Applied([(handle, each[:, 0], each[:, 1]) for handle, each in columns], quarantined=quarantined)


def _without(state: State, oid: ObjectId, handle: SegmentHandle, offset: int) -> int:
    """Take this replica from its object, which has another; return the length of its range."""
    catalogue = state.catalogue
    slot = catalogue.by_id.slot_of(oid)
    state.mask.release(catalogue, [slot])
    places = catalogue.replicas(slot)
    left = tuple(place for place in places if (place.segment, place.offset) != (handle, offset))
    assert left, "an object loses its last replica by eviction or removal only"
    assert len(left) < len(places), "a replica is dropped once"
    catalogue.set_replicas(slot, left)
    length = extent_of(catalogue.size_at[slot])
    drain = state.drains.get(state.segments[handle].name.node) if state.drains else None
    if drain is not None and not drain.ended:
        drain.moved_objects += 1
        drain.moved_bytes += length
    return length


def _node_mode_changed(state: State, record: r.NodeModeChanged, now: Instant) -> Applied:
    if record.mode == OPEN:
        state.modes.pop(record.node, None)
    else:
        state.modes[record.node] = record.mode
    state.drains.pop(record.node, None)
    if record.mode == DRAINING:
        state.drains[record.node] = Drain()
    return UNREMARKABLE


def _node_drained(state: State, record: r.NodeDrained, now: Instant) -> Applied:
    if (drain := state.drains.get(record.node)) is not None:
        drain.ended = True
    return UNREMARKABLE


def _segment_limited(state: State, record: r.SegmentLimited, now: Instant) -> Applied:
    state.segments[record.handle] = replace(state.segments[record.handle], limit_bytes=record.limit_bytes)
    return UNREMARKABLE


def _disk_left(state: State, record: r.DiskLeft, now: Instant) -> Applied:
    state.segments[record.handle] = replace(state.segments[record.handle], away=True)
    state.away.add(record.handle)
    state.topology += 1
    return Applied(topology_changed=True)


def _disk_closed(state: State, record: r.DiskClosed, now: Instant) -> Applied:
    state.segments[record.handle] = replace(state.segments[record.handle], closed=record.reason)
    return UNREMARKABLE


def _copying_changed(state: State, record: r.CopyingChanged, now: Instant) -> Applied:
    state.changed = {**state.changed, "copy_bytes_per_second": max(0, record.bytes_per_second)}
    return UNREMARKABLE


APPLY_REPLICAS: dict[type[Record], Callable[[State, Any, Instant], Applied]] = {
    r.ReplicaAdded: _replica_added,
    r.ReplicaDropped: _replica_dropped,
    r.NodeModeChanged: _node_mode_changed,
    r.NodeDrained: _node_drained,
    r.SegmentLimited: _segment_limited,
    r.DiskLeft: _disk_left,
    r.DiskClosed: _disk_closed,
    r.CopyingChanged: _copying_changed,
}
