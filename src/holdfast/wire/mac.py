"""The proof that a TCP write was granted: a keyed hash that a node can check about a grant it was never told of."""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from holdfast.ids import GrantId, SegmentName

_encode = msgspec.msgpack.Encoder().encode


def range_mac(secret: bytes, segment: SegmentName, grant: GrantId, offset: int, length: int) -> bytes:
    """Vouches that `grant` may write [offset, offset + length) of this segment."""
    return hashlib.blake2b(_encode((segment, grant, offset, length)), key=secret, digest_size=16).digest()


def same_mac(given: bytes, right: bytes) -> bool:
    return hmac.compare_digest(given, right)
