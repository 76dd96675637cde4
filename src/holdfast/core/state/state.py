"""Everything that the log determines: the same records give the same state (I5).

Masters of every role, restarts and the simulator share this and `apply`. Data of the primary alone (free space,
deadlines, silent nodes) is in `primary`; soft data (leases, last use) are columns beside the rest.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.core.catalogue.catalogue import DISK, MEMORY, Catalogue
from holdfast.core.state.departed import Departed
from holdfast.core.state.grants import Grant, Quarantined
from holdfast.core.state.tenants import Tenants
from holdfast.core.state.unlogged import EvictionMask
from holdfast.ids import GrantId, ObjectId, SegmentHandle, object_id
from holdfast.messages.log_versions import OLDEST_LOG_VERSION
from holdfast.messages.shapes import MountedSegment, SettingValue

OPEN, CORDONED, DRAINING = 0, 1, 2
"""Modes of a node: takes new objects; takes none; takes none, and its objects are moved away."""
MODES = ("open", "cordoned", "draining")


class Segment(MountedSegment, frozen=True, gc=False):  # type: ignore[misc] # msgspec allows it.
    """Memory of one boot of a node, or a disk, which outlives boots: then the boot in its name is the disk's id."""

    kind: int = MEMORY
    limit_bytes: int = 0
    """No new allocations from this offset on, because the segment shrinks; 0 if it does not."""
    away: bool = False
    """True for a disk whose node is not there: its objects cannot be read."""
    closed: str = ""
    """Why nothing new is written to this disk; empty if it takes files."""

    @property
    def usable_bytes(self) -> int:
        return self.limit_bytes or self.size_bytes


@dataclass(slots=True)
class Origin:
    """The source of a restored history, and what became of the objects it began with."""

    log_id: int = 0
    epoch: int = 0
    index: int = 0
    """Number of records of the older history in the catalogue."""
    objects: int = 0
    size_bytes: int = 0
    mismatched: int = 0
    """Objects dropped because their bytes differ from their checksums, or have none."""
    lost: int = 0
    """Objects dropped because the memory or disk that held them did not come back."""
    lost_files: int = 0
    """Objects dropped because their files were gone or spoiled when they were compared."""

    @property
    def first_id(self) -> ObjectId:
        """Objects with smaller ids were restored, the others put since."""
        return object_id(self.epoch + 1, 0)


@dataclass(slots=True)
class Drain:
    """Progress of a node's drain since it began: replicas that left the node and exist elsewhere, and objects that
    were evicted anywhere meanwhile."""

    moved_objects: int = 0
    moved_bytes: int = 0
    evicted_objects: int = 0
    evicted_bytes: int = 0
    ended: bool = False
    """The node is empty, and counting has stopped."""

    def __str__(self) -> str:
        return (
            f"{self.moved_objects:,} objects ({self.moved_bytes:,} bytes) moved, {self.evicted_objects:,} "
            f"({self.evicted_bytes:,} bytes) evicted"
        )


class NamedSuccessor(NamedTuple):
    """The standby on whose word puts may be acknowledged; without a name there is none."""

    name: str = ""
    life: int = 0
    """Which of its processes."""


@dataclass(slots=True)
class State:
    log_id: int = 0
    cluster: str = ""
    secret: bytes = b""
    epoch: int = 0
    index: int = 0
    """Number of records applied."""
    log_version: int = OLDEST_LOG_VERSION
    """The log version that a master needs to read this log, or a snapshot of this state (ADR 64)."""
    lease_ttl_ms: int = 0
    longest_lease_ms: int = 0
    """The longest time of leases that may still be live."""
    changed: dict[str, SettingValue] = field(default_factory=dict)
    """Settings that were changed while the cluster ran."""
    soft_pin_ttl_ms: int = 0
    grant_timeout_ms: int = 0
    catalogue: Catalogue = field(default_factory=Catalogue)
    mask: EvictionMask = field(default_factory=EvictionMask)
    """Unlogged evictions: each master's own, and the one part here that the log does not determine."""
    segments: dict[SegmentHandle, Segment] = field(default_factory=dict)
    topology: int = 0
    """Changes whenever a segment comes or goes."""
    most_nodes: int = 0
    """The most nodes that ever lent memory at once in this history. A put that asks for more replicas than that is a
    mistake; one that asks for fewer waits for nodes."""
    next_segment: SegmentHandle = 1
    next_counter: int = 1
    """Counter of the next object id in this epoch."""
    grants: dict[GrantId, Grant] = field(default_factory=dict)
    quarantine: dict[int, Quarantined] = field(default_factory=dict)
    next_quarantine: int = 1
    answers: OrderedDict[tuple[int, int], bytes] = field(default_factory=OrderedDict)
    """(client, serial) of a removal -> its reply."""
    departed: Departed = field(default_factory=Departed)
    sessions: dict[int, str] = field(default_factory=dict)
    """Session -> the name of its follower."""
    session_owners: dict[int, str] = field(default_factory=dict)
    """Session -> the identity that opened it, where identities matter."""
    session_epoch: int = 0
    session_lease_ms: int = 0
    session_jeopardy_ms: int = 0
    epoch_starts: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """For the last epochs: the number of records before each."""
    modes: dict[str, int] = field(default_factory=dict)
    """Mode of each node, by name; nodes that are not listed are open."""
    drains: dict[str, Drain] = field(default_factory=dict)
    """Drains by node name."""
    away: set[SegmentHandle] = field(default_factory=set)
    """Disks whose nodes are not there."""
    moved: dict[tuple[SegmentHandle, int], int] = field(default_factory=dict)
    """Former places of moved replicas that readers may still read: (segment, offset) -> quarantine entry."""
    continues: list[int] = field(default_factory=list)
    """The older histories whose catalogue this one was restored from, the latest last."""
    origin: Origin = field(default_factory=Origin)
    unsettled: set[SegmentHandle] = field(default_factory=set)
    """Memory that writers or readers of an older history may still use: none of its free space is granted."""
    unverified: set[SegmentHandle] = field(default_factory=set)
    """Memory whose content may differ from the restored catalogue: readers copy, and compare the checksum."""
    tenants: Tenants = field(default_factory=Tenants)
    revoked: dict[int, None] = field(default_factory=dict)
    """Clients that the operator has revoked, the latest last: no master lets them in again."""
    successor: NamedSuccessor = field(default_factory=NamedSuccessor)
    """Who holds records of this epoch that are not in the log yet (ADR 70)."""

    def end_of_epoch(self, epoch: int) -> int:
        """The most records that a master of that epoch can have made durable, as far as this log tells; for the
        current epoch, the length of the log."""
        return next((start for later, start in self.epoch_starts.items() if later > epoch), self.index)

    def enter_quarantine(self, quarantined: Quarantined) -> int:
        """Add these ranges to the quarantine; return the entry's number."""
        entry = self.next_quarantine
        self.quarantine[entry] = quarantined
        self.next_quarantine += 1
        return entry

    @property
    def objects(self) -> int:
        """Number of objects that are not masked."""
        return self.catalogue.count - len(self.mask)

    def memory_segments(self) -> list[Segment]:
        return [segment for segment in self.segments.values() if segment.kind == MEMORY]

    def lending_nodes(self) -> int:
        """Number of nodes that lend memory now, according to the log."""
        return len({segment.name.node for segment in self.memory_segments()})

    def disks(self) -> list[Segment]:
        return [segment for segment in self.segments.values() if segment.kind == DISK]
