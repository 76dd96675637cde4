"""Disk files that their nodes found gone or spoiled, and the listing by which nodes find them.

A lost file is a lost replica: it is dropped by a record, and the object is removed if it had no other (I18). Only the
node that holds the disk reports it, after checking the file itself. A report may come twice, late, or after the object
was moved: ids are never reused, so a replica that is no longer at that place is skipped.
"""

from __future__ import annotations

import numpy as np

from holdfast.core.catalogue.catalogue import DISK, LIVE, MASKED, SEVERAL, ReplicaAt
from holdfast.core.copies.disks import known_disk
from holdfast.core.copies.evacuation import dropped
from holdfast.core.objects.checks import check_rows
from holdfast.core.objects.eviction import evicted
from holdfast.core.primary.decision import Decision, NextStep, Unfinished
from holdfast.core.primary.primary import Primary
from holdfast.core.rules import STEP_OBJECTS, VISIT_SLOTS
from holdfast.core.state.row_tables import LISTED_FILE_TABLE, new_table
from holdfast.errors import BadRequest
from holdfast.ids import ObjectId, SegmentHandle
from holdfast.instant import Instant
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from holdfast.messages.records import Cause, ObjectsRemoved
from holdfast.messages.rows import ListedFileRow, LostFileRow, pack_ids

_DAMAGES = frozenset(map(int, n.Damage))


class LostFilesStep(NextStep, frozen=True, gc=False):
    """Where a report of lost files goes on."""

    request: n.ReportLostFiles
    at: int
    """Place of the next row in the packed ones."""
    dropped: int


def report_lost_files(primary: Primary, request: n.ReportLostFiles, client: int, now: Instant) -> Decision:
    """Drop these replicas. If a reader may hold a lease, the place stays in quarantine until the lease ends (I2)."""
    check_rows(LostFileRow, request.rows)
    if not _DAMAGES.issuperset(damage for _, _, damage in LostFileRow.iter_unpack(request.rows)):
        raise BadRequest("a file is reported lost without a known reason; nothing was changed")
    return lost_files_step(primary, LostFilesStep(request, 0, 0), client, now)


def lost_files_step(primary: Primary, step: LostFilesStep, client: int, now: Instant) -> Decision:
    """Drop the next of them. What one step dropped is not there for a later one, nor for a repetition."""
    request, stop = step.request, step.at + STEP_OBJECTS * LostFileRow.size_bytes
    disk = known_disk(primary, request.node, request.disk)
    catalogue = primary.state.catalogue
    further: list[tuple[ObjectId, ReplicaAt]] = []
    last: dict[int, None] = {}
    hidden: dict[int, None] = {}
    seen: set[ObjectId] = set()
    for oid, offset, damage in LostFileRow.iter_unpack(request.rows[step.at : stop]):
        slot = catalogue.by_id.slot_of(oid)
        place = ReplicaAt(disk.handle, offset, DISK)
        if slot < 0 or oid in seen or place not in (places := catalogue.replicas(slot)):
            continue
        seen.add(oid)
        primary.lost_files[request.node, n.Damage(damage)] += 1
        if catalogue.flags_at[slot] & MASKED:
            hidden[slot] = None  # An unlogged eviction: it is logged now.
        elif len(places) > 1:
            further.append((oid, place))
        else:
            last[slot] = None
    records = dropped(primary, further, now)
    if last:
        leased = {slot for slot in last if catalogue.lease_at[slot] > now}
        free, leased_ids = ([catalogue.id_at[s] for s in last if (s in leased) == wanted] for wanted in (False, True))
        records.append(ObjectsRemoved(pack_ids(free), pack_ids(leased_ids), Cause.FILE_LOST))
    if hidden:
        records.append(evicted(primary.state, np.array(list(hidden), np.intp)))
    count = step.dropped + len(seen)
    is_last = stop >= len(request.rows)
    return Decision(q.Done(count) if is_last else Unfinished(LostFilesStep(request, stop, count)), records)


def list_files(primary: Primary, request: n.ListFiles, client: int, now: Instant) -> Decision:
    """Files that the log holds on this disk, for one page of slots. The catalogue may change between two pages, so the
    node checks each file before it reports it lost."""
    disk = known_disk(primary, request.node, request.disk)
    top = primary.state.catalogue.top
    first = min(max(0, request.cursor), top)
    stop = first + VISIT_SLOTS
    return Decision(n.FileList(_files_of(primary, disk.handle, first, stop), stop if stop < top else 0))


def _files_of(primary: Primary, handle: SegmentHandle, first: int, stop: int) -> bytes:
    catalogue = primary.state.catalogue
    window = slice(first, min(stop, catalogue.top))
    flags = catalogue.flags[window]
    here = (catalogue.segments[window] == handle) & ((flags & LIVE) != 0)
    alone = np.flatnonzero(here) + first
    rows = new_table(LISTED_FILE_TABLE, len(alone))
    rows["id"], rows["offset"], rows["size"] = catalogue.ids[alone], catalogue.offsets[alone], catalogue.sizes[alone]
    rows["checksum"] = catalogue.checksums[alone]
    further = [
        (catalogue.id_at[slot], place.offset, catalogue.size_at[slot], catalogue.checksum_at[slot])
        for slot in (np.flatnonzero(flags & SEVERAL) + first).tolist()
        for place in catalogue.others[slot]
        if place.segment == handle
    ]
    return rows.tobytes() + ListedFileRow.pack_rows(further)
