"""The disk tier as the primary sees it: its disks, the objects offloaded to them, and their known files.

A disk is a segment that outlives its node's boots: it has an id of its own. While its node is away its replicas
stay in the catalogue, unreadable and removable, for an hour. A file is kept only if the log holds that very object
on that disk (I7). A put never waits for a disk.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from holdfast.core.catalogue.catalogue import COPYING, DISK, MEMORY, ReplicaAt, Slots
from holdfast.core.copies.plan import begin, takes_files
from holdfast.core.objects.checks import check_rows
from holdfast.core.objects.eviction import evicted, must_stay, on_disk_too
from holdfast.core.primary.decision import NOTHING_PLANNED, Command, Decision, NextStep, Planned, Unfinished, joined
from holdfast.core.primary.object_counts import EvictionReason
from holdfast.core.primary.primary import Primary
from holdfast.core.rules import COPY_BYTES, COPY_OBJECTS, EVICT_STEP, OFFLOAD_SHARE, STEP_OBJECTS
from holdfast.core.state.apply import Place
from holdfast.core.state.state import Segment
from holdfast.errors import BadRequest, MemoryVoid, UnknownNode
from holdfast.ids import LARGE_ALIGN, MAX_OBJECT_BYTES, SMALL_ALIGN, ObjectId, SegmentHandle, SegmentName, extent_of
from holdfast.instant import Instant
from holdfast.messages import commands as c
from holdfast.messages import of_nodes as n
from holdfast.messages import requests as q
from holdfast.messages.records import DiskClosed, DiskLeft, ReplicaDropped, SegmentMounted, SegmentUnmounted
from holdfast.messages.rows import FileRow, PlaceRow
from holdfast.messages.shapes import Record

Files = list[tuple[ObjectId, int]]
"""(object, offset) of files on one disk."""

TELL_EVERY_MS = 500
MOST_FILES = 8_192
MAX_REASON = 300


def disk_of(primary: Primary, disk: int) -> Segment | None:
    return next((one for one in primary.state.disks() if one.name.boot == disk), None)


def known_disk(primary: Primary, node: str, disk: int) -> Segment:
    known = disk_of(primary, disk)
    if known is None or known.name.node != node:
        raise UnknownNode(f"the disk {disk:016x} of the node {node!r} is not mounted; mount it first")
    return known


def mount_disk(primary: Primary, request: n.MountDisk, client: int, now: Instant) -> Decision:
    """Mount a new disk, or one that is back: then the objects that the log holds on it can be read again."""
    state = primary.state
    member = primary.members.get(request.node)
    if member is None or member.boot != request.boot:
        raise UnknownNode(f"the node {request.node!r} of this boot is not registered; register first")
    if not 0 < request.size_bytes <= MAX_OBJECT_BYTES or request.size_bytes % SMALL_ALIGN or not request.disk:
        raise BadRequest(f"a disk's size is a positive multiple of {SMALL_ALIGN} bytes; nothing was mounted")
    if request.log_id not in (0, state.log_id, *state.continues):
        raise MemoryVoid("the files on this disk are of another history; empty it and mount it again")
    known = disk_of(primary, request.disk)
    if known is None:
        if request.log_id:
            raise MemoryVoid("this disk was given up, and nothing on it is known any more; empty it and mount it again")
        handle, size = state.next_segment, request.size_bytes
    else:
        # Its size stays what it was: its allocator was made for that size.
        handle, size = known.handle, known.size_bytes
    records: list[Record] = [
        DiskLeft(other.handle)
        for other in state.disks()
        if other.name.node == request.node and other.handle != handle and not other.away
    ]
    name = SegmentName(request.node, request.disk, 0)
    as_known = known is not None and (known.name, known.data_address) == (name, request.data_address)
    if known is None or not as_known or known.away or known.closed:
        records.append(SegmentMounted(handle, name, size, request.data_address, "", request.host, DISK))
    if handle not in member.handles:
        member.handles.append(handle)
    if known is not None:
        primary.ask_to_clean_again(known)
    primary.disk_kept_until.pop(handle, None)
    primary.copies.audits[handle] = None
    unverified_in = state.epoch if handle in state.unverified else 0
    return Decision(n.DiskMounted(state.log_id, handle, state.continues, unverified_in), records)


class FilesStep(NextStep, frozen=True, gc=False):
    """Where a report of files goes on."""

    request: n.ReportFiles
    at: int
    """Place of the next row in the packed ones."""
    forgotten: bytes


def report_files(primary: Primary, request: n.ReportFiles, client: int, now: Instant) -> Decision:
    """Reply which of these files to delete: those of objects that the log does not hold at that place (I7)."""
    check_rows(FileRow, request.rows)
    return files_step(primary, FilesStep(request, 0, b""), client, now)


def files_step(primary: Primary, step: FilesStep, client: int, now: Instant) -> Decision:
    request, stop = step.request, step.at + STEP_OBJECTS * FileRow.size_bytes
    disk = known_disk(primary, request.node, request.disk)
    catalogue = primary.state.catalogue
    unknown = []
    for oid, offset in FileRow.iter_unpack(request.rows[step.at : stop]):
        slot = catalogue.by_id.slot_of(oid)
        if slot < 0 or ReplicaAt(disk.handle, offset, DISK) not in catalogue.replicas(slot):
            unknown.append((oid, offset))
    forgotten = step.forgotten + FileRow.pack_rows(unknown)
    if stop < len(request.rows):
        return Decision(Unfinished(FilesStep(request, stop, forgotten)))
    return Decision(n.FilesForgotten(forgotten))


def report_disk(primary: Primary, request: n.ReportDisk, client: int, now: Instant) -> Decision:
    """A failing disk: nothing more is written to it, and if it cannot be read either, its replicas count as away."""
    disk = known_disk(primary, request.node, request.disk)
    reason = request.reason[:MAX_REASON]
    records: list[Record] = [DiskClosed(disk.handle, reason)] if disk.closed != reason else []
    if not request.readable and not disk.away:
        records.append(DiskLeft(disk.handle))
    return Decision(q.Done(len(records)), records)


def leave_disks(primary: Primary, node: str) -> list[Record]:
    """Mark the disks of a node that is gone as away: their replicas are kept for when it comes back."""
    return [DiskLeft(disk.handle) for disk in primary.state.disks() if disk.name.node == node and not disk.away]


def disks_away_too_long(primary: Primary, now: Instant) -> list[Record]:
    """Give up disks that have been away for too long, by this primary's count: a new one counts from its promotion."""
    kept = primary.disk_kept_until
    for handle in sorted(primary.state.away):
        kept.setdefault(handle, now + primary.rules.disk_away_ms)
    over = [handle for handle, when in kept.items() if when <= now]
    for handle in over:
        del kept[handle]
    return [SegmentUnmounted(handle) for handle in over if handle in primary.state.away]


def commands_to_disks(primary: Primary, now: Instant) -> list[Command]:
    """Commands to delete obsolete files, and to audit disks that have too many to list."""
    book = primary.copies
    if not (book.forgotten or book.audits) or now < book.tell_at:
        return []
    commands: list[Command] = []
    book.tell_at = now + TELL_EVERY_MS
    for handle in dict.fromkeys([*book.forgotten, *book.audits]):
        disk = primary.state.segments.get(handle)
        if disk is None or disk.away:  # All its files are compared with the log when it comes back.
            book.forgotten.pop(handle, None)
            book.audits.pop(handle, None)
            continue
        files = book.forgotten.pop(handle, [])
        audit = handle in book.audits
        book.audits.pop(handle, None)
        obsolete, coming = _still_obsolete(primary, handle, files[:MOST_FILES])
        if later := coming + files[MOST_FILES:]:
            book.forgotten[handle] = later
        if obsolete or audit:
            body = c.CollectGarbage(disk.name.boot, FileRow.pack_rows(obsolete), audit)
            commands.append(Command(disk.name.node, "gc", c.encode_body(body)))
    return commands


def _still_obsolete(primary: Primary, handle: SegmentHandle, files: Files) -> tuple[Files, Files]:
    """Files to delete now, and files that wait for the end of a copy. An object may go to its old place on the disk
    again before its file there was deleted: then the file of that name is the new one, which the log holds or is about
    to hold (I1). A node carries out its disk's commands in order, so an earlier deletion cannot meet the new file."""
    catalogue, book = primary.state.catalogue, primary.copies
    obsolete: Files = []
    coming: Files = []
    for oid, offset in files:
        slot = catalogue.by_id.slot_of(oid)
        copy = book.under_way.get(book.copying[oid]) if oid in book.copying else None
        if copy is not None and copy.target == handle:
            coming.append((oid, offset))
        elif slot < 0 or ReplicaAt(handle, offset, DISK) not in catalogue.replicas(slot):
            obsolete.append((oid, offset))
    return obsolete, coming


class Offloaded(NamedTuple):
    copies: Planned
    evictable: Slots
    """Evictable now: already on a disk, or no disk can take them."""
    waiting: Slots
    """Objects that could go to a disk if its queue had room."""


def offload(primary: Primary, slots: Slots, now: Instant, ahead: bool = False) -> Offloaded:
    """Have these copied to disks, as far as the queues have room. `ahead`: they are not to be evicted from memory."""
    disks = {d.name.node: d for d in primary.state.disks() if takes_files(primary, d, now)}
    if not disks or not len(slots):
        return Offloaded(NOTHING_PLANNED, slots, slots[:0])
    queues = {node: Queue(primary, node) for node in disks}
    gathered: dict[str, list[tuple[int, ReplicaAt]]] = {}
    waits = np.zeros(len(slots), bool)
    for index, slot in enumerate(slots.tolist()):
        size = extent_of(primary.state.catalogue.size_at[slot])
        ways = _ways_to_disks(primary, slot, disks, now)
        way = next((way for way in ways if queues[way[0]].takes(size)), None)
        if way is not None:
            queues[way[0]].add(size)
            gathered.setdefault(way[0], []).append((slot, way[1]))
        waits[index] = bool(ways) and way is None
    copies = joined(*(_offload_to(primary, disks[node], wanted, now, ahead) for node, wanted in gathered.items()))
    started = primary.state.catalogue.flags[slots] & COPYING != 0
    return Offloaded(copies, slots[~started & ~waits], slots[waits])


class Queue:
    """Bytes on their way to the disk of one node: bounded, unless it is one object of any size (I17)."""

    __slots__ = ("_bytes", "_most")

    def __init__(self, primary: Primary, node: str) -> None:
        memory = sum(s.usable_bytes for s in primary.state.memory_segments() if s.name.node == node)
        self._most = min(primary.rules.copy_window_bytes, max(memory // OFFLOAD_SHARE, LARGE_ALIGN))
        self._bytes = primary.copies.bytes_towards(node, to_disk=True)

    def takes(self, size: int) -> bool:
        return not self._bytes or self._bytes + size <= self._most

    def add(self, size: int) -> None:
        self._bytes += size


def _ways_to_disks(primary: Primary, slot: int, disks: dict[str, Segment], now: Instant) -> list[tuple[str, ReplicaAt]]:
    """Memory replicas on nodes that have a disk; none if the object is on a disk already, or its copy just failed."""
    state = primary.state
    if on_disk_too(state, slot) or not primary.copies.may_try(state.catalogue.id_at[slot], now):
        return []
    places = [(state.segments[at.segment].name.node, at) for at in state.catalogue.replicas(slot) if at.kind == MEMORY]
    return [(node, at) for node, at in places if node in disks]


def _offload_to(
    primary: Primary, disk: Segment, wanted: list[tuple[int, ReplicaAt]], now: Instant, ahead: bool
) -> Planned:
    copies: list[Planned] = []
    while wanted:
        size = count = 0
        for slot, _ in wanted[:COPY_OBJECTS]:
            size += extent_of(primary.state.catalogue.size_at[slot])
            if count and size > COPY_BYTES:
                break
            count += 1
        copy, started = begin(primary, c.OFFLOAD, wanted[:count], disk, now, ahead)
        copies.append(copy)
        if started < count:  # The disk is full; the next step makes room there.
            break
        wanted = wanted[count:]
    return joined(*copies)


def evict_from_disks(primary: Primary, now: Instant) -> list[Record]:
    """Evict one bounded step from each disk that is over the watermark, the longest unused first."""
    records: list[Record] = []
    rules = primary.rules
    chosen: set[int] = set()
    for disk in primary.state.disks():
        used = primary.used_on(disk)
        if used > rules.high_watermark * disk.size_bytes:
            excess = used - int((rules.high_watermark - rules.eviction_margin) * disk.size_bytes)
            records += _evict_from(primary, disk.handle, excess, now, chosen)
    return records


def _evict_from(
    primary: Primary, handle: SegmentHandle, need_bytes: int, now: Instant, chosen: set[int]
) -> list[Record]:
    """Evict from one disk. `chosen` holds the slots evicted from disks in this step, and is extended: an object may be
    on two disks (one was away when it was saved on the other), and the record about the first is not applied yet."""
    state = primary.state
    catalogue = state.catalogue
    slots = np.array(catalogue.on_segment(handle), np.intp)
    slots = slots[~must_stay(catalogue, slots, now, soft_too=True)]
    slots = slots[np.lexsort((catalogue.ids[slots], catalogue.last_used[slots]))][:EVICT_STEP]
    places: list[Place] = []
    gone: list[int] = []
    for slot in slots.tolist():
        if need_bytes <= 0:
            break
        if slot in chosen:
            continue
        chosen.add(slot)
        need_bytes -= extent_of(catalogue.size_at[slot])
        replicas = catalogue.replicas(slot)
        if all(place.segment == handle or place.segment in state.away for place in replicas):
            gone.append(slot)
        else:  # It can also be read elsewhere.
            places += [(catalogue.id_at[slot], handle, place.offset) for place in replicas if place.segment == handle]
    records: list[Record] = [ReplicaDropped(PlaceRow.pack_rows(places))] if places else []
    if not gone:
        return records
    primary.counts.count_evicted(catalogue, np.array(gone, np.intp), EvictionReason.DISK)
    return [*records, evicted(state, np.array(gone, np.intp))]
