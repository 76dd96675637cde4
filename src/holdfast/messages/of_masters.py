"""What masters ask of each other, and operators of one of them: about the process, not the catalogue."""

from __future__ import annotations

from holdfast.messages.shapes import Message


class FetchSnapshot(Message, tag=17):
    """A piece of the newest snapshot that this master keeps (`batch` 0), or of that one; any role answers."""

    batch: int = 0
    offset: int = 0
    log_id: int = 0
    """The history that the snapshot is of; 0: the one that the master follows."""


class HandOver(Message, tag=18):
    """The primary makes durable what it has begun, resigns, and becomes a standby."""


class TakeSnapshot(Message, tag=19):
    """Write a snapshot now. Answered by `Done` with the number of the log's batch that it holds."""


class SnapshotPiece(Message, tag=113):
    """`size_bytes` is of the whole; batch 0: there is no snapshot."""

    batch: int
    size_bytes: int
    content: bytes
    log_id: int = 0
    """The history that it is of; 0: the master is of a version that does not say."""
