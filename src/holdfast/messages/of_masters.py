"""What masters ask of each other, and operators of one of them: about the process, not the catalogue."""

from __future__ import annotations

import msgspec

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


class DescribeHistories(Message, tag=44):
    """Which histories this master serves, holds and keeps. Answered by `HistoriesDescribed`, in every role."""


class OfferCatalogue(Message, tag=45):
    """A piece of a snapshot that a history is to be restored from. Offset 0 begins anew; answered by `Done` with the
    bytes that have come so far."""

    offset: int
    content: bytes


class RestoreHistory(Message, tag=46):
    """Begin a new history with the catalogue of this one, from where the master has it: one of the `where` of
    `HistoriesDescribed`, or empty for what was offered. Answered by `Done` once it has begun.

    A history that is served now gives way; with objects in it only if `replace`.
    """

    log_id: int
    where: str = ""
    replace: bool = False


class HistoryFound(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A history that could be restored, as far as it is known in one place."""

    log_id: int
    where: str
    """"memory", or the name of a file."""
    epoch: int
    index: int
    """Records that it holds."""
    objects: int
    size_bytes: int


class HistoriesDescribed(Message, tag=134):
    name: str
    role: str
    log_id: int
    """Of the history that is served or followed; 0: there is none."""
    objects: int
    found: list[HistoryFound]
    leader: str = ""
    waits: str = ""
    """Why it waits for the operator; empty: it does not."""
    restoring: str = ""
    """What is being done for a restore now; empty: nothing."""
    failure: str = ""
    """Why the last restore failed; empty: none did."""
    older: int = 0
    """The history that the present one was restored from; 0: it was not."""
    restored: int = 0
    """Objects that it began with, and their bytes."""
    restored_bytes: int = 0
    mismatched: int = 0
    """Objects dropped because their bytes were not the ones that were put, or had no checksum."""
    lost: int = 0
    """Objects dropped because their memory did not come back."""
    unverified: int = 0
    """Objects whose memory was not compared yet."""
    unverified_nodes: list[str] = []
