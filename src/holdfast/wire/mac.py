"""The proof that a TCP write was granted: a keyed hash, which a node can check without having heard of the grant."""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from holdfast.ids import GrantId, SegmentName

_encode = msgspec.msgpack.Encoder().encode


def range_mac(secret: bytes, segment: SegmentName, grant: GrantId, offset: int, length: int) -> bytes:
    """A MAC that proves that `grant` may write [offset, offset + length) of this segment."""
    return hashlib.blake2b(_encode((segment, grant, offset, length)), key=secret, digest_size=16).digest()


def same_mac(given: bytes, right: bytes) -> bool:
    return hmac.compare_digest(given, right)
