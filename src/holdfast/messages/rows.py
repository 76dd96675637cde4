"""Packed rows: the fields of messages and records that hold many small rows in one `bytes`.

Each field of a row is an unsigned 64-bit word, little-endian; rows follow one another without anything between them. So
a batch of thousands of objects costs no object per row to encode, and its columns are read in C: as tuples here, as
NumPy tables in `core.state.row_tables`. These bytes travel between versions and stay in logs: a layout never changes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import starmap
from typing import Any, Generic, TypeAlias, TypeVar

RowT = TypeVar("RowT", bound=tuple[int, ...])

TwoWords: TypeAlias = tuple[int, int]
ThreeWords: TypeAlias = tuple[int, int, int]
FourWords: TypeAlias = tuple[int, int, int, int]
FiveWords: TypeAlias = tuple[int, int, int, int, int]
SixWords: TypeAlias = tuple[int, int, int, int, int, int]


class RowLayout(Generic[RowT]):
    """The fields of one kind of row. Rows are plain tuples in the order of the fields."""

    __slots__ = ("fields", "iter_unpack", "pack", "size_bytes", "unpack_one")

    def __init__(self, *fields: str) -> None:
        self.fields = fields
        # The methods of `Struct` themselves: every put and every located key packs a row.
        layout: Any = struct.Struct(f"<{len(fields)}Q")
        self.size_bytes: int = layout.size
        self.pack: Callable[..., bytes] = layout.pack
        """One row, from its fields."""
        self.unpack_one: Callable[[bytes], RowT] = layout.unpack
        """The only row; struct.error unless it is exactly one."""
        self.iter_unpack: Callable[[bytes], Iterator[RowT]] = layout.iter_unpack
        """All rows; struct.error unless they are whole."""

    def count(self, packed: bytes) -> int:
        """The number of whole rows."""
        return len(packed) // self.size_bytes

    def is_whole(self, packed: bytes) -> bool:
        """Does no row lack its end?"""
        return len(packed) % self.size_bytes == 0

    def unpack_whole(self, packed: bytes) -> list[RowT]:
        """All rows but a last one that lacks its end."""
        return list(self.iter_unpack(packed[: self.count(packed) * self.size_bytes]))

    def pack_rows(self, rows: Iterable[RowT]) -> bytes:
        return b"".join(starmap(self.pack, rows))

    def columns(self, packed: bytes) -> list[tuple[int, ...]]:
        """One tuple per field; struct.error unless the rows are whole."""
        width = len(self.fields)
        words = struct.unpack(f"<{self.count(packed) * width}Q", packed)
        return [words[place::width] for place in range(width)]

    def pack_columns(self, *columns: Sequence[int]) -> bytes:
        """The inverse of `columns`."""
        width = len(self.fields)
        words = [0] * (width * len(columns[0]))
        for place, column in enumerate(columns):
            words[place::width] = column
        return struct.pack(f"<{len(words)}Q", *words)

    def select(self, packed: bytes, chosen: Iterable[int]) -> bytes:
        """The rows with these indices."""
        size = self.size_bytes
        return b"".join([packed[size * index : size * (index + 1)] for index in chosen])


# Puts and gets.
PutRow = RowLayout[ThreeWords]("offset", "size", "checksum")
"""`CommitPuts`, `ObjectsCommitted`: an object, and where in the grant its bytes are."""
LocatedRow = RowLayout[FiveWords]("id", "segment", "offset", "size", "checksum")
"""`Located`: one replica of an object. All zero if the key is not stored."""
SeenRow = RowLayout[ThreeWords]("id", "segment", "offset")
"""`RenewLeases`: an object, and where its reader sees it."""
RemovedRow = RowLayout[SixWords]("removed", "leased", "lease_left_ms", "cursor", "missing", "pinned")
"""`RemovalAnswered`: the reply to a removal, which is a `Removed` in this order."""

TicketRow = RowLayout[TwoWords]("offset", "length")
"""`Ticket`: a range that may be read. `ReadRanges`: a range that is wanted."""

# Copies and replicas.
CopyRow = RowLayout[SixWords]("id", "offset", "size", "checksum", "source", "source_offset")
"""`CopyObjects`: an object to copy to this offset in the granted range. `source` is an index of the list of sources."""
CopiedRow = RowLayout[FiveWords]("id", "offset", "source_segment", "source_offset", "checksum")
"""`AddReplicas`: a copy in the grant, the place that it was copied from, and the checksum of the bytes copied."""
AddedRow = RowLayout[TwoWords]("id", "offset")
"""`ReplicaAdded`: an object that has one more replica, at this offset in the grant."""
PlaceRow = RowLayout[ThreeWords]("id", "segment", "offset")
"""`ReplicaDropped`: a replica that is given up."""

# Disks.
FileRow = RowLayout[TwoWords]("id", "offset")
"""`ReportFiles`, `FilesForgotten`, `CollectGarbage`: a file, named by its object and its place on the disk."""
ListedFileRow = RowLayout[FourWords]("id", "offset", "size", "checksum")
"""`FileList`: a file that the log holds. The checksum is 0 if the object has none."""
LostFileRow = RowLayout[ThreeWords]("id", "offset", "damage")
"""`ReportLostFiles`: a file that is gone or wrong, and which `Damage` it has."""

# Memory of a restored history. A node numbers its segments itself.
VerifyRow = RowLayout[FiveWords]("id", "segment_number", "offset", "size", "checksum")
"""`RangesToVerify`: a range, and the checksum that its bytes must have."""
MismatchRow = RowLayout[ThreeWords]("id", "segment_number", "offset")
"""`VerifyRanges`: a range whose bytes are not its object's."""


def pack_ids(ids: Iterable[int]) -> bytes:
    """Ids in their order, a word each. Long sorted lists in records are packed closer (`pack_sorted_ids`)."""
    words = list(ids)
    return struct.pack(f"<{len(words)}Q", *words)


def unpack_ids(packed: bytes) -> list[int]:
    """struct.error unless the ids are whole."""
    return list(struct.unpack(f"<{len(packed) // 8}Q", packed))


def pack_sizes(sizes: Sequence[int]) -> bytes:
    """`GrantRanges`: the sizes to find room for, a word each."""
    return struct.pack(f"<{len(sizes)}Q", *sizes)


def unpack_sizes(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 8}Q", packed)
