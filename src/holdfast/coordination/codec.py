"""Encoding of terms, leaders and batches in etcd and ZooKeeper.

The tail and each batch begin with two numbers, so that the size of the log is known from its two ends, and a writer can
tell whether a batch found in the log is its own.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from holdfast.coordination.interface import Leader
from holdfast.coordination.terms import LeaderProcess, TermRecord

HEADER = struct.Struct(">QQ")


class Tail(NamedTuple):
    """The last batch, the bytes of all batches ever written, and the backend's version of this entry."""

    number: int
    total_bytes: int
    version: int

    def with_batch(self, batch: bytes) -> Tail:
        """The tail after the next batch: the one after that may be sent before this one is answered."""
        return Tail(self.number + 1, self.total_bytes + len(batch), self.version + 1)


class Stored(NamedTuple):
    epoch: int
    total_bytes: int
    batch: bytes


def encode_record(record: TermRecord) -> bytes:
    return msgspec.msgpack.encode(record)


def decode_record(value: bytes) -> TermRecord:
    return msgspec.msgpack.decode(value, type=TermRecord)


def encode_process(leader: LeaderProcess) -> bytes:
    return msgspec.msgpack.encode(leader)


def decode_process(value: bytes, record: TermRecord | None) -> LeaderProcess | None:
    """None if it is of another term: a master of an older version, which does not name its process, has led since."""
    leader = msgspec.msgpack.decode(value, type=LeaderProcess) if value else None
    return leader if leader is not None and record is not None and leader.epoch == record.epoch else None


def encode_leader(leader: Leader) -> bytes:
    return msgspec.msgpack.encode(tuple(leader))


def decode_leader(value: bytes) -> Leader:
    return Leader(*msgspec.msgpack.decode(value, type=tuple[int, str]))


def encode_batch(epoch: int, total_bytes: int, batch: bytes) -> bytes:
    return HEADER.pack(epoch, total_bytes) + batch


def decode_batch(value: bytes) -> Stored:
    epoch, total_bytes = HEADER.unpack_from(value)
    return Stored(epoch, total_bytes, value[HEADER.size :])


def encode_tail(number: int, total_bytes: int) -> bytes:
    return HEADER.pack(number, total_bytes)


def decode_tail(value: bytes, version: int) -> Tail:
    number, total_bytes = HEADER.unpack(value)
    return Tail(number, total_bytes, version)
