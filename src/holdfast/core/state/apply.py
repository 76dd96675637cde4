"""Apply records to the state: the one function that changes the catalogue, on primary, standby, restart and in
simulation.

`apply` returns what the record changed, so that a primary can act on it once the record is durable. Nothing here
decides anything.

A replica that moved away while it was leased leaves its range in quarantine under its object's id, so that a reader
who reads it in place may go on renewing (I2); the range is free when the last such lease has ended (I9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from holdfast.core.catalogue.catalogue import HARD_PIN, MASKED, SEVERAL, SOFT_PIN, ReplicaAt, Slots, extents_of
from holdfast.core.rules import REMEMBERED_ANSWERS, REMEMBERED_EPOCHS, REMEMBERED_REVOKED, SCALAR_BELOW
from holdfast.core.state.applied import UNREMARKABLE, Applied, Freed, FreedRanges
from holdfast.core.state.apply_restored import APPLY_RESTORED
from holdfast.core.state.apply_tenants import APPLY_TENANTS
from holdfast.core.state.grants import Grant, Quarantined
from holdfast.core.state.packed_numbers import unpack_sorted_ids
from holdfast.core.state.renewals import renew
from holdfast.core.state.row_tables import PUT_TABLE, table_of
from holdfast.core.state.state import DRAINING, OPEN, Drain, NamedSuccessor, Segment, State
from holdfast.core.state.unlogged import lying_in
from holdfast.ids import COUNTER_MASK, ObjectId, SegmentHandle, extent_of
from holdfast.instant import Instant
from holdfast.messages import records as r
from holdfast.messages.log_versions import LOG_VERSION, version_of
from holdfast.messages.records import Cause
from holdfast.messages.rows import AddedRow, PlaceRow, PutRow, unpack_ids
from holdfast.messages.shapes import Record

Place: TypeAlias = tuple[ObjectId, SegmentHandle, int]


def apply(state: State, record: Record, now: Instant) -> Applied:
    applied = _APPLY[type(record)](state, record, now)
    state.index += 1
    if state.log_version < LOG_VERSION:
        state.log_version = max(state.log_version, version_of(record))
    return applied


def ranges_of(state: State, slots: list[int] | Slots) -> Freed:
    """Every range that these objects occupy, by segment."""
    catalogue = state.catalogue
    at = np.asarray(slots, np.intp)
    lengths = extents_of(catalogue.sizes[at])
    segments = catalogue.segments[at]
    offsets = catalogue.offsets[at]
    several = np.flatnonzero(catalogue.flags[at] & SEVERAL)
    if len(several):
        further = [(place.segment, place.offset, lengths[i]) for i in several for place in catalogue.others[int(at[i])]]
        segments = np.concatenate([segments, np.array([f[0] for f in further], np.int32)])
        offsets = np.concatenate([offsets, np.array([f[1] for f in further], np.int64)])
        lengths = np.concatenate([lengths, np.array([f[2] for f in further], np.int64)])
    heres = ((handle, segments == handle) for handle in np.unique(segments).tolist())
    return [(handle, offsets[here], lengths[here]) for handle, here in heres]


def _log_started(state: State, record: r.LogStarted, now: Instant) -> Applied:
    state.log_id, state.cluster, state.secret = record.log_id, record.cluster, record.secret
    return UNREMARKABLE


def _epoch_started(state: State, record: r.EpochStarted, now: Instant) -> Applied:
    state.epoch = record.epoch
    state.next_counter = 1
    state.successor = NamedSuccessor()
    state.epoch_starts[record.epoch] = state.index
    while len(state.epoch_starts) > REMEMBERED_EPOCHS:
        state.epoch_starts.popitem(last=False)
    return UNREMARKABLE


def _settings_changed(state: State, record: r.SettingsChanged, now: Instant) -> Applied:
    state.lease_ttl_ms, state.soft_pin_ttl_ms = record.lease_ttl_ms, record.soft_pin_ttl_ms
    state.grant_timeout_ms = record.grant_timeout_ms
    state.longest_lease_ms = max(record.longest_lease_ms or state.longest_lease_ms, record.lease_ttl_ms)
    state.changed = record.changed
    # Never less: a follower that no later master has answered relies on an earlier one's promise (I4).
    state.session_lease_ms = max(state.session_lease_ms, record.session_lease_ms)
    state.session_jeopardy_ms = max(state.session_jeopardy_ms, record.session_jeopardy_ms)
    return UNREMARKABLE


def _segment_mounted(state: State, record: r.SegmentMounted, now: Instant) -> Applied:
    state.segments[record.handle] = Segment(
        record.handle, record.name, record.size_bytes, record.data_address, record.socket_path, record.host, record.kind
    )
    state.away.discard(record.handle)
    state.most_nodes = max(state.most_nodes, state.lending_nodes())
    state.next_segment = max(state.next_segment, record.handle + 1)
    state.topology += 1
    return Applied(topology_changed=True)


def _segment_unmounted(state: State, record: r.SegmentUnmounted, now: Instant) -> Applied:
    handle = record.handle
    catalogue = state.catalogue
    found = catalogue.slots_on(handle)
    several = catalogue.flags[found] & SEVERAL != 0
    lost: list[int] = found[~several].tolist()
    for slot in found[several].tolist():
        left = tuple(place for place in catalogue.replicas(slot) if place.segment != handle)
        if left:
            catalogue.set_replicas(slot, left)
        else:
            lost.append(slot)
    keys = _drop(state, lost, Cause.UNMOUNT_SEGMENT.name, now) if lost else []
    if handle in state.unverified:
        state.origin.lost += len(lost)
    state.mask.forget_segment(handle)
    quarantined: list[int] = []
    for grant in [g for g in state.grants.values() if any(x.segment == handle for x in g.ranges)]:
        quarantined += _end_grant(state, grant, []).quarantined
    for entry in [e for e, quarantined in state.quarantine.items() if quarantined.segment == handle]:
        _leave_quarantine(state, entry)
    del state.segments[handle]
    state.away.discard(handle)
    state.unsettled.discard(handle)
    state.unverified.discard(handle)
    state.topology += 1
    return Applied(keys=keys, quarantined=quarantined, topology_changed=True)


def _ranges_granted(state: State, record: r.RangesGranted, now: Instant) -> Applied:
    keys: list[str] = []
    if record.sweeps:
        for place in record.ranges:
            keys += _drop(state, lying_in(state.catalogue, place.segment, place.offset, record.length), "EVICTED", now)
    elif record.evicted:
        keys = _drop(state, _named(state, unpack_sorted_ids(record.evicted).tolist()), "EVICTED", now)
    state.grants[record.grant] = Grant(
        record.grant, record.length, tuple(record.ranges), wanted=record.wanted, uncleared=record.uncleared
    )
    return Applied(keys=keys) if keys else UNREMARKABLE


def _pieces(pairs: Iterable[tuple[int, int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    columns = np.array(list(pairs), np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _end_grant(state: State, grant: Grant, settled: list[SegmentHandle]) -> Applied:
    """Free the parts that no commit took where the grant is settled; elsewhere they wait for that node's report."""
    del state.grants[grant.id]
    gaps = grant.taken.gaps(grant.length)
    if not gaps:
        return UNREMARKABLE
    starts, lengths = _pieces((start, end - start) for start, end in gaps)
    freed: list[FreedRanges] = []
    quarantined: list[int] = []
    for place in grant.ranges:
        if place.segment in settled:
            freed.append((place.segment, place.offset + starts, lengths))
        else:
            pieces = tuple((place.offset + start, end - start) for start, end in gaps)
            quarantined.append(state.enter_quarantine(Quarantined(place.segment, pieces, grant.id, place.writer)))
    return Applied(freed, quarantined=quarantined)


def _grant_cleared(state: State, record: r.GrantCleared, now: Instant) -> Applied:
    state.grants[record.grant].uncleared = False
    return UNREMARKABLE


def _grant_ended(state: State, record: r.GrantEnded, now: Instant) -> Applied:
    return _end_grant(state, state.grants[record.grant], record.settled)


def _ranges_freed(state: State, record: r.RangesFreed, now: Instant) -> Applied:
    left = [_leave_quarantine(state, entry) for entry in record.entries]
    return Applied([(quarantined.segment, *_pieces(quarantined.pieces)) for quarantined in left])


def _leave_quarantine(state: State, entry: int) -> Quarantined:
    quarantined = state.quarantine.pop(entry)
    if quarantined.moved:
        state.moved.pop((quarantined.segment, quarantined.pieces[0][0]), None)
    return quarantined


def _objects_committed(state: State, record: r.ObjectsCommitted, now: Instant) -> Applied:
    removed = UNREMARKABLE
    if record.replaced or record.leased:
        removed = _remove(state, unpack_ids(record.replaced), unpack_ids(record.leased), Cause.UPSERT.name, now)
    grant = state.grants[record.grant]
    flags = _pins_of(record)
    slots = (_insert_few if len(record.keys) < SCALAR_BELOW else _insert_many)(state, grant, record, flags, now)
    wanted = max(grant.wanted, len(grant.ranges))
    if wanted > 1:
        catalogue = state.catalogue
        base = grant.ranges[0].offset
        for slot in slots:
            delta = catalogue.offset_at[slot] - base
            places = tuple(ReplicaAt(place.segment, place.offset + delta) for place in grant.ranges)
            catalogue.further_wanted_at[slot] = wanted - 1
            catalogue.set_replicas(slot, places)
    if record.soft_pin:
        state.catalogue.soft_pin_until.update(dict.fromkeys(slots, now + state.soft_pin_ttl_ms))
    state.next_counter = (record.first_id & COUNTER_MASK) + len(record.keys)
    if removed is UNREMARKABLE:
        return Applied((), record.keys)
    return Applied(removed.freed, [*record.keys, *removed.keys], removed.quarantined)


def _pins_of(record: r.ObjectsCommitted | r.PinsChanged) -> int:
    return (HARD_PIN if record.hard_pin else 0) | (SOFT_PIN if record.soft_pin else 0)


def _insert_few(state: State, grant: Grant, record: r.ObjectsCommitted, flags: int, now: Instant) -> list[int]:
    first = grant.ranges[0]
    if len(record.keys) == 1:
        offset, size, checksum = PutRow.unpack_one(record.rows)
        grant.taken.add(offset, offset + extent_of(size))
        grant.commits[offset] = record.first_id
        at = first.offset + offset
        return [state.catalogue.insert(record.keys[0], record.first_id, size, checksum, first.segment, at, flags, now)]
    rows = PutRow.iter_unpack(record.rows)
    slots: list[int] = []
    for oid, (key, (offset, size, checksum)) in enumerate(zip(record.keys, rows, strict=True), record.first_id):
        slots.append(state.catalogue.insert(key, oid, size, checksum, first.segment, first.offset + offset, flags, now))
        grant.taken.add(offset, offset + extent_of(size))
        grant.commits[offset] = oid
    return slots


def _insert_many(state: State, grant: Grant, record: r.ObjectsCommitted, flags: int, now: Instant) -> list[int]:
    first = grant.ranges[0]
    rows = table_of(PUT_TABLE, record.rows)
    sizes = rows["size"]
    offsets = rows["offset"].astype(np.int64)
    ends = offsets + extents_of(sizes)
    slots = state.catalogue.insert_many(
        record.keys, record.first_id, sizes, rows["checksum"], first.segment, first.offset + offsets, flags, now
    )
    for start, end in runs_of(offsets, ends):
        grant.taken.add(start, end)
    grant.commits.update(zip(offsets.tolist(), range(record.first_id, record.first_id + len(slots)), strict=True))
    return slots


def runs_of(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Join the intervals that touch: a batch written front to back is one."""
    cuts = np.flatnonzero(ends[:-1] != starts[1:]) + 1
    if not len(cuts):
        return [(int(starts[0]), int(ends[-1]))]
    heads = np.concatenate([[0], cuts])
    tails = np.concatenate([cuts - 1, [len(ends) - 1]])
    return list(zip(starts[heads].tolist(), ends[tails].tolist(), strict=True))


def _drop(state: State, slots: list[int], cause: str, now: Instant) -> list[str]:
    """Drop the objects from the catalogue; return their keys, or none if all were masked: those were hidden from
    readers, and added to `departed`, when they were masked."""
    masked = state.mask.release(state.catalogue, slots)
    if cause == "EVICTED" and state.drains:
        _count_evicted(state, slots)
    gone = state.catalogue.drop(slots)
    if len(masked) == len(gone):
        return []
    state.departed.add(gone, cause, now)
    return gone


def _count_evicted(state: State, slots: list[int]) -> None:
    size = sum(extent_of(state.catalogue.size_at[slot]) for slot in slots)
    for drain in state.drains.values():
        if not drain.ended:
            drain.evicted_objects += len(slots)
            drain.evicted_bytes += size


def _named(state: State, ids: list[int]) -> list[int]:
    """The slots of these objects, each of which must exist, and be named once. Checked before anything is changed:
    -1 would be the slot of the last object, which the record does not name."""
    slots = state.catalogue.by_id.slots_of(ids)
    assert min(slots, default=0) >= 0, "a record names objects that are there"
    assert len(set(slots)) == len(slots), "a record names an object once"
    return slots


def _remove(state: State, ids: list[int], leased: list[int], cause: str, now: Instant) -> Applied:
    freed: Freed = ()
    quarantined: list[int] = []
    gone = _named(state, ids + leased)
    free_slots, held_slots = gone[: len(ids)], gone[len(ids) :]
    if free_slots:
        flags = state.catalogue.flags_at
        # The memory of a masked object is free already.
        occupied = [slot for slot in free_slots if not flags[slot] & MASKED] if state.mask else free_slots
        freed = ranges_of(state, occupied) if occupied else ()
    if held_slots:
        for handle, offsets, lengths in ranges_of(state, held_slots):
            pieces = tuple(zip(offsets.tolist(), lengths.tolist(), strict=True))
            quarantined.append(state.enter_quarantine(Quarantined(handle, pieces)))
    keys = _drop(state, gone, cause, now) if gone else []
    return Applied(freed, keys, quarantined)


def _objects_removed(state: State, record: r.ObjectsRemoved, now: Instant) -> Applied:
    if record.cause is Cause.MISMATCH:
        state.origin.mismatched += (len(record.ids) + len(record.leased)) // 8
    ids, leased = unpack_ids(record.ids), unpack_ids(record.leased)
    if record.cause is Cause.FILE_LOST and state.unverified:
        restored = [oid for oid in (*ids, *leased) if oid < state.origin.first_id]
        places = state.catalogue.segments[_named(state, restored)].tolist()
        state.origin.lost_files += sum(handle in state.unverified for handle in places)
    return _remove(state, ids, leased, record.cause.name, now)


def _objects_evicted(state: State, record: r.ObjectsEvicted, now: Instant) -> Applied:
    ids = unpack_sorted_ids(record.ids).tolist()
    return _remove(state, [] if record.leased else ids, ids if record.leased else [], "EVICTED", now)


def _pins_changed(state: State, record: r.PinsChanged, now: Instant) -> Applied:
    catalogue = state.catalogue
    slots = _named(state, unpack_sorted_ids(record.ids).tolist())
    # Masking one was a wrong guess: the primary has it, and with a hard pin it must not be evicted here either (I8).
    state.mask.release(catalogue, slots)
    catalogue.set_pins(slots, _pins_of(record))
    if record.soft_pin:
        catalogue.soft_pin_until.update(dict.fromkeys(slots, now + state.soft_pin_ttl_ms))
    else:
        for slot in slots:
            catalogue.soft_pin_until.pop(slot, None)
    # A reader may be told of the pins, once they are durable (I1).
    return Applied(keys=catalogue.keys.keys_of(np.array(slots, np.intp)))


def _leases_renewed(state: State, record: r.LeasesRenewed, now: Instant) -> Applied:
    renew(state, unpack_sorted_ids(record.ids), now + record.left_ms, now)
    return UNREMARKABLE


def _removal_answered(state: State, record: r.RemovalAnswered, now: Instant) -> Applied:
    state.answers[record.client, record.serial] = record.answer
    while len(state.answers) > REMEMBERED_ANSWERS:
        state.answers.popitem(last=False)
    return UNREMARKABLE


def _session_opened(state: State, record: r.SessionOpened, now: Instant) -> Applied:
    state.sessions[record.session] = record.name
    if record.owner:
        state.session_owners[record.session] = record.owner
    state.session_epoch = record.session_epoch
    return UNREMARKABLE


def _session_closed(state: State, record: r.SessionClosed, now: Instant) -> Applied:
    del state.sessions[record.session]
    state.session_owners.pop(record.session, None)
    return UNREMARKABLE


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
    for oid, handle, offset in PlaceRow.iter_unpack(record.leased):
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


def _clients_revoked(state: State, record: r.ClientsRevoked, now: Instant) -> Applied:
    for client in record.clients:
        state.revoked.pop(client, None)
        state.revoked[client] = None
    while len(state.revoked) > REMEMBERED_REVOKED:
        del state.revoked[next(iter(state.revoked))]
    return UNREMARKABLE


def _successor_named(state: State, record: r.SuccessorNamed, now: Instant) -> Applied:
    state.successor = NamedSuccessor(record.name, record.life)
    return UNREMARKABLE


_APPLY: dict[type[Record], Callable[[State, Any, Instant], Applied]] = {
    r.LogStarted: _log_started,
    r.EpochStarted: _epoch_started,
    r.SettingsChanged: _settings_changed,
    r.SegmentMounted: _segment_mounted,
    r.SegmentUnmounted: _segment_unmounted,
    r.RangesGranted: _ranges_granted,
    r.GrantEnded: _grant_ended,
    r.GrantCleared: _grant_cleared,
    r.RangesFreed: _ranges_freed,
    r.ObjectsCommitted: _objects_committed,
    r.ObjectsRemoved: _objects_removed,
    r.ObjectsEvicted: _objects_evicted,
    r.RemovalAnswered: _removal_answered,
    r.SessionOpened: _session_opened,
    r.SessionClosed: _session_closed,
    r.PinsChanged: _pins_changed,
    r.LeasesRenewed: _leases_renewed,
    r.ReplicaAdded: _replica_added,
    r.ReplicaDropped: _replica_dropped,
    r.NodeModeChanged: _node_mode_changed,
    r.NodeDrained: _node_drained,
    r.SegmentLimited: _segment_limited,
    r.DiskLeft: _disk_left,
    r.DiskClosed: _disk_closed,
    r.CopyingChanged: _copying_changed,
    r.ClientsRevoked: _clients_revoked,
    r.SuccessorNamed: _successor_named,
    **APPLY_RESTORED,
    **APPLY_TENANTS,
}
