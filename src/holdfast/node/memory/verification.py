"""Compares a node's memory with a restored catalogue, to find ranges whose bytes do not match it."""

from __future__ import annotations

import struct

import xxhash

from holdfast.errors import BadRequest, BadValue
from holdfast.ids import SegmentName
from holdfast.node.memory.lent_memory import Lending

ROW = struct.Struct("<5Q")
_FAILED = struct.Struct("<3Q")


def mismatched(lending: Lending, node: str, boot: int, rows: bytes) -> bytes:
    """(id, segment number, offset) of those rows of `RangesToVerify` whose bytes do not match. Blocks, without the GIL
    most of the time. An object without a checksum never matches."""
    if len(rows) % ROW.size:
        raise BadRequest("the ranges to verify are not whole rows; none was looked at")
    failed = b""
    for oid, number, offset, size, checksum in ROW.iter_unpack(rows):
        try:
            with lending.range_of(SegmentName(node, boot, number), offset, size) as content:
                right = checksum != 0 and (xxhash.xxh3_64_intdigest(content) or 1) == checksum
        except BadValue:  # Beyond the end of the segment.
            right = False
        if not right:
            failed += _FAILED.pack(oid, number, offset)
    return failed
