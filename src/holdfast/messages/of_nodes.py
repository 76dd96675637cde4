"""Messages from nodes to a master (over the master's RPC port), and from clients to a node (over its own ports)."""

from __future__ import annotations

import enum

import msgspec

from holdfast.identity.roles import Role
from holdfast.ids import GrantId, ProcessName, SegmentName
from holdfast.messages.commands import TicketTerms
from holdfast.messages.shapes import AttachTicket, Bounded, Message, Ticket


class Damage(enum.IntEnum):
    """The state in which a file of a disk was found."""

    MISSING = 1
    WRONG_SIZE = 2
    SPOILED = 3
    """Its bytes, or its header, do not match their checksum."""
    UNREADABLE = 4
    """The device or the file system refuses to read it."""


class RegisterNode(Message, tag=64):
    """A node offers its memory, under a session that it holds; again to each new master.

    `log_id` is the history that the memory was last mounted under, 0 for new memory. Answered by `Registered`;
    `MemoryVoid` if the master does not know the memory, or lacks a part of the log that the node knows of.
    """

    needs = Role.NODE
    session: int
    boot: int
    log_id: int
    host: str
    data_address: str
    socket_path: str
    sizes: Bounded[int]
    """The length of segment 0, 1, ..."""
    live_writers: Bounded[int] = []
    """All other writers are gone."""
    heard_epoch: int = 0
    heard_index: int = 0
    """The last durable record that a master reported, and that master's epoch."""


class ReportWriters(Message, tag=65):
    """`gone_writers` can no longer write; `cleaned` grants are refused from now on.

    The node repeats both until it gets a reply; a repetition is harmless.
    """

    needs = Role.NODE
    session: int
    boot: int
    gone_writers: Bounded[int] = []
    cleaned: Bounded[GrantId] = []


class ReportGone(Message, tag=60):
    """The node sees that these processes on its machine have ended, and so no longer answer.

    `machine` is the node's own, as in the names; a master ignores reports about processes on other machines. Answered
    by `Done` with the number of those that were suspected. A repetition does nothing.
    """

    needs = Role.NODE
    session: int
    boot: int
    machine: str
    gone: Bounded[ProcessName]


class ReportUsage(Message, tag=66):
    """The node's usage, reported at an interval of its own: counters and sizes by name.

    Of the writers whose numbers are below `next_writer`, all but the `live_writers` are gone. This was reported when
    they went, but a request of one may have taken longer to arrive.
    """

    needs = Role.NODE
    session: int
    boot: int
    figures: dict[str, int]
    live_writers: Bounded[int] = []
    next_writer: int = 0


class Registered(Message, tag=67):
    """`secret` is this node's own key, of the MACs of grants and tickets (ADR 48)."""

    log_id: int
    epoch: int
    secret: bytes
    report_interval_ms: int
    primary: ProcessName | None = None
    """The primary's process. A node on its machine sees when it ends, and can look for the next primary at once."""
    suspects: list[ProcessName] = []
    """Earlier primaries that may still be answering: a node on their machine reports which of them are gone."""
    doubt_ms: int = 0
    """Time left in which such reports are useful."""
    tickets: TicketTerms | None = None
    """None from an older master, which gives none."""


class AttachSegment(Message, tag=80):
    """Over the Unix socket: pass me this segment's file descriptor. The answer, `Attached`, carries it (SCM_RIGHTS).

    Without `write` the descriptor is read-only. The connection stays open while the memory is mapped for writing:
    its end tells the node that this writer can no longer write.
    """

    segment: SegmentName
    write: bool = False
    history: int = 0
    """The history in which the client knows the segment; 0 if not given."""
    ticket: AttachTicket | None = None


class Attached(Message, tag=81):
    writer: int
    """This connection's number, at least 1, never reused within a boot."""
    size_bytes: int


class ReadRanges(Message, tag=95):
    """Over TCP: send me bytes of the ranges that the ticket vouches for.

    `wanted`: a `TicketRow` for each piece, inside one of those ranges; empty for all of them, whole and in order. Each
    is answered by `Sending` and then its raw bytes, or by `Failed`. A ticket that is not accepted is answered once, and
    the connection ends. (Tag 82 was a read that needed no ticket.)
    """

    segment: SegmentName
    ticket: Ticket
    wanted: bytes = b""
    together: bool = False
    """One `Sending` for the sum, and then the bytes of all pieces, is an answer too (ADR 76). Nodes of release 0.2.0 do
    not know this."""


class BytesOfGrant(msgspec.Struct, array_like=True, gc=False):
    """`length` bytes at `offset` in a grant's range.

    The grant and its range (of `range_length`, at `range_offset` in the segment) are vouched for by `mac`.
    """

    segment: SegmentName
    grant: GrantId
    range_offset: int
    range_length: int
    mac: bytes
    offset: int
    length: int


class ReadBack(Message, BytesOfGrant, tag=55):
    """Over TCP: send me bytes that I wrote to my grant, which is not committed yet.

    Answered as one range of `ReadRanges`.
    """


class Sending(Message, tag=83):
    length: int


class WriteRange(Message, BytesOfGrant, tag=84):
    """Over TCP: raw bytes follow; write them there. Answered by `Written`."""


class Written(Message, tag=85):
    length: int


class HearRevocations(Message, tag=86):
    """Over the Unix socket, on a connection of its own: tell me which objects are removed or moved while leased.

    Answered at once by an empty `LeasesRevoked`, and by another one whenever there are such objects. A node that could
    not report all of them ends the connection: the client must then trust none of the places it remembers.
    """

    segment: SegmentName | None = None
    """One of the node's, which the ticket is for."""
    ticket: AttachTicket | None = None


class LeasesRevoked(Message, tag=87):
    """These objects (`pack_ids`) were removed or moved. A hint: a lease stays valid until it ends."""

    ids: bytes
    history: int = 0
    """The node's memory now belongs to this history: a client that knows it from another forgets and unmaps it."""


class AddReplicas(Message, tag=88):
    """The node has copied these objects into the grant, and their bytes match their checksums.

    `rows`: a `CopiedRow` per object. `failed`: the ids (`pack_ids`) of those that could not be copied. The grant ends
    with this: nothing writes to it from now on.
    """

    needs = Role.NODE
    node: str
    grant: GrantId
    rows: bytes
    failed: bytes = b""


class MountDisk(Message, tag=89):
    """The node has this disk. `log_id` is the history that its files belong to, 0 for an empty one.

    Answered by `DiskMounted`, or `MemoryVoid` if the files are of another history: empty the disk then.
    """

    needs = Role.NODE
    node: str
    boot: int
    disk: int
    log_id: int
    size_bytes: int
    data_address: str
    host: str


class ReportFiles(Message, tag=90):
    """These files, a `FileRow` each, are on the disk. Answered by `FilesForgotten`: those that are not in the log."""

    needs = Role.NODE
    node: str
    disk: int
    rows: bytes


class ReportDisk(Message, tag=91):
    """The disk is failing: nothing more is written to it. Unless `readable`, nothing can be read from it either."""

    needs = Role.NODE
    node: str
    disk: int
    reason: str
    readable: bool = True


class CheckFile(Message, tag=56):
    """Over TCP: the bytes read at this place of a disk do not match their checksum; read the file there yourself.

    Answered by `FileSound`, or `ReplicaLost` if the node finds the same: a reader's report alone drops nothing.
    """

    segment: SegmentName
    offset: int
    ticket: Ticket | None = None
    """It must vouch for the object at this place."""


class ReportLostFiles(Message, tag=57):
    """These files of the disk are gone or wrong: drop their replicas. `rows`: a `LostFileRow` per file.

    Repeated until it is answered, which is when the drop is durable; a replica that the log does not hold at that place
    is skipped, so a repetition is harmless. Answered by `Done` with the number of replicas dropped.
    """

    needs = Role.NODE
    node: str
    disk: int
    rows: bytes


class ListFiles(Message, tag=58):
    """Which files does the log hold on this disk? Answered by `FileList`, a page at a time, the first at cursor 0."""

    needs = Role.NODE
    node: str
    disk: int
    cursor: int = 0


class FileSound(Message, tag=142):
    """The file holds the right bytes."""


class FileList(Message, tag=143):
    """`rows`: a `ListedFileRow` per file. `cursor` is where the next page begins, 0 after the last."""

    rows: bytes
    cursor: int


class MountSegment(Message, tag=92):
    """A member node lends one more segment, of this number."""

    needs = Role.NODE
    node: str
    boot: int
    number: int
    size_bytes: int


class DiskMounted(Message, tag=93):
    log_id: int
    handle: int
    continues: list[int] = []
    """The older histories that this one was restored from: their files stay valid."""
    unverified_in: int = 0
    """The primary's epoch if the history was restored and the files were not compared with it yet, else 0."""


class FilesForgotten(Message, tag=94):
    """Files to delete, a `FileRow` each."""

    rows: bytes


class ReportFilesVerified(Message, tag=51):
    """Every file that the restored log held on this disk was read whole; the damage found was reported and answered.

    `log_id` and `epoch` are those of `DiskMounted`: the files were listed by that primary, which alone knows its pages.
    Answered by `Done`.
    """

    needs = Role.NODE
    node: str
    disk: int
    log_id: int
    epoch: int


class VerifyRanges(Message, tag=50):
    """From a node whose memory is part of a restored history: writers of older histories can no longer write to it.

    `failed`, a `MismatchRow` each, are the ranges of the last reply whose bytes are not their objects'.
    Answered by `RangesToVerify`; `cursor` is the one of the last reply, 0 at the beginning.
    """

    needs = Role.NODE
    session: int
    boot: int
    cursor: int = 0
    failed: bytes = b""


class RangesToVerify(Message, tag=135):
    """A `VerifyRow` per range. `cursor` 0: these were all."""

    rows: bytes
    cursor: int
