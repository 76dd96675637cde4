"""Encode records as batches and back; a batch is the content of one append to coordination.

A batch names the index of its first record and the hash of the batch before it, so that a reader accepts only the
next batch of the same history (I13). The hash of a batch is that of its bytes, which include the previous hash: a
chain. A record that this version does not know stops the reader; guessing would make catalogues differ.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import xxhash

from holdfast import __version__
from holdfast.errors import MALFORMED, Refused
from holdfast.messages import records as r
from holdfast.messages.log_versions import LOG_VERSION, OLDEST_LOG_VERSION
from holdfast.messages.shapes import Record

_HEAD = struct.Struct("<2sHIQ16s")
"""magic, log version that its reader needs (ADR 64), count of records, index of the first one, previous hash"""
_MAGIC = b"HB"
NO_HASH = bytes(16)
HEAD_BYTES = _HEAD.size + 5

_encode = msgspec.msgpack.Encoder().encode
_Known: TypeAlias = (
    r.LogStarted
    | r.EpochStarted
    | r.SettingsChanged
    | r.SegmentMounted
    | r.SegmentUnmounted
    | r.RangesGranted
    | r.GrantEnded
    | r.GrantCleared
    | r.RangesFreed
    | r.ObjectsCommitted
    | r.ObjectsRemoved
    | r.ObjectsEvicted
    | r.PinsChanged
    | r.RemovalAnswered
    | r.SessionOpened
    | r.SessionClosed
    | r.LeasesRenewed
    | r.ReplicaAdded
    | r.ReplicaDropped
    | r.NodeModeChanged
    | r.NodeDrained
    | r.SegmentLimited
    | r.DiskLeft
    | r.DiskClosed
    | r.CopyingChanged
    | r.CatalogueCarried
    | r.HistoryRestored
    | r.MemorySettled
    | r.MemoryVerified
    | r.TenantChanged
    | r.TenantRemoved
    | r.ClientsRevoked
    | r.SuccessorNamed
)
_decode = msgspec.msgpack.Decoder(list[_Known]).decode
_decode_one = msgspec.msgpack.Decoder(_Known).decode


class BrokenChain(Refused):
    """The batch is not the next one of this history: nothing of it was applied."""

    code = "broken_chain"


class UnknownRecord(Refused):
    """The log was written by a newer version: nothing of the batch was applied. Upgrade this master."""

    code = "unknown_record"


class AlteredRecord(UnknownRecord):
    """A record contradicts the catalogue that it is for: the log was altered, and nobody can follow it further."""

    code = "altered_record"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the log, up to which it was read or written."""

    batch: int = 0
    """The number of the last batch."""
    index: int = 0
    """Number of records through that batch."""
    hash: bytes = NO_HASH


def encode_record(record: Record) -> bytes:
    return _encode(record)


def decode_record(encoded: bytes) -> Record:
    try:
        record: Record = _decode_one(encoded)
    except MALFORMED as error:
        raise UnknownRecord(f"a record is not known to this master ({error})") from None
    return record


def encode_batch(after: Position, records: list[bytes], version: int = OLDEST_LOG_VERSION) -> tuple[bytes, Position]:
    """The batch that follows `after`, and the position after it. `version`: what its reader must understand."""
    head = _HEAD.pack(_MAGIC, version, len(records), after.index, after.hash)
    batch = b"".join([head, b"\xdd", struct.pack(">I", len(records)), *records])
    return batch, Position(after.batch + 1, after.index + len(records), hash_of(batch))


def hash_of(batch: bytes) -> bytes:
    """The hash that the next batch names."""
    return xxhash.xxh3_128_digest(batch)


def body_of(batch: bytes) -> memoryview:
    """The records of a batch, one after the other as they were encoded."""
    return memoryview(batch)[HEAD_BYTES:]


def follows(after: Position, batch: bytes) -> bool:
    """Whether the batch, by its head, is the next one after that position."""
    if len(batch) < _HEAD.size:
        return False
    magic, _, _, first, before = _HEAD.unpack_from(batch)
    return bool(magic == _MAGIC and first == after.index and before == after.hash)


def decode_batch(after: Position, number: int, batch: bytes) -> tuple[list[Record], Position]:
    """Check that the batch is the next one; return its records, and the position after it."""
    if number != after.batch + 1:
        raise BrokenChain(f"batch {number} follows batch {after.batch}")
    if len(batch) < _HEAD.size:
        raise BrokenChain(f"batch {number} is torn: it has {len(batch)} bytes")
    magic, version, count, first, before = _HEAD.unpack_from(batch)
    if magic != _MAGIC:
        raise BrokenChain(f"batch {number} is not a batch of records")
    if not OLDEST_LOG_VERSION <= version <= LOG_VERSION:
        raise UnknownRecord(
            f"batch {number} needs log version {version}, and this master (holdfast {__version__}) reads "
            f"{OLDEST_LOG_VERSION} to {LOG_VERSION}: upgrade this master"
        )
    if first != after.index or before != after.hash:
        raise BrokenChain(f"batch {number} does not continue this history at record {after.index}")
    try:
        records = _decode(memoryview(batch)[_HEAD.size :])
    except MALFORMED as error:
        raise UnknownRecord(f"batch {number} holds a record that this master does not know ({error})") from None
    if len(records) != count:
        raise BrokenChain(f"batch {number} holds {len(records)} records and names {count}")
    return list(records), Position(number, first + count, hash_of(batch))


def position_after(number: int, batch: bytes) -> Position:
    """The end of a log whose last batch this is, for appending to it without having read all of it."""
    if len(batch) < _HEAD.size:
        raise BrokenChain(f"batch {number} is torn: it has {len(batch)} bytes")
    magic, _, count, first, _ = _HEAD.unpack_from(batch)
    if magic != _MAGIC:
        raise BrokenChain(f"batch {number} is not a batch of records")
    return Position(number, first + count, hash_of(batch))
