"""Compares a node's memory with a restored catalogue, to find ranges whose bytes do not match it."""

from __future__ import annotations

import xxhash

from holdfast.errors import BadRequest, BadValue
from holdfast.ids import SegmentName
from holdfast.messages.rows import MismatchRow, VerifyRow
from holdfast.node.memory.lent_memory import Lending


def mismatched(lending: Lending, node: str, boot: int, rows: bytes) -> bytes:
    """A `MismatchRow` for each of those rows of `RangesToVerify` whose bytes do not match. Blocks, without the GIL
    most of the time. An object without a checksum never matches."""
    if not VerifyRow.is_whole(rows):
        raise BadRequest("the ranges to verify are not whole rows; none was looked at")
    failed = b""
    for oid, number, offset, size, checksum in VerifyRow.iter_unpack(rows):
        try:
            with lending.range_of(SegmentName(node, boot, number), offset, size) as content:
                right = checksum != 0 and (xxhash.xxh3_64_intdigest(content) or 1) == checksum
        except BadValue:  # Beyond the end of the segment.
            right = False
        if not right:
            failed += MismatchRow.pack(oid, number, offset)
    return failed
