"""Offload ahead of need: copy objects to disks before memory must evict them.

A put that finds no room cannot wait for a disk: objects evicted for it are lost, unless they are on a disk already. So
once memory is half full, the longest unused objects, up to a share of memory (`offload_ahead`), are also kept on disks,
and eviction takes those first (`eviction.victims_saved_first`). The disk's queue bounds the speed: a storm of puts that
is faster than the disk uses the share up, and evictions beyond it lose objects.
"""

from __future__ import annotations

import numpy as np

from holdfast.core.catalogue.catalogue import COPYING, MASKED, Slots
from holdfast.core.copies.disks import Queue, offload
from holdfast.core.objects.eviction import on_disk_too, victims
from holdfast.core.primary.decision import NOTHING_PLANNED, Planned
from holdfast.core.primary.primary import Primary
from holdfast.core.rules import COPY_OBJECTS
from holdfast.ids import ObjectId, extent_of
from holdfast.instant import Instant

SAVE_FROM = 0.5
"""Share of memory in use from which on objects are saved: large puts may find no room long before memory is full."""
LOOK_EVERY_MS = 200
SLOTS_A_MS = 500
"""A look is a pass over the whole catalogue: a million objects are examined every two seconds, not five times per
second."""
LOOK_IDLE_MS = 5_000
"""Between looks while nothing is put or removed: reads alone change which objects are the longest unused, and that is
not urgent."""


def save_ahead(primary: Primary, now: Instant) -> Planned:
    """Offload one bounded step: as many objects as the queues of the disks have room for."""
    book, catalogue = primary.copies, primary.state.catalogue
    looked_at, index = book.saved_at
    pause_ms = LOOK_EVERY_MS + catalogue.top // SLOTS_A_MS if index != primary.state.index else LOOK_IDLE_MS
    if now >= looked_at + pause_ms:
        book.saved_at = (now, primary.state.index)
        book.to_save = [catalogue.id_at[slot] for slot in reversed(_unsaved(primary, now))]
    if not book.to_save or not _some_queue_has_room(primary, book.to_save[-1]):
        return NOTHING_PLANNED
    next_ones = book.to_save[: -COPY_OBJECTS - 1 : -1]
    del book.to_save[-COPY_OBJECTS:]
    copies, _, waiting = offload(primary, _still_there(primary, next_ones), now, ahead=True)
    book.to_save += catalogue.ids[waiting].tolist()[::-1]
    return copies


def _some_queue_has_room(primary: Primary, oid: ObjectId) -> bool:
    """Does a queue have room for the next object? Checked first: this runs at every tick while a disk is busy."""
    catalogue = primary.state.catalogue
    slot = catalogue.by_id.slot_of(oid)
    size = extent_of(catalogue.size_at[slot]) if slot >= 0 else 0
    return any(Queue(primary, disk.name.node).takes(size) for disk in primary.state.disks())


def _unsaved(primary: Primary, now: Instant) -> list[int]:
    """Slots of the longest unused objects in memory that are on no disk, the oldest first."""
    share = _share_bytes(primary)
    if share <= 0:
        return []
    slots = victims(primary.state, share, now, primary.rules.evict_soft_pinned)
    return [slot for slot in slots.tolist() if not on_disk_too(primary.state, slot)]


def _share_bytes(primary: Primary) -> int:
    """Bytes to keep on disks beyond those on their way there; 0 while memory is at most half full."""
    rules, state = primary.rules, primary.state
    disks = sum(disk.size_bytes for disk in state.disks() if not (disk.away or disk.closed))
    if not disks or not rules.offload_ahead:
        return 0
    memory = [s for s in state.memory_segments() if s.name.node not in state.modes]
    capacity = sum(segment.usable_bytes for segment in memory)
    if sum(map(primary.used_on, memory)) <= SAVE_FROM * capacity:
        return 0
    # A small disk must not be filled and emptied again and again.
    return min(int(rules.offload_ahead * capacity), disks // 2) - primary.copies.saving_bytes


def _still_there(primary: Primary, ids: list[ObjectId]) -> Slots:
    catalogue = primary.state.catalogue
    slots = [slot for slot in catalogue.by_id.slots_of(ids) if slot >= 0]
    return np.array([slot for slot in slots if not catalogue.flags_at[slot] & (COPYING | MASKED)], np.intp)
