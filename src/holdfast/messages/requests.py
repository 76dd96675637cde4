"""What clients ask of a master, and what it answers. Every verb takes many keys; one key is a batch of one.

Tags 1..63 are a client's, 64..95 a node's or a session's, 96..127 replies. A tag is never given another meaning.
"""

from __future__ import annotations

from holdfast.ids import GrantId
from holdfast.messages.shapes import Attachment, Message, Range, SegmentPlace, SettingValue


class Hello(Message, tag=1):
    """The first request of a connection. `client` is a random 64-bit number that the caller keeps for its life."""

    client: int
    token: str = ""
    control: bool = False
    """True: this is the client's one control connection; an older one of the same client is closed first."""
    looks: bool = False
    """True: only asks how things stand, which a standby answers too."""


class Exists(Message, tag=2):
    """Which keys are stored? With `touch`, those found are leased and used, as by a read."""

    keys: list[str]
    touch: bool = False
    use: bool = False
    """Mark those found as used, for the order of eviction, without leasing them. An older master only looks."""
    without: list[int] = []
    """Segments that the caller cannot reach: what lies in these alone is not there for it. Older masters count it."""


class Locate(Message, tag=3):
    """Where are the bytes of these keys? Grants a lease on each that is found."""

    keys: list[str]


class RenewLeases(Message, tag=4):
    """Extend the leases of these objects, named by id and by the place where the reader sees them.

    `rows`: (id, segment, offset) per object. Answered by `Presence`: 1 where that object is still at that place.
    """

    rows: bytes


class GrantRanges(Message, tag=5):
    """Ask for memory to write to. With `keys`, those that exist already (unless `upsert`) get none of it.

    `sizes`, packed, is per key; without keys it is the one length wanted. Asking again with the same grant id
    gives the same grant.
    """

    grant: GrantId
    sizes: bytes
    keys: list[str] = []
    replicas: int = 1
    prefer: list[str] = []
    """Names of nodes, or of segments as `node/boot/number`, to be tried first, in this order."""
    attached: list[Attachment] = []
    upsert: bool = False
    finished: list[GrantId] = []
    """Grants that this client is done with: no byte is still being written to them."""
    least_bytes: int = 0
    """Where it is given, a shorter grant is welcome, down to this length: rather than that more must be evicted or the
    put must wait. With keys it holds at least the largest of them."""


class ExtendGrants(Message, tag=6):
    """The writer is alive and still needs these grants."""

    grants: list[GrantId]


class CommitPuts(Message, tag=7):
    """Every replica of these puts is written: make the objects visible.

    `rows`: (offset in the grant, size, checksum) per key. Idempotent by (grant, offset).
    """

    grant: GrantId
    keys: list[str]
    rows: bytes
    upsert: bool = False
    soft_pin: bool = False
    hard_pin: bool = False
    durability: str = ""
    """`durable`, `memory`, or empty for the cluster's own."""
    finished: list[GrantId] = []
    ahead: GrantRanges | None = None
    """Memory for the next put, of one length and for no key, if there is room at once."""


class ReturnGrants(Message, tag=8):
    """The writer is done with these grants. `settled`: no byte can still be written to them, so that what is left
    is free at once; otherwise it is quarantined until the nodes have closed the connections that may carry some."""

    grants: list[GrantId]
    settled: bool = True


class Remove(Message, tag=9):
    """Remove these keys. `serial` makes resending harmless: the answer to (client, serial) is remembered.

    `forgotten`: the client has dropped its own leases on these keys and reads none of them, so that they do not count.
    """

    keys: list[str]
    serial: int
    force: bool = False
    forgotten: bool = False


class RemoveMatching(Message, tag=10):
    """Remove, among the slots from `cursor` on, what matches the RE2 `pattern` (empty: everything).

    One call visits a bounded number of slots; the answer's cursor says where to go on, 0 that all were visited.
    """

    pattern: str
    serial: int
    cursor: int = 0
    force: bool = False
    forgotten: bool = False
    """As in `Remove`."""


class ListKeys(Message, tag=11):
    """Keys that begin with `prefix`, a bounded number of slots at a time, in no order."""

    prefix: str = ""
    cursor: int = 0


class Stat(Message, tag=12):
    keys: list[str]


class Explain(Message, tag=13):
    """Why is this object kept, or why is it gone?"""

    keys: list[str]


class ListSegments(Message, tag=14):
    """Every mounted segment and how to reach it."""


class GetStatus(Message, tag=15):
    """The master's own view of the cluster; the same as `/api/v1/status`."""


class ListNodes(Message, tag=16):
    """The nodes and how they stand; the same as `/api/v1/nodes`."""


class ChangeMode(Message, tag=30):
    """Make a node `open`, `cordoned` (nothing new is placed there) or `draining` (what it holds moves away, too)."""

    node: str
    mode: str
    evict: bool = False
    """Drain also where the other nodes have no room for all, so that objects are evicted."""


class ResizeNode(Message, tag=31):
    """Have the node lend this much memory. Growing mounts another segment; shrinking moves away what is beyond.

    More than the node's machine has is refused, as far as the node has reported it, unless `force`."""

    node: str
    size_bytes: int
    force: bool = False


class RevokeWrites(Message, tag=32):
    """End what this client has been granted and not committed, and take no more bytes from it."""

    client: int


class ChangeCopying(Message, tag=33):
    """How fast a node may copy objects for recovery, draining and the disk tier, in bytes a second; 0: unlimited."""

    bytes_per_second: int


class ChangeSettings(Message, tag=24):
    """Change settings of the running cluster; None: back to what each master was started with. Without changes, only
    ask. Answered by `SettingsInForce`."""

    changes: dict[str, SettingValue | None] = {}


class Welcome(Message, tag=96):
    """`log_id` identifies the history that ids and handles belong to; under another one nothing cached is true."""

    log_id: int
    epoch: int
    name: str
    lease_ttl_ms: int
    grant_timeout_ms: int
    write_window_bytes: int
    shared_grant_bytes: int
    topology: int
    host: str = ""
    """Identity of the master's machine."""
    local: str = ""
    """The abstract Unix socket on which it also listens: half the cost of TCP for a client on the same machine."""
    shown: str = ""
    """Another one, at which it hands out the memory in which it shows its keys, to who says the secret."""
    shown_secret: bytes = b""


class Failed(Message, tag=97):
    """The request failed. `code` names the error's class (errors.BY_CODE)."""

    code: str
    text: str
    hint: str = ""
    """With `not_leader`: the address of the primary, if it is known."""


class Presence(Message, tag=98):
    """One byte a key: 1 found, 0 not. Where leases were renewed, for how long."""

    found: bytes
    lease_ttl_ms: int = 0


class Located(Message, tag=99):
    """`rows`: (id, segment, offset, size, checksum) per key; id 0 where the key is not stored.

    `others`: further replicas, as (index of the key, segment, offset).
    """

    rows: bytes
    lease_ttl_ms: int
    topology: int
    others: list[tuple[int, int, int]] = []


class Granted(Message, tag=100):
    """`taken`, where keys were named: 1 for a key that exists and needs no put. No ranges: nothing is left to write.

    The ranges are each `length` long. Large objects go first, so that every object is aligned.
    """

    length: int
    ranges: list[Range]
    topology: int
    timeout_ms: int
    taken: bytes = b""


class Committed(Message, tag=101):
    """One byte a key: 1 stored, 0 the key was there already and keeps its object.

    `ahead`: what was asked for ahead. None: the next put asks by itself. With it the answer waits for the log, in every
    durability, as any grant's does.
    """

    stored: bytes
    ahead: Granted | None = None


class Done(Message, tag=102):
    """It is so now. `count` is how many it touched."""

    count: int = 0


class Removed(Message, tag=103):
    """`leased`: how many were refused because of a live lease, and the longest that is left of one.

    `missing` is the number of keys that were not there.
    """

    removed: int
    leased: int = 0
    lease_left_ms: int = 0
    cursor: int = 0
    missing: int = 0
    pinned: int = 0


class KeyList(Message, tag=104):
    keys: list[str]
    cursor: int


class Replica(Message, tag=105):
    kind: str
    node: str
    segment: int
    offset: int
    size_bytes: int


class ObjectStat(Message, tag=106):
    key: str
    id: int
    size_bytes: int
    checksum: int
    lease_left_ms: int
    unused_ms: int
    soft_pin_left_ms: int
    hard_pin: bool
    replicas: list[Replica]


class Stats(Message, tag=107):
    """None for a key that is not stored."""

    stats: list[ObjectStat | None]


class Explanations(Message, tag=108):
    """Per key: the stat if it is stored, and sentences that say why it is kept or what removed it."""

    stats: list[ObjectStat | None]
    reasons: list[list[str]]


class SegmentList(Message, tag=109):
    topology: int
    segments: list[SegmentPlace]
    doubtful_ms: int = 0
    """So long leases may live that were given before some memory of a restored history was verified. The object may
    have been dropped since, because its bytes are others: what is read under such a lease is compared."""


class Status(Message, tag=110):
    cluster: str
    name: str
    role: str
    epoch: int
    log_index: int
    applied_index: int
    durable_index: int
    promotable: bool
    promotable_reason: str
    objects: int
    used_bytes: int
    capacity_bytes: int
    digest: str
    leader: str
    granted_bytes: int
    quarantined_bytes: int
    free_bytes: int
    nodes: int
    clients: int
    uptime_ms: int
    version: str
    promotion_ms: int = -1
    """How long its last promotion took, from winning the term to serving; -1 if it never was promoted."""
    log_bytes: int = 0
    """Written to the log in this term."""
    log_batches: int = 0
    masters: list[str] = []
    """The addresses of all masters that are known to run, its own included."""
    evicted: int = 0
    """Objects that this primary evicted."""
    hidden: int = 0
    """Objects that are evicted here and still in the catalogue."""
    renewal_writes: int = 0
    renewal_bytes: int = 0
    renewals: int = 0
    """Leases whose renewal this master told others of, or was told of."""
    renewal_delay_ms: float = 0.0
    """From a renewal to when the standbys can know of it."""
    waits: str = ""
    """Why it waits for the operator's word before a history begins; empty: it does not."""
    log_id: str = ""
    """The history that it follows or leads, in hexadecimal."""


class NodeInfo(Message, tag=111):
    name: str
    boot: str
    available: bool
    silent_ms: int
    data_address: str
    host: str
    segments: int
    capacity_bytes: int
    used_bytes: int
    standing: str = ""
    """Of its session: safe, jeopardy or expired."""
    session_epoch: int = 0
    lease_left_ms: int = 0
    last_command: str = ""
    figures: dict[str, int] = {}
    """What the node last reported of itself."""
    mode: str = "open"
    objects_left: int = 0
    """On a draining or shrinking node: objects that have not moved away yet."""
    bytes_left: int = 0
    waits_for: str = ""
    """Why they do not, if something stands in the way."""
    disk: str = ""
    """Its disk: empty for none, `mounted`, `away`, or why nothing more is written to it."""
    disk_capacity_bytes: int = 0
    disk_used_bytes: int = 0
    moved_objects: int = 0
    """On a draining node, since that began: what left it and lives on elsewhere."""
    moved_bytes: int = 0
    evicted_objects: int = 0
    """And what was evicted meanwhile, from any node."""
    evicted_bytes: int = 0


class NodeList(Message, tag=112):
    nodes: list[NodeInfo]


class SettingsInForce(Message, tag=120):
    """`settings` that can be changed while the cluster runs, and the names of those that were."""

    settings: dict[str, SettingValue]
    changed: list[str]
