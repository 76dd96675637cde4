"""Memory of an older history, and how the primary of the restored one comes to trust it.

The bytes in a range may be newer than the restored catalogue. So each node that kept its memory compares every range
with its object's checksum, once no writer of the older history can write there any longer; replicas that differ, or
cannot be compared, are dropped by a record and counted. Free space is granted when, in addition, every lease of the
older history must have ended. The state holds which segments are still to be settled or verified, so a new primary
goes on where the old one was; it does not hold the progress within a node, which then begins again.

Disks are segments too (ADR 16). A file names its object, so none is ever taken for another's; the node reads each one
that the restored catalogue names, reports those that are gone or spoiled as lost files (ADR 29), and then the disk is
verified.
"""

from __future__ import annotations

import numpy as np

from holdfast.core.catalogue.catalogue import LIVE, MEMORY, SEVERAL, ReplicaAt
from holdfast.core.copies.disks import known_disk
from holdfast.core.copies.evacuation import dropped
from holdfast.core.nodes.membership import known_member
from holdfast.core.objects.checks import checked_rows
from holdfast.core.primary.decision import Decision
from holdfast.core.primary.primary import Primary
from holdfast.core.state.state import State
from holdfast.errors import BadRequest
from holdfast.ids import MAX_REPLICAS, ObjectId, SegmentHandle
from holdfast.instant import Instant, lengthened
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from holdfast.messages.records import Cause, MemorySettled, MemoryVerified, ObjectsRemoved
from holdfast.messages.rows import MismatchRow, VerifyRow, pack_ids
from holdfast.messages.shapes import Record

MOST_ROWS = 8_192
"""Ranges per reply, and objects that are looked at for it."""
ALL_NAMED = 1 << 62
"""The cursor after the last slot."""
MOST_BYTES = 1 << 30
"""The most bytes to compare per reply: a tenth of a second, so that a node's other reports are not held up."""


def verify_ranges(primary: Primary, request: n.VerifyRanges, connection: int, now: Instant) -> Decision:
    """Drop the replicas that failed, and name the next ranges. The reply with the last of them has a cursor of its
    own, so that the segments count as verified only when the node has reported on those too."""
    state = primary.state
    member = known_member(primary, request.session, request.boot)
    mismatches = checked_rows(MismatchRow, request.failed, MOST_ROWS + MAX_REPLICAS)
    if request.cursor < 0:
        raise BadRequest("a cursor is not negative; nothing was changed")
    member.fenced = True
    mine = {
        state.segments[handle].name.number: handle for handle in member.handles if state.segments[handle].kind == MEMORY
    }
    failed = [(oid, ReplicaAt(mine[number], offset)) for oid, number, offset in mismatches if number in mine]
    records = _drop(primary, failed, now)
    handles = sorted(state.unverified.intersection(mine.values()))
    if not handles:
        return Decision(n.RangesToVerify(b"", 0), records)
    if request.cursor == ALL_NAMED:
        return Decision(n.RangesToVerify(b"", 0), [*records, _verified(primary, handles, now)])
    rows, cursor = _rows(state, handles, request.cursor)
    return Decision(n.RangesToVerify(rows, cursor), records)


def files_verified(primary: Primary, request: n.ReportFilesVerified, client: int, now: Instant) -> Decision:
    """Note that the node has compared all files of this disk, and that those that differ were dropped."""
    state = primary.state
    disk = known_disk(primary, request.node, request.disk)
    if (request.log_id, request.epoch) != (state.log_id, state.epoch):
        raise BadRequest("the files were listed by another primary; mount the disk again and compare them once more")
    if disk.handle not in state.unverified:
        return Decision(q.Done(0))
    return Decision(q.Done(1), [_verified(primary, [disk.handle], now)])


def _verified(primary: Primary, handles: list[SegmentHandle], now: Instant) -> MemoryVerified:
    """From now on these are trusted, except under leases from before, which may be on what was dropped."""
    primary.trusted_at = max(primary.trusted_at, now + lengthened(primary.state.longest_lease_ms))
    return MemoryVerified(handles)


def _rows(state: State, handles: list[SegmentHandle], first: int) -> tuple[bytes, int]:
    """Ranges in these segments of the objects from slot `first` on, and the slot to go on from. Restored objects never
    change their slots, so each is named once; newer objects need no verification."""
    catalogue = state.catalogue
    top = catalogue.top
    rows: list[tuple[int, int, int, int, int]] = []
    size = 0
    first = min(first, top)
    stop = min(first + MOST_ROWS, top)
    live = np.flatnonzero(catalogue.flags[first:stop] & LIVE) + first
    for slot in live.tolist():
        for place in catalogue.replicas(slot):
            if place.segment in handles and place.kind == MEMORY:
                number = state.segments[place.segment].name.number
                length = catalogue.size_at[slot]
                rows.append((catalogue.id_at[slot], number, place.offset, length, catalogue.checksum_at[slot]))
                size += length
        if len(rows) >= MOST_ROWS or size >= MOST_BYTES:
            return VerifyRow.pack_rows(rows), slot + 1
    return VerifyRow.pack_rows(rows), stop if stop < top else ALL_NAMED


def _drop(primary: Primary, failed: list[tuple[ObjectId, ReplicaAt]], now: Instant) -> list[Record]:
    """Drop the replicas that failed; an object is removed with its last replica."""
    catalogue = primary.state.catalogue
    replicas: list[tuple[ObjectId, ReplicaAt]] = []
    objects: dict[ObjectId, bool] = {}
    for oid, place in failed:
        slot = catalogue.by_id.slot_of(oid)
        if slot < 0 or place not in catalogue.replicas(slot) or oid in objects:
            continue  # It was removed or moved meanwhile.
        if len(catalogue.replicas(slot)) > 1:
            replicas.append((oid, place))
        else:
            objects[oid] = catalogue.lease_at[slot] > now
    replicas = [(oid, place) for oid, place in replicas if oid not in objects]
    records = dropped(primary, _leaving_one(primary, replicas), now)
    if objects:
        free = pack_ids(oid for oid, leased in objects.items() if not leased)
        records.append(ObjectsRemoved(free, pack_ids(oid for oid, leased in objects.items() if leased), Cause.MISMATCH))
    return records


def _leaving_one(primary: Primary, replicas: list[tuple[ObjectId, ReplicaAt]]) -> list[tuple[ObjectId, ReplicaAt]]:
    """Leave out one replica of an object if otherwise all would be dropped: two segments may have failed it at once."""
    catalogue = primary.state.catalogue
    left: dict[ObjectId, int] = {}
    kept: list[tuple[ObjectId, ReplicaAt]] = []
    for oid, place in dict.fromkeys(replicas):
        left.setdefault(oid, len(catalogue.replicas(catalogue.by_id.slot_of(oid))))
        if left[oid] > 1:
            left[oid] -= 1
            kept.append((oid, place))
    return kept


def settle(primary: Primary, now: Instant) -> list[Record]:
    """Allow grants in the free space of nodes whose old writers are gone, once old leases have ended."""
    unsettled = primary.state.unsettled
    if not unsettled or now < primary.old_leases_end_at:
        return []
    fenced = [member.handles for member in primary.members.values() if member.fenced]
    handles = sorted(unsettled.intersection(handle for some in fenced for handle in some))
    return [MemorySettled(handles)] if handles else []


def unverified_objects(state: State) -> int:
    """Number of restored objects without a verified replica in memory or on disk."""
    if not state.unverified:
        return 0
    catalogue = state.catalogue
    live = catalogue.live()
    restored = live[catalogue.ids[live] < state.origin.first_id]
    doubtful = restored[np.isin(catalogue.segments[restored], list(state.unverified))]
    several = doubtful[catalogue.flags[doubtful] & SEVERAL != 0].tolist()
    verified = sum(any(place.segment not in state.unverified for place in catalogue.others[slot]) for slot in several)
    return len(doubtful) - verified
