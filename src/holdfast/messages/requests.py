"""Requests of clients to a master, and its replies. Every verb takes many keys; one key is a batch of one.

Rows packed into one `bytes` have their layouts in `messages.rows`.

Tags 1..63 are a client's, 64..95 a node's or a session's, 96..127 replies. A tag is never given another meaning.
"""

from __future__ import annotations

from holdfast.identity.roles import Role
from holdfast.ids import GrantId
from holdfast.messages.shapes import (
    Attachment,
    Bounded,
    MappingRight,
    Message,
    Range,
    SegmentPlace,
    SettingValue,
    Ticket,
)

CLIENT_KEY_BYTES = 16


class Hello(Message, tag=1):
    """The first request of a connection."""

    client: int
    """The number of a caller that draws its own: 63 random bits. Older masters take it; others only where it has no
    key."""
    token: str = ""
    control: bool = False
    """True: this is the client's one control connection; an older one of the same client is closed first."""
    looks: bool = False
    """True: it only sends status requests, which a standby answers too."""
    client_key: bytes = b""
    """16 random bytes that the caller keeps for its life and tells nobody else: masters derive its number from them
    (ADR 46). Empty: an older version, which uses `client`."""

    def __repr__(self) -> str:
        return f"Hello(control={self.control}, looks={self.looks})"  # Token and key are secrets.


class Exists(Message, tag=2):
    """Which keys are stored? With `touch`, those found are leased and marked as used, as by a read."""

    needs = Role.READER
    keys: Bounded[str]
    touch: bool = False
    use: bool = False
    """Mark those found as used, for the order of eviction, without leasing them. Ignored by an older master."""
    without: Bounded[int] = []
    """Segments that the caller cannot reach: objects only in these count as absent. Ignored by an older master."""


class Locate(Message, tag=3):
    """Where are the bytes of these keys? Grants a lease on each that is found."""

    needs = Role.READER
    keys: Bounded[str]
    tickets: bool = False
    """Give tickets too: the caller reads some of its objects over TCP. Ignored by an older master."""


class RenewLeases(Message, tag=4):
    """Extend the leases of these objects, named by id and by the place where the reader sees them.

    `rows`: a `SeenRow` per object. Answered by `Presence`: 1 if that object is still at that place.
    """

    needs = Role.READER
    rows: bytes


class GrantRanges(Message, tag=5):
    """Ask for memory to write to. With `keys`, those that exist already (unless `upsert`) get none of it.

    `sizes` (`pack_sizes`) is per key; without keys it is the one length wanted. A retry with the same grant id gets
    the same grant.
    """

    needs = Role.WRITER
    grant: GrantId
    sizes: bytes
    keys: Bounded[str] = []
    replicas: int = 1
    prefer: Bounded[str] = []
    """Names of nodes, or of segments as `node/boot/number`, to try first, in this order."""
    attached: Bounded[Attachment] = []
    upsert: bool = False
    finished: Bounded[GrantId] = []
    """Grants that this client is done with: no byte is still being written to them."""
    least_bytes: int = 0
    """If given, a shorter grant is accepted, down to this length, to avoid evictions or waiting. With keys it must
    still hold the largest of them."""


class ExtendGrants(Message, tag=6):
    """The writer is alive and still needs these grants."""

    needs = Role.WRITER
    grants: Bounded[GrantId]


class CommitPuts(Message, tag=7):
    """Every replica of these puts is written: make the objects visible.

    `rows`: a `PutRow` per key. Idempotent by (grant, offset).
    """

    needs = Role.WRITER
    grant: GrantId
    keys: Bounded[str]
    rows: bytes
    upsert: bool = False
    soft_pin: bool = False
    hard_pin: bool = False
    durability: str = ""
    """`durable`, `standby`, `memory`, or empty for what the masters are set to."""
    finished: Bounded[GrantId] = []
    ahead: GrantRanges | None = None
    """Prefetch: memory for the next put, of one length and for no key, if there is room at once."""


class ReturnGrants(Message, tag=8):
    """The writer is done with these grants. `settled`: no byte can still be written to them, so that the unused part is
    free at once; otherwise it is quarantined until the nodes have closed the connections that may still carry bytes."""

    needs = Role.WRITER
    grants: Bounded[GrantId]
    settled: bool = True


class Remove(Message, tag=9):
    """Remove these keys. `serial` makes resending harmless: the reply to (client, serial) is remembered.

    `forgotten`: the client has dropped its own leases on these keys and reads none of them, so they are ignored.
    """

    needs = Role.WRITER
    force_needs = Role.OPERATOR
    keys: Bounded[str]
    serial: int
    force: bool = False
    forgotten: bool = False


class RemoveMatching(Message, tag=10):
    """Remove, among the slots from `cursor` on, the keys that match the RE2 `pattern` (empty: all keys).

    One call visits a bounded number of slots; the reply's cursor is where to go on, 0 if all were visited.
    """

    needs = Role.WRITER
    force_needs = Role.OPERATOR
    pattern: str
    serial: int
    cursor: int = 0
    force: bool = False
    forgotten: bool = False
    """As in `Remove`."""


class ChangePins(Message, tag=21):
    """Give the objects under these keys these pins, in the place of those that they have; neither: take them away.
    Answered by `Presence`: 1 for a key that is stored.

    Sent twice, it asks for the same pins again; a soft pin then lasts from the second time on. Where the hard pins
    would exceed the share of the tenant, none of the pins changes.
    """

    needs = Role.WRITER
    keys: Bounded[str]
    soft_pin: bool = False
    hard_pin: bool = False


class ListKeys(Message, tag=11):
    """List the keys that begin with `prefix`, a bounded number of slots at a time, in no order."""

    needs = Role.READER
    prefix: str = ""
    cursor: int = 0


class Stat(Message, tag=12):
    needs = Role.READER
    keys: Bounded[str]


class Explain(Message, tag=13):
    """Why is this object kept, or why is it gone?"""

    needs = Role.READER
    keys: Bounded[str]


class ListSegments(Message, tag=14):
    """List every mounted segment and how to reach it."""

    needs = Role.READER
    attach: MappingRight = MappingRight.WRITE
    """Which tickets for mapping to give. The master lowers it to what the caller's identity may have."""


class GetStatus(Message, tag=15):
    """The master's own view of the cluster; the same as `/api/v1/status`."""

    needs = Role.READER


class ListNodes(Message, tag=16):
    """The nodes and their standing; the same as `/api/v1/nodes`."""

    needs = Role.READER


class ChangeMode(Message, tag=30):
    """Make a node `open`, `cordoned` (nothing new is placed there) or `draining` (its objects also move away)."""

    needs = Role.OPERATOR
    node: str
    mode: str
    evict: bool = False
    """Drain even if the other nodes have no room for all objects, so that some are evicted."""


class ResizeNode(Message, tag=31):
    """Have the node lend this much memory. Growing mounts another segment; shrinking moves the objects beyond away.

    More than the node has reported that its machine has is refused, unless `force`."""

    needs = Role.OPERATOR
    node: str
    size_bytes: int
    force: bool = False


class RevokeWrites(Message, tag=32):
    """End this client's uncommitted grants, and accept no further bytes from it."""

    needs = Role.OPERATOR
    client: int


class ChangeCopying(Message, tag=33):
    """Set the speed at which a node may copy objects for recovery, draining and the disk tier, in bytes per second; 0
    for no limit."""

    needs = Role.OPERATOR
    bytes_per_second: int


class ChangeSettings(Message, tag=24):
    """Change settings of the running cluster; None resets one to what each master was started with. Without changes, it
    only asks. Answered by `SettingsInForce`."""

    needs = Role.OPERATOR
    changes: dict[str, SettingValue | None] = {}


class Welcome(Message, tag=96):
    """`log_id` identifies the history that ids and handles belong to; under another one nothing cached is valid."""

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
    key_table: str = ""
    """Another one, at which it hands out the memory of its key table, to clients that present the secret."""
    key_table_secret: bytes = b""
    namespace: str = ""
    """The prefix of the keys of the client's tenant in the key table."""
    client: int = 0
    """The client's number, which its grants begin with. 0: the one that it sent; or nobody leads here."""
    protocol: int = 1
    """The newest protocol version that both sides speak; 1 if the master knows no other."""
    version: str = ""
    """The master's release."""


class Failed(Message, tag=97):
    """The request failed. `code` names the error's class (errors.BY_CODE)."""

    code: str
    text: str
    hint: str = ""
    """With `not_leader`: the address of the primary, if known."""
    retry_after_ms: int = 0
    """With `tenant_busy`: when to ask again."""


class Presence(Message, tag=98):
    """One byte per key: 1 if found, 0 if not. If leases were renewed, for how long."""

    found: bytes
    lease_ttl_ms: int = 0


class Located(Message, tag=99):
    """`rows`: a `LocatedRow` per key; id 0 if the key is not stored.

    `others`: further replicas, as (index of the key, segment, offset). `lease_ttl_ms` is 0 if one of the objects got no
    lease: a reader asks after the copy whether it was still there (`RenewLeases`). Then `leased` tells which have one
    (1 per key), of `leased_ms`; clients that do not know these fields rely on no lease.
    """

    rows: bytes
    lease_ttl_ms: int
    topology: int
    others: list[tuple[int, int, int]] = []
    tickets: list[Ticket] = []
    """If asked for: they cover all these places, several to a ticket."""
    leased: bytes = b""
    leased_ms: int = 0


class Granted(Message, tag=100):
    """`taken`, if keys were named: 1 for a key that exists and needs no put. No ranges: nothing is left to write.

    Each range is `length` long. Large objects go first, so that every object is aligned.
    """

    length: int
    ranges: list[Range]
    topology: int
    timeout_ms: int
    taken: bytes = b""


class Committed(Message, tag=101):
    """One byte per key: 1 stored, 0 the key existed already and keeps its object.

    `ahead`: the prefetched grant; None if the next put must ask for memory. A reply with it waits for the log, whatever
    the durability, as for any grant.
    """

    stored: bytes
    ahead: Granted | None = None


class Done(Message, tag=102):
    """Success. `count` is the number of items affected."""

    count: int = 0


class Removed(Message, tag=103):
    """`leased`: the number refused because of a live lease; `lease_left_ms`: the longest time left of one.

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
    """Per key: the stat if it is stored, and sentences that tell why it is kept or what removed it."""

    stats: list[ObjectStat | None]
    reasons: list[list[str]]


class SegmentList(Message, tag=109):
    topology: int
    segments: list[SegmentPlace]
    doubtful_ms: int = 0
    """The longest that leases may live that were given before some memory of a restored history was verified. Such an
    object may have been dropped since, because its bytes differ: bytes read under such a lease are compared."""


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
    """Duration of its last promotion, from winning the term to serving; -1 if it was never promoted."""
    log_bytes: int = 0
    """Bytes written to the log in this term."""
    log_batches: int = 0
    masters: list[str] = []
    """The addresses of all masters known to run, its own included."""
    evicted: int = 0
    """Objects that this primary evicted."""
    hidden: int = 0
    """Unlogged evictions: objects that are evicted here and still in the catalogue."""
    renewal_writes: int = 0
    renewal_bytes: int = 0
    renewals: int = 0
    """Lease renewals that this master sent to others, or received."""
    renewal_delay_ms: float = 0.0
    """Time from a renewal until the standbys can know of it."""
    waits: str = ""
    """Why it waits for the operator's decision before a history begins; empty if it does not."""
    log_id: str = ""
    """The history that it follows or leads, in hexadecimal."""
    insecure: list[str] = []
    """Its listeners that strangers can reach, and what each lacks (`--insecure`)."""
    identities_fault: str = ""
    """Why the file of identities that is there now is not in force; empty: it is, or there is none."""
    log_version: int = 0
    """The newest version of records that may be written; on a standby, what its log needs. 0: an older master."""
    log_held_back_by: list[str] = []
    """Masters that read less than this one writes, each with what it reads (ADR 64)."""
    successor: str = ""
    """The standby that holds the tail of the primary's log, on a standby as far as it has read the log; empty: none is
    needed, or none is willing (ADR 70)."""
    successor_lag: int = 0
    """Records that it does not hold yet."""
    held_records: int = 0
    """Records that this standby holds, and the log does not have yet as far as it knows."""


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
    """Standing of its session: safe, jeopardy or expired."""
    session_epoch: int = 0
    lease_left_ms: int = 0
    last_command: str = ""
    figures: dict[str, int] = {}
    """The node's last usage report."""
    mode: str = "open"
    objects_left: int = 0
    """On a draining or shrinking node: objects that have not moved away yet."""
    bytes_left: int = 0
    waits_for: str = ""
    """The reason why they cannot move, if there is one."""
    disk: str = ""
    """State of its disk: empty for none, `mounted`, `away`, or why nothing more is written to it."""
    disk_capacity_bytes: int = 0
    disk_used_bytes: int = 0
    moved_objects: int = 0
    """On a draining node, since the drain began: objects that left it and exist elsewhere."""
    moved_bytes: int = 0
    evicted_objects: int = 0
    """And objects that were evicted meanwhile, from any node."""
    evicted_bytes: int = 0


class NodeList(Message, tag=112):
    nodes: list[NodeInfo]


class SettingsInForce(Message, tag=120):
    """`settings` that can be changed while the cluster runs, and the names of those that were changed."""

    settings: dict[str, SettingValue]
    changed: list[str]
