"""Encoding of terms, leaders and batches in etcd and ZooKeeper.

The tail and each batch begin with two numbers, so that the size of the log is known from its two ends, and a writer can
tell whether a batch found in the log is its own. Whoever may write to the store may leave anything there: bytes that
are none of these are `AlteredEntry`.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec

from holdfast.coordination.interface import CoordinationLost, Leader
from holdfast.coordination.terms import LeaderProcess, Stored, Tail, TermRecord
from holdfast.errors import MALFORMED
from holdfast.ids import ProcessName

HEADER = struct.Struct(">QQ")
TTL = struct.Struct(">Q")
T = TypeVar("T")


class AlteredEntry(CoordinationLost):
    """An entry of the store is not what holdfast writes there; it is read again later. Nothing was written."""

    code = "altered_entry"

    def __init__(self, entry: str, why: object) -> None:
        super().__init__(
            f"the {entry} in the coordination store was altered ({why}); nothing was changed, and it is read again; "
            "see who may write there, and mend it or restore the cluster (holdfast restore)"
        )


def _decoded(entry: str, value: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except MALFORMED as error:
        raise AlteredEntry(entry, error) from None


def decode_ttl(name: str, content: bytes) -> int:
    """The time to live, in milliseconds or 0, before a value that was published in ZooKeeper."""
    if len(content) < TTL.size:
        raise AlteredEntry(f"published {name!r}", f"it has {len(content)} bytes")
    return int(TTL.unpack_from(content)[0])


def decode_process_name(value: bytes) -> ProcessName:
    return _decoded("leader's process", value, ProcessName)


def decode_text(entry: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise AlteredEntry(entry, error) from None


def _numbers(entry: str, value: bytes) -> tuple[int, int]:
    if len(value) < HEADER.size:
        raise AlteredEntry(entry, f"it has {len(value)} bytes")
    first, second = HEADER.unpack_from(value)
    return first, second


def encode_record(record: TermRecord) -> bytes:
    return msgspec.msgpack.encode(record)


def decode_record(value: bytes) -> TermRecord:
    return _decoded("term", value, TermRecord)


def encode_process(leader: LeaderProcess) -> bytes:
    return msgspec.msgpack.encode(leader)


def decode_process(value: bytes, record: TermRecord | None) -> LeaderProcess | None:
    """None if it is of another term: a master of an older version, which does not name its process, has led since."""
    leader = _decoded("leader's process", value, LeaderProcess) if value else None
    return leader if leader is not None and record is not None and leader.epoch == record.epoch else None


def encode_leader(leader: Leader) -> bytes:
    return msgspec.msgpack.encode(tuple(leader))


def decode_leader(value: bytes) -> Leader:
    return Leader(*_decoded("leader", value, tuple[int, str]))


def encode_batch(epoch: int, total_bytes: int, batch: bytes) -> bytes:
    return HEADER.pack(epoch, total_bytes) + batch


def decode_batch(value: bytes) -> Stored:
    epoch, total_bytes = _numbers("batch", value)
    return Stored(epoch, total_bytes, value[HEADER.size :])


def encode_tail(number: int, total_bytes: int) -> bytes:
    return HEADER.pack(number, total_bytes)


def decode_tail(value: bytes, version: int) -> Tail:
    number, total_bytes = _numbers("tail of the log", value)
    return Tail(number, total_bytes, version)
