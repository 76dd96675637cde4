"""The copies that nodes make for the primary now, and what it is yet to tell them of files and segments.

All of it can be rebuilt from the state: a copy that a failover interrupts is planned again, or finishes under the new
primary, because its grant is in the log. Every collection here is bounded (I17).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from holdfast.core.catalogue.catalogue import COPYING, DISK, ON_DISK, SEVERAL
from holdfast.core.primary.decision import Command
from holdfast.core.rules import REMEMBERED_HITS, SECOND_HIT
from holdfast.core.state.apply import Place
from holdfast.core.state.packed_numbers import unpack_sorted_ids
from holdfast.core.state.state import State
from holdfast.ids import SLOWEST_BYTES_PER_SECOND, GrantId, ObjectId, SegmentHandle
from holdfast.instant import Instant
from holdfast.messages.commands import RevokeLeases, encode_body
from holdfast.messages.records import ObjectsCommitted, ObjectsEvicted, ObjectsRemoved, RangesFreed, ReplicaDropped
from holdfast.messages.rows import PlaceRow, pack_ids, unpack_ids
from holdfast.messages.shapes import Record

MAX_FORGOTTEN = 65_536
"""The most obsolete files listed per disk until its node is told of them; beyond that the node audits the disk."""
MAX_RETRIES = 65_536
MAX_HINTS = 8_192
"""The most objects that one hint names; a flag says that there were more."""


@dataclass(slots=True)
class Copy:
    """Objects that one node copies into one grant."""

    grant: GrantId
    node: str
    target: SegmentHandle
    ids: list[ObjectId]
    size_bytes: int
    to_disk: bool
    ahead: bool = False
    """True for an offload ahead of need: its objects stay in memory for now."""


@dataclass(slots=True)
class CopyBook:
    under_way: dict[GrantId, Copy] = field(default_factory=dict)
    copying: dict[ObjectId, GrantId] = field(default_factory=dict)
    wanted_back: dict[ObjectId, None] = field(default_factory=dict)
    """Objects on disk that were read twice and should be brought back into memory."""
    stuck: dict[str, str] = field(default_factory=dict)
    """Node -> why its objects cannot be moved away now."""
    drains_looked_at: Instant = 0
    """When the draining nodes were last checked for being empty."""
    plan_at: Instant = 0
    tell_at: Instant = 0
    hopeless: tuple[Instant, int] = (0, -1)
    """(until when, under which topology) there is no point in looking for lost replicas to recover."""
    next_serial: int = 1
    retry_at: dict[ObjectId, Instant] = field(default_factory=dict)
    """Objects whose copy failed, and when it may be retried."""
    forgotten: dict[SegmentHandle, list[tuple[ObjectId, int]]] = field(default_factory=dict)
    """Files on disks that are no longer in the log: (object, offset)."""
    audits: dict[SegmentHandle, None] = field(default_factory=dict)
    """Disks whose nodes must be told to compare all files with the log."""
    leaving: dict[SegmentHandle, tuple[Instant, list[ObjectId]]] = field(default_factory=dict)
    """Segments to be emptied: (when to look again, the objects found at the last look)."""
    to_save: list[ObjectId] = field(default_factory=list)
    """The longest unused objects that are on no disk yet, as of the last look; the next one to save is last."""
    saved_at: tuple[Instant, int] = (0, -1)
    """(when, at which log index) that last look was."""
    released: dict[tuple[SegmentHandle, int], None] = field(default_factory=dict)
    """Segment tails that nodes were told to give back to their machine: (segment, offset where the tail begins)."""
    _hits: dict[ObjectId, int] = field(default_factory=dict)

    def began(self, state: State, copy: Copy) -> None:
        self.under_way[copy.grant] = copy
        catalogue = state.catalogue
        for oid in copy.ids:
            self.copying[oid] = copy.grant
            catalogue.flags_at[catalogue.by_id.slot_of(oid)] |= COPYING

    def ended(self, state: State, grant: GrantId) -> None:
        """The grant has ended, in whatever way: its objects may be evicted again."""
        copy = self.under_way.pop(grant, None)
        if copy is None:
            return
        catalogue = state.catalogue
        for oid in copy.ids:
            if self.copying.get(oid) == grant:
                del self.copying[oid]
                slot = catalogue.by_id.slot_of(oid)
                if slot >= 0:
                    catalogue.flags_at[slot] &= ~COPYING
        self.plan_at = 0

    def patience_ms(self, grant: GrantId) -> int:
        """Time that a copy may take beyond that of a put: its node may have others of its size to do first."""
        copy = self.under_way.get(grant)
        return 0 if copy is None else copy.size_bytes * 1_000 // SLOWEST_BYTES_PER_SECOND

    def bytes_towards(self, node: str, to_disk: bool) -> int:
        return sum(copy.size_bytes for copy in self.under_way.values() if copy.node == node and copy.to_disk == to_disk)

    @property
    def leaving_bytes(self) -> int:
        """Bytes on their way from memory to disks: memory that is about to be free."""
        return sum(copy.size_bytes for copy in self.under_way.values() if copy.to_disk and not copy.ahead)

    @property
    def saving_bytes(self) -> int:
        """Bytes of objects that are being copied to disks and stay in memory."""
        return sum(copy.size_bytes for copy in self.under_way.values() if copy.ahead)

    def failed(self, ids: list[ObjectId], again_at: Instant) -> None:
        for oid in ids:
            self.retry_at.pop(oid, None)
            self.retry_at[oid] = again_at
        while len(self.retry_at) > MAX_RETRIES:
            del self.retry_at[next(iter(self.retry_at))]

    def may_try(self, oid: ObjectId, now: Instant) -> bool:
        if oid in self.copying:
            return False
        when = self.retry_at.get(oid)
        if when is None:
            return True
        if when > now:
            return False
        del self.retry_at[oid]
        return True

    def hit_on_disk(self, oid: ObjectId) -> None:
        """Note a read of an object that is on disk only; the second one asks for it to be brought back into memory."""
        count = self._hits.pop(oid, 0) + 1
        if count >= SECOND_HIT:
            if len(self.wanted_back) < REMEMBERED_HITS:
                self.wanted_back[oid] = None
            self.plan_at = 0
            return
        self._hits[oid] = count
        while len(self._hits) > REMEMBERED_HITS:
            del self._hits[next(iter(self._hits))]

    def obsolete_files(self, state: State, record: Record) -> list[Place]:
        """Disk files that the record makes obsolete. Call it before the record is applied, and pass the result to
        `forget_files` afterwards: a record that cannot be applied costs no file (I1)."""
        if not any(segment.kind == DISK for segment in state.segments.values()):
            return []
        catalogue = state.catalogue
        if isinstance(record, ReplicaDropped):
            # Held replicas may still be read; their files are deleted when their quarantine ends.
            return [place for place in PlaceRow.iter_unpack(record.rows) if state.segments[place[1]].kind == DISK]
        packed = b""
        if isinstance(record, ObjectsRemoved):
            packed = record.ids
        elif isinstance(record, ObjectsCommitted):
            packed = record.replaced
        ids = unpack_ids(packed)
        if isinstance(record, ObjectsEvicted) and not record.leased:
            ids = unpack_sorted_ids(record.ids).tolist()
        found: list[Place] = []
        for oid in ids:
            slot = catalogue.by_id.slot_of(oid)
            if slot >= 0 and catalogue.flags_at[slot] & (ON_DISK | SEVERAL):
                found += [(oid, at.segment, at.offset) for at in catalogue.replicas(slot) if at.kind == DISK]
        return found

    def disks_released(self, state: State, record: Record) -> list[SegmentHandle]:
        """Disks where the record ends a quarantine, and which must then be audited. Call it before it is applied."""
        if not isinstance(record, RangesFreed):
            return []
        handles = dict.fromkeys(state.quarantine[entry].segment for entry in record.entries)
        return [handle for handle in handles if state.segments[handle].kind == DISK]

    def forget_files(self, files: list[Place]) -> None:
        for oid, handle, offset in files:
            waiting = self.forgotten.setdefault(handle, [])
            if len(waiting) < MAX_FORGOTTEN:
                waiting.append((oid, offset))
            else:
                self.audits[handle] = None

    def hints_to_readers(self, state: State, record: Record) -> list[Command]:
        """Commands that tell nodes which of their objects the record removes while they may still be read. Call it
        before the record is applied."""
        if not isinstance(record, ObjectsRemoved | ReplicaDropped | ObjectsCommitted) or not record.leased:
            return []
        by_node: dict[str, list[ObjectId]] = {}
        for handle, ids in _by_segment(state, record):
            by_node.setdefault(state.segments[handle].name.node, []).extend(ids)
        commands: list[Command] = []
        for node, ids in by_node.items():
            named = ids[:MAX_HINTS]
            body = RevokeLeases(pack_ids(named), more=len(ids) > MAX_HINTS)
            commands.append(Command(node, "revoke_lease", encode_body(body), confirm=True))
        return commands


def _by_segment(
    state: State, record: ObjectsRemoved | ReplicaDropped | ObjectsCommitted
) -> Iterator[tuple[SegmentHandle, list[ObjectId]]]:
    """The leased objects that the record removes, by the segments where they lie. By arrays: an upsert may replace
    8,192 of them in one step (ADR 51)."""
    if isinstance(record, ReplicaDropped):
        for oid, handle, _ in PlaceRow.iter_unpack(record.leased):
            yield handle, [oid]
        return
    catalogue = state.catalogue
    ids = np.array(unpack_ids(record.leased), np.uint64)
    slots = np.array(catalogue.by_id.slots_of(ids.tolist()), np.intp)
    handles = catalogue.segments[slots]
    for handle in np.unique(handles).tolist():
        yield handle, ids[handles == handle].tolist()
    for i in np.flatnonzero(catalogue.flags[slots] & SEVERAL).tolist():
        for place in catalogue.others[int(slots[i])]:
            yield place.segment, [int(ids[i])]
