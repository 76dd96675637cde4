"""Everything that the log determines: apply the same records and you hold the same state (I5).

Masters of every role, restarts and the simulator share this and `apply`. What only the primary needs (free
space, deadlines, who is silent) is in `primary`, and what is soft (leases, last use) are columns beside the rest.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from holdfast.core.catalogue.catalogue import DISK, MEMORY, Catalogue
from holdfast.core.state.departed import Departed
from holdfast.core.state.grants import Grant, Quarantined
from holdfast.core.state.unlogged import Mask
from holdfast.ids import GrantId, SegmentHandle, SegmentName
from holdfast.messages.shapes import SettingValue

OPEN, CORDONED, DRAINING = 0, 1, 2
"""What a node is used for: everything; nothing new; nothing new, and what it holds moves away."""
MODES = ("open", "cordoned", "draining")


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory of one boot of a node, or a disk, which outlives boots: then the boot in its name is the disk's id."""

    handle: SegmentHandle
    name: SegmentName
    size_bytes: int
    data_address: str
    socket_path: str
    host: str
    kind: int = MEMORY
    limit_bytes: int = 0
    """Nothing new from there on, because the segment shrinks; 0: it does not."""
    away: bool = False
    """A disk whose node is not there: what it holds cannot be read."""
    closed: str = ""
    """Why nothing new is written to a disk; empty: it is."""

    @property
    def usable_bytes(self) -> int:
        return self.limit_bytes or self.size_bytes


@dataclass(slots=True)
class Origin:
    """Where a restored history comes from, and what became of what it began with."""

    log_id: int = 0
    epoch: int = 0
    index: int = 0
    """How many records of the older history the catalogue holds."""
    objects: int = 0
    size_bytes: int = 0
    mismatched: int = 0
    """Objects dropped because their bytes differ from their checksums, or have none."""
    lost: int = 0
    """Objects dropped because the memory that held them did not come back."""


@dataclass(slots=True)
class Drain:
    """What became of objects since a node's draining began: replicas that left the node and live on elsewhere, and
    objects that were evicted from anywhere meanwhile."""

    moved_objects: int = 0
    moved_bytes: int = 0
    evicted_objects: int = 0
    evicted_bytes: int = 0
    ended: bool = False
    """The node is empty, and nothing is counted any more."""

    def __str__(self) -> str:
        return (
            f"{self.moved_objects:,} objects ({self.moved_bytes:,} bytes) moved, {self.evicted_objects:,} "
            f"({self.evicted_bytes:,} bytes) evicted"
        )


@dataclass(slots=True)
class State:
    log_id: int = 0
    cluster: str = ""
    secret: bytes = b""
    epoch: int = 0
    index: int = 0
    """How many records were applied."""
    lease_ttl_ms: int = 0
    longest_lease_ms: int = 0
    """Leases that were given for so long may still live."""
    changed: dict[str, SettingValue] = field(default_factory=dict)
    """Settings that were changed while the cluster ran."""
    soft_pin_ttl_ms: int = 0
    grant_timeout_ms: int = 0
    catalogue: Catalogue = field(default_factory=Catalogue)
    mask: Mask = field(default_factory=Mask)
    """Evictions that are in no log; each master's own, and so not determined by it."""
    segments: dict[SegmentHandle, Segment] = field(default_factory=dict)
    topology: int = 0
    """Changes whenever a segment comes or goes."""
    most_nodes: int = 0
    """The most nodes that ever lent memory at once in this history: more replicas than that are a mistake, fewer are
    only waited for."""
    next_segment: SegmentHandle = 1
    next_counter: int = 1
    """Of the next object id in this epoch."""
    grants: dict[GrantId, Grant] = field(default_factory=dict)
    quarantine: dict[int, Quarantined] = field(default_factory=dict)
    next_quarantine: int = 1
    answers: OrderedDict[tuple[int, int], bytes] = field(default_factory=OrderedDict)
    """(client, serial) of a removal -> what it was answered."""
    departed: Departed = field(default_factory=Departed)
    sessions: dict[int, str] = field(default_factory=dict)
    """The name of each session's follower."""
    session_epoch: int = 0
    session_lease_ms: int = 0
    session_jeopardy_ms: int = 0
    epoch_starts: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """Of the last epochs: how many records there were before each."""
    modes: dict[str, int] = field(default_factory=dict)
    """What each node is used for, by its name; those that are not named are open."""
    drains: dict[str, Drain] = field(default_factory=dict)
    """Of the nodes that are draining."""
    away: set[SegmentHandle] = field(default_factory=set)
    """Disks whose nodes are not there."""
    moved: dict[tuple[SegmentHandle, int], int] = field(default_factory=dict)
    """Where replicas were that readers may still look at: (segment, offset) -> quarantine entry."""
    continues: list[int] = field(default_factory=list)
    """The older histories whose catalogue this one was restored from, the latest last."""
    origin: Origin = field(default_factory=Origin)
    unsettled: set[SegmentHandle] = field(default_factory=set)
    """Writers or readers of an older history may still use this memory: none of its free space is granted."""
    unverified: set[SegmentHandle] = field(default_factory=set)
    """What lies here may differ from what the restored catalogue says: readers copy and compare the checksum."""

    def end_of_epoch(self, epoch: int) -> int:
        """The most records that a master of that epoch can have made durable, as far as this log tells; the log's
        own length for the one that goes on."""
        return next((start for later, start in self.epoch_starts.items() if later > epoch), self.index)

    @property
    def objects(self) -> int:
        """How many objects there are to be seen."""
        return self.catalogue.count - len(self.mask)

    def memory_segments(self) -> list[Segment]:
        return [segment for segment in self.segments.values() if segment.kind == MEMORY]

    def lending_nodes(self) -> int:
        """How many nodes lend memory now, as far as the log knows."""
        return len({segment.name.node for segment in self.memory_segments()})

    def disks(self) -> list[Segment]:
        return [segment for segment in self.segments.values() if segment.kind == DISK]
