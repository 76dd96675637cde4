"""Records, named in the past tense: the only way in which the catalogue changes.

A record holds the outcome of a decision (ids, places), never a rule to be evaluated again. It holds no times (I16).
Rows packed into one `bytes` have their layouts in `messages.rows`.
"""

from __future__ import annotations

import enum

from holdfast.ids import GrantId, ObjectId, SegmentHandle
from holdfast.messages.shapes import MountedSegment, Range, Record, SettingValue, TenantQuotas


class Cause(enum.IntEnum):
    REMOVE = 1
    REMOVE_BY_REGEX = 2
    REMOVE_ALL = 3
    PUT_REVOKE = 4
    UNMOUNT_SEGMENT = 5
    UPSERT = 6
    FILE_LOST = 7
    """The file of its last replica was found gone or spoiled."""
    MISMATCH = 9
    """After a restore: the bytes in its range are not those that were put, or this cannot be told."""


class LogStarted(Record, tag=1):
    """The first record of a log: its identity, and the secret of the MACs in its grants."""

    log_id: int
    cluster: str
    secret: bytes


class EpochStarted(Record, tag=2):
    epoch: int


class SettingsChanged(Record, tag=3):
    """Durations of leases and grants, logged before the first lease or grant of such a duration."""

    lease_ttl_ms: int
    soft_pin_ttl_ms: int
    grant_timeout_ms: int
    session_lease_ms: int = 12_000
    session_jeopardy_ms: int = 30_000
    """The defaults of these two are the times of logs that do not have them."""
    longest_lease_ms: int = 0
    """The longest time of leases that may still be live; at least `lease_ttl_ms`."""
    changed: dict[str, SettingValue] = {}
    """All settings that were changed while the cluster ran; they override those that a master was started with."""


class SegmentMounted(Record, MountedSegment, tag=4):
    kind: int = 0
    """0 memory, 1 disk. A disk that comes back is mounted under its old handle, with the objects that the log holds."""


class SegmentUnmounted(Record, tag=5):
    """All replicas on it are gone, and all objects without another replica (cause UNMOUNT_SEGMENT)."""

    handle: SegmentHandle


class RangesGranted(Record, tag=6):
    """If evictions are not logged, this record tells that objects in these ranges are gone: `evicted` holds their
    ids (`pack_sorted_ids`) if they are few; with `sweeps` it is all objects that lie in the ranges."""

    grant: GrantId
    length: int
    ranges: list[Range]
    evicted: bytes = b""
    sweeps: bool = False
    wanted: int = 0
    """Replicas that the put asked for, if there were too few nodes and fewer replicas were allowed; 0: as many as
    there are ranges. Objects committed here lack the others until they are made."""
    uncleared: bool = False
    """The ranges may hold bytes of another tenant: nobody has a proof for the grant, and nothing is committed in it,
    before `GrantCleared`."""


class GrantCleared(Record, tag=53):
    """Its nodes have wiped the ranges of this grant, and refuse earlier proofs for them (ADR 55)."""

    grant: GrantId


class GrantEnded(Record, tag=7):
    """The memory that the grant's commits left unused is free at once on the `settled` segments, where nothing can
    still be written (the writer said so, or is dead), and goes to quarantine on the others."""

    grant: GrantId
    settled: list[SegmentHandle]


class RangesFreed(Record, tag=8):
    """These quarantine entries have ended."""

    entries: list[int]


class ObjectsCommitted(Record, tag=9):
    """Ids are `first_id`, `first_id + 1`, ... `rows`: a `PutRow` per key.

    In an upsert, an object already under one of the keys is replaced: its id (`pack_ids`) is in `replaced`, or in
    `leased` if a lease on it is live, so that its range must not be reused yet.
    """

    grant: GrantId
    first_id: ObjectId
    keys: list[str]
    rows: bytes
    soft_pin: bool
    hard_pin: bool
    replaced: bytes = b""
    leased: bytes = b""


class ObjectsRemoved(Record, tag=10):
    """Packed ids (`pack_ids`). Those in `leased` were leased: their ranges go to quarantine instead of being free."""

    ids: bytes
    leased: bytes
    cause: Cause


class ObjectsEvicted(Record, tag=11):
    """Ids, sorted (`pack_sorted_ids`). With `leased` an earlier primary may have leased them: their
    ranges go to quarantine instead of being free."""

    ids: bytes
    leased: bool = False


class PinsChanged(Record, tag=55):
    """These objects (`pack_sorted_ids`) have these pins now, in the place of those that they had; neither: no pin. A
    soft pin lasts as one that a commit gives, by `soft_pin_ttl_ms` of the last `SettingsChanged`."""

    ids: bytes
    soft_pin: bool
    hard_pin: bool


class RemovalAnswered(Record, tag=12):
    """The reply to a removal request, kept so that resending the request changes nothing."""

    client: int
    serial: int
    answer: bytes


class SessionOpened(Record, tag=13):
    """`session_epoch` continues from here, also under the next master."""

    session: int
    name: str
    session_epoch: int
    owner: str = ""
    """The identity that opened it; empty where identities do not matter."""


class SessionEnd(enum.IntEnum):
    GOODBYE = 1
    EXPIRED = 2
    REPLACED = 3
    """The same name was opened again."""


class SessionClosed(Record, tag=14):
    session: int
    cause: SessionEnd


class LeasesRenewed(Record, tag=20):
    """These objects (`pack_sorted_ids`) were used and now have a lease of this length; written only if every renewal
    is logged. It renews existing objects and creates none (I7)."""

    ids: bytes
    left_ms: int


class ReplicaAdded(Record, tag=30):
    """Each of these objects has one more replica, in the grant's only range. `rows`: an `AddedRow` per object."""

    grant: GrantId
    rows: bytes


class ReplicaDropped(Record, tag=31):
    """These replicas are given up; the objects have others. Both fields: a `PlaceRow` per replica.

    Readers may still hold leases on those in `leased`: their ranges go to quarantine.
    """

    rows: bytes
    leased: bytes = b""


class NodeModeChanged(Record, tag=32):
    """Keyed by the node's name, so that it survives the node's restart. `mode` is OPEN etc. of core.state."""

    node: str
    mode: int


class NodeDrained(Record, tag=49):
    """Nothing is left on this draining node: it may be stopped without loss."""

    node: str


class SegmentLimited(Record, tag=33):
    """The segment shrinks: nothing new is placed at `limit_bytes` or beyond, and the objects there move away."""

    handle: SegmentHandle
    limit_bytes: int


class DiskLeft(Record, tag=34):
    """The disk's node is away, or cannot read it: its replicas are kept, but cannot be read until it is back."""

    handle: SegmentHandle


class DiskClosed(Record, tag=35):
    """Nothing new is written to this disk, for this reason; empty if it takes files again."""

    handle: SegmentHandle
    reason: str


class CopyingChanged(Record, tag=36):
    """The speed of copies, in logs of an earlier version; now part of `SettingsChanged`."""

    bytes_per_second: int


class CatalogueCarried(Record, tag=42):
    """A piece of the catalogue that a restored history begins with: pieces 0 to `count` - 1 of a snapshot.

    Pieces alone change nothing. A piece 0 begins anew: the writer of the pieces before it did not finish.
    """

    number: int
    count: int
    content: bytes


class HistoryRestored(Record, tag=43):
    """From here on the log is a new history, with the catalogue in the pieces before this record.

    It is alone in its batch. Sessions, grants and quarantine of the old history are over (I19). The memory and the
    disks in the catalogue are unsettled and unverified until later records say otherwise.
    """

    log_id: int
    secret: bytes
    checksum: int
    """Checksum of all pieces, joined."""
    replaces: list[int] = []
    """Histories served since the one that is restored: memory mounted under them is verified and kept too."""


class MemorySettled(Record, tag=44):
    """No writer and no reader of an older history is left in these segments: their free space may be granted."""

    handles: list[SegmentHandle]


class MemoryVerified(Record, tag=45):
    """The node has compared every range or file of these segments with its object's checksum; those that differ were
    dropped."""

    handles: list[SegmentHandle]


class TenantChanged(Record, TenantQuotas, tag=50):
    """A tenant was defined, or its quotas were changed. Its number is never given to another name."""


class TenantRemoved(Record, tag=51):
    """The tenant, which has no objects, is gone."""

    number: int


class ClientsRevoked(Record, tag=52):
    """The operator has revoked these clients: no master of this history lets them in again (ADR 53)."""

    clients: list[int]


class SuccessorNamed(Record, tag=54):
    """From this record on, puts may be acknowledged on the word of this standby, which holds the records that are not
    in the log yet: no other master may serve without its tail (ADR 70). An empty name: on nobody's word from here on.
    `life` is drawn by each master process at its start."""

    name: str
    life: int = 0
