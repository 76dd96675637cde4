"""Requests between masters, and from operators to one of them: about the process, not the catalogue."""

from __future__ import annotations

import msgspec

from holdfast.identity.roles import Role
from holdfast.messages.shapes import Bounded, Message


class FetchSnapshot(Message, tag=17):
    """Fetch a piece of the newest snapshot that this master keeps (`batch` 0), or of that batch; any role answers."""

    needs = Role.MASTER
    batch: int = 0
    offset: int = 0
    log_id: int = 0
    """The history of the snapshot; 0 for the one that the master follows."""


class HandOver(Message, tag=18):
    """Have the primary make all its records durable, resign, and become a standby."""

    needs = Role.OPERATOR


class TakeSnapshot(Message, tag=19):
    """Write a snapshot now. Answered by `Done` with the number of the last batch in it."""

    needs = Role.OPERATOR
    also_for = frozenset({Role.MASTER})


class SnapshotPiece(Message, tag=113):
    """`size_bytes` is the size of the whole snapshot; batch 0 if there is none."""

    batch: int
    size_bytes: int
    content: bytes
    log_id: int = 0
    """Its history; 0 from a master of an older version."""


class DescribeHistories(Message, tag=44):
    """Ask which histories this master serves, holds and keeps. Answered by `HistoriesDescribed`, in every role."""

    needs = Role.OPERATOR


class OfferCatalogue(Message, tag=45):
    """Send a piece of a snapshot from which to restore a history. Offset 0 begins anew; answered by `Done` with the
    bytes received so far."""

    needs = Role.OPERATOR
    offset: int
    content: bytes


class RestoreHistory(Message, tag=46):
    """Begin a new history with the catalogue of this one, from where the master has it: one of the `where` of
    `HistoriesDescribed`, or empty for the offered snapshot. Answered by `Done` once it has begun.

    It replaces the history that is served now, if any; one with objects in it only if `replace`.
    """

    needs = Role.OPERATOR
    log_id: int
    where: str = ""
    replace: bool = False


class HoldTail(Message, tag=20):
    """Have this standby hold records of the primary's that are not in the log yet, until they are; answered by
    `TailHeld`. Without records it is asked whether it would, or still does (ADR 70)."""

    needs = Role.MASTER
    log_id: int
    epoch: int
    first: int = 0
    """The index of the first record; 0: there are none."""
    records: Bounded[bytes] = []
    """As they will be in the log."""


class TailHeld(Message, tag=114):
    """This standby is willing, and holds all records of that epoch through this index; 0: it holds none."""

    name: str
    life: int
    through: int


class ListClients(Message, tag=47):
    """List who is connected to this master; the same as `/api/v1/clients`. Answered by `ClientList`, in every role,
    after the half second in which requests are counted."""

    needs = Role.READER
    tenant: str | None = None
    """Only clients of this tenant; None: all. Whoever is no operator is shown its own, whatever it asks for."""


class GetOverview(Message, tag=61):
    """Ask for the figures that the dashboard shows. Answered by `Overview` in every role, without a pass over the
    catalogue; a primary of release 0.2.0 or older does not know it."""

    needs = Role.READER
    tenant: str | None = None
    """Only of this tenant, and without places of nodes; None: everything. Whoever is no operator is shown its own,
    whatever it asks for."""


class ListEvents(Message, tag=62):
    """Ask for the events of all masters with a higher number than `after`, the oldest first; with 0 for the newest.
    Answered by `EventList`, in every role."""

    needs = Role.OPERATOR
    after: int = 0
    limit: int = 100


class EndClient(Message, tag=48):
    """End the grants, leases and connections of the client with this handle, or of all clients of the identity with
    this name; no master lets them connect again. What was acknowledged stays. Answered by `Done` with the number of
    clients. Sent twice it finds nobody, or ends nothing more."""

    needs = Role.OPERATOR
    who: str


class ClientInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One client, with all of its connections."""

    handle: str
    """Stands for the client's number, which only the client may know. It is the same at every master."""
    name: str
    """Of its identity; empty where everybody may connect."""
    tenant: str
    kind: str
    """client, node, or viewer: one that only looks."""
    address: str
    """host:port, or `local` for a client over the master's Unix socket."""
    pid: int
    """Of its process, where it is local; 0: not known."""
    connections: int
    grants: int
    granted_bytes: int
    leases: int
    """Objects leased to it and to nobody else."""
    requests_per_second: float
    bytes_per_second: float
    """Of its requests; the bytes of objects do not pass through the master."""
    connected_ms: int


class ClientList(Message, tag=136):
    """The busiest first; `total` counts all, those that are left out here too."""

    clients: list[ClientInfo]
    total: int


class Overview(Message, tag=140):
    """`facts` is JSON, the same as at `/api/v1/overview`."""

    facts: bytes


class EventInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Something that happened, as the master noted it that answers."""

    number: int
    """At this master, since its process began."""
    date_ms: int
    """Milliseconds since 1970, by the calendar of the master that noted it; no two of its events have the same."""
    kind: str
    subject: str
    text: str
    master: str
    """The one that noted it."""


class EventList(Message, tag=141):
    events: list[EventInfo]


class HistoryFound(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A history that could be restored, as it is known in one place."""

    log_id: int
    where: str
    """"memory", or the name of a file."""
    epoch: int
    index: int
    """Number of its records."""
    objects: int
    size_bytes: int


class HistoriesDescribed(Message, tag=134):
    name: str
    role: str
    log_id: int
    """The history that is served or followed; 0 if there is none."""
    objects: int
    found: list[HistoryFound]
    leader: str = ""
    waits: str = ""
    """Why it waits for the operator; empty if it does not."""
    restoring: str = ""
    """The step of a restore under way; empty if there is none."""
    failure: str = ""
    """Why the last restore failed; empty if none did."""
    older: int = 0
    """The history that the present one was restored from; 0 if it was not restored."""
    restored: int = 0
    """Objects that it began with, and their bytes."""
    restored_bytes: int = 0
    mismatched: int = 0
    """Objects dropped because their bytes differed from those that were put, or had no checksum."""
    lost: int = 0
    """Objects dropped because their memory or disk did not come back."""
    unverified: int = 0
    """Objects whose memory or file has not been compared yet."""
    unverified_nodes: list[str] = []
    """Nodes that have memory to compare."""
    unverified_disks: list[str] = []
    """Nodes that have files to compare, or whose disk is away."""
    lost_files: int = 0
    """Objects dropped because their files were gone or spoiled when they were compared."""
