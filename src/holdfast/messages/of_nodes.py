"""What nodes tell a master (over the master's RPC port), and what clients ask of a node (over its own ports)."""

from __future__ import annotations

import enum

from holdfast.ids import GrantId, ProcessName, SegmentName
from holdfast.messages.shapes import Message


class Damage(enum.IntEnum):
    """How a file of a disk was found."""

    MISSING = 1
    WRONG_SIZE = 2
    SPOILED = 3
    """Its bytes, or its header, do not match their checksum."""
    UNREADABLE = 4
    """The device or the file system refuses to read it."""


class RegisterNode(Message, tag=64):
    """A node offers its memory, under a session that it holds; again under each master that it meets.

    `log_id` is the history that the memory was last mounted under, 0 for new memory. Answered by `Registered`;
    `MemoryVoid` if the master does not know the memory, or lacks a part of the log that the node has heard of.
    """

    session: int
    boot: int
    log_id: int
    host: str
    data_address: str
    socket_path: str
    sizes: list[int]
    """The length of segment 0, 1, ..."""
    live_writers: list[int] = []
    """Whoever is not listed is gone."""
    heard_epoch: int = 0
    heard_index: int = 0
    """The last durable record that a master told of, and that master's epoch."""


class ReportWriters(Message, tag=65):
    """`gone_writers` can write no more; `cleaned` grants are refused from now on.

    Both are said again until an answer has come; doing them twice is harmless.
    """

    session: int
    boot: int
    gone_writers: list[int] = []
    cleaned: list[GrantId] = []


class ReportGone(Message, tag=60):
    """The node sees that these processes of its machine have ended: they answer nobody any more.

    `machine` is the node's own, as in the names; a master takes no word about a process of another one. Answered by
    `Done` with the number of those that were suspected. Said again, it does nothing.
    """

    session: int
    boot: int
    machine: str
    gone: list[ProcessName]


class ReportUsage(Message, tag=66):
    """How the node fares, said at an interval of its own: counters and sizes by name.

    Of the writers whose numbers are below `next_writer`, all but the `live_writers` are gone. That was said when they
    went, but a request of one may have been on its way for longer.
    """

    session: int
    boot: int
    figures: dict[str, int]
    live_writers: list[int] = []
    next_writer: int = 0


class Registered(Message, tag=67):
    """`secret` is the key of the MACs that TCP writes carry."""

    log_id: int
    epoch: int
    secret: bytes
    report_interval_ms: int
    primary: ProcessName | None = None
    """The process that answers. A node of its machine sees when it ends, and need not wait to look for the next."""
    suspects: list[ProcessName] = []
    """Earlier primaries that may still be answering: a node of their machine says which of them are gone."""
    doubt_ms: int = 0
    """For how long that is of use."""


class AttachSegment(Message, tag=80):
    """Over the Unix socket: pass me this segment's file descriptor. The answer, `Attached`, carries it (SCM_RIGHTS).

    Without `write` the descriptor is read-only. The connection stays open while the memory is mapped for writing:
    its end tells the node that this writer can write no more.
    """

    segment: SegmentName
    write: bool = False
    history: int = 0
    """The log that the client knows the segment from; 0: it does not say."""


class Attached(Message, tag=81):
    writer: int
    """This connection's number, at least 1, never given out twice in a boot."""
    size_bytes: int


class ReadRange(Message, tag=82):
    """Over TCP: send me these bytes. The answer is `Sending`, then `length` raw bytes."""

    segment: SegmentName
    offset: int
    length: int


class Sending(Message, tag=83):
    length: int


class WriteRange(Message, tag=84):
    """Over TCP: `length` raw bytes follow; write them at `offset` in the grant's range. Answered by `Written`.

    The range (of `range_length`, at `range_offset` in the segment) and its grant are vouched for by `mac`.
    """

    segment: SegmentName
    grant: GrantId
    range_offset: int
    range_length: int
    mac: bytes
    offset: int
    length: int


class Written(Message, tag=85):
    length: int


class HearRevocations(Message, tag=86):
    """Over the Unix socket, on a connection of its own: tell me which objects go while they may be leased.

    Answered at once by an empty `LeasesRevoked`, and by another one whenever there is something to tell. A node that
    could not tell everything ends the connection: whoever listens then takes nothing that it remembers for granted.
    """


class LeasesRevoked(Message, tag=87):
    """These objects (packed ids) were removed or moved. A hint: a lease that is held stays good until it ends."""

    ids: bytes
    history: int = 0
    """The node's memory belongs to this log now: whoever knows it from another forgets it, and unmaps it."""


class AddReplicas(Message, tag=88):
    """The node has copied these objects into the grant, and their bytes are what their checksums say.

    `rows`: (id, offset in the grant, segment and offset of the source, checksum of the bytes copied) per object.
    `failed` are packed ids of those that could not be copied. The grant ends with this: nothing writes to it any more.
    """

    node: str
    grant: GrantId
    rows: bytes
    failed: bytes = b""


class MountDisk(Message, tag=89):
    """The node has this disk. `log_id` is the history that its files belong to, 0 for an empty one.

    Answered by `DiskMounted`, or `MemoryVoid` if the files are of another history: empty the disk then.
    """

    node: str
    boot: int
    disk: int
    log_id: int
    size_bytes: int
    data_address: str
    host: str


class ReportFiles(Message, tag=90):
    """These files, (id, offset) each, are on the disk. Answered by `FilesForgotten`: those that the log holds not."""

    node: str
    disk: int
    rows: bytes


class ReportDisk(Message, tag=91):
    """The disk is in trouble: nothing more is written to it. Unless `readable`, nothing can be read from it either."""

    node: str
    disk: int
    reason: str
    readable: bool = True


class CheckFile(Message, tag=56):
    """Over TCP: the bytes read at this place of a disk do not match their checksum; read the file there yourself.

    Answered by `FileSound`, or `ReplicaLost` if the node finds the same: a reader's word alone drops nothing.
    """

    segment: SegmentName
    offset: int


class ReportLostFiles(Message, tag=57):
    """These files of the disk are gone or wrong: drop their replicas. `rows`: (id, offset, a `Damage`) per file.

    Said again until it is answered, which is when the drop is durable; a replica that the log does not hold at that
    place is passed over, so saying it twice is harmless. Answered by `Done` with how many were dropped.
    """

    node: str
    disk: int
    rows: bytes


class ListFiles(Message, tag=58):
    """Which files does the log hold on this disk? Answered by `FileList`, a page at a time, the first at cursor 0."""

    node: str
    disk: int
    cursor: int = 0


class FileSound(Message, tag=142):
    """The file holds what it should."""


class FileList(Message, tag=143):
    """`rows`: (id, offset, size in bytes) per file. `cursor` is where the next page begins, 0 after the last."""

    rows: bytes
    cursor: int


class MountSegment(Message, tag=92):
    """A node that is a member lends one more segment, of this number."""

    node: str
    boot: int
    number: int
    size_bytes: int


class DiskMounted(Message, tag=93):
    log_id: int
    handle: int
    continues: list[int] = []
    """The older histories that this one was restored from: files of theirs stay good."""


class FilesForgotten(Message, tag=94):
    """(id, offset) of files to delete."""

    rows: bytes


class VerifyRanges(Message, tag=50):
    """A node whose memory a restored history names: no writer of an older history can write to it any more.

    `failed`, (id, segment number, offset) each, are the ranges of the last answer whose bytes are not their objects'.
    Answered by `RangesToVerify`; `cursor` is the one of the last answer, 0 at the beginning.
    """

    session: int
    boot: int
    cursor: int = 0
    failed: bytes = b""


class RangesToVerify(Message, tag=135):
    """(id, segment number, offset, size, checksum) per range. `cursor` 0: that was all of it."""

    rows: bytes
    cursor: int
