"""Proofs of what the primary has allowed, which a node can check without asking: keyed hashes (ADR 48).

The secret of the history, which is in the log, is known to masters only. Each node is told a key of its own that is
derived from it: a node can forge proofs for itself and for nobody else, and every later primary derives the same key.
A client's number is derived from the client's key in the same way, so that nobody else can choose it (ADR 46).
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache

import msgspec

from holdfast.ids import GrantId, SegmentName

MAC_BYTES = 16
ISSUED_BYTES = 8

_encode = msgspec.msgpack.Encoder().encode
_blake = hashlib.blake2b


@lru_cache(4096)
def node_key(secret: bytes, node: str) -> bytes:
    """The key of one node."""
    return _blake(node.encode(), key=secret, digest_size=32, person=b"holdfast node").digest()


def issued_at(proof: bytes) -> int:
    """When this proof of a range was given: (epoch, index of the log), packed as an object id. It is the first word of
    the proof, and its MAC vouches for it. 0 for a bare MAC, which is given where there are no tenants."""
    return int.from_bytes(proof[:ISSUED_BYTES], "little") if len(proof) == ISSUED_BYTES + MAC_BYTES else 0


def range_mac(key: bytes, segment: SegmentName, grant: GrantId, offset: int, length: int, issued: int = 0) -> bytes:
    """Proves that `grant` may write [offset, offset + length) of this segment, unless others were given it since."""
    return _proof(_encode((segment, grant, offset, length)), key, issued, b"")


def ticket_mac(key: bytes, segment: SegmentName, client: int, generation: int, ranges: bytes, issued: int = 0) -> bytes:
    """Proves that `client` may read these ranges of this segment, unless other tenants were given them since."""
    return _proof(_encode((segment, client, generation, ranges)), key, issued, b"holdfast read")


def _proof(proved: bytes, key: bytes, issued: int, person: bytes) -> bytes:
    """A MAC behind the word that says when it was given; without it if that is 0, as older nodes know it."""
    if not issued:
        return _blake(proved, key=key, digest_size=MAC_BYTES, person=person).digest()
    word = issued.to_bytes(ISSUED_BYTES, "little")
    return word + _blake(word + proved, key=key, digest_size=MAC_BYTES, person=person + b"+").digest()


def attach_mac(key: bytes, segment: SegmentName, client: int, generation: int, write: bool) -> bytes:
    """A MAC that proves that `client` may map this segment."""
    proved = _encode((segment, client, generation, write))
    return _blake(proved, key=key, digest_size=MAC_BYTES, person=b"holdfast attach").digest()


FIRST_DERIVED = 1 << 63
"""Derived numbers begin here. Those that older clients draw themselves are below it: none of them can be another's."""


def client_number(secret: bytes, key: bytes) -> int:
    """The number of the client that has this key."""
    digest = _blake(key, key=secret, person=b"client number", digest_size=8).digest()
    return int.from_bytes(digest, "little") | FIRST_DERIVED


def same_mac(given: bytes, right: bytes) -> bool:
    return hmac.compare_digest(given, right)
