"""Layout of the key table, the memory in which a master publishes its keys to clients on its machine, in 64-bit words.

First a header, then, from word `FIRST_PLACES` on, the table itself: one fingerprint per key, at the first free place
from its home place on. A larger table takes the memory of the smaller one before it; nobody reads it meanwhile.

`SEQUENCE` is odd while the table differs from what the master would answer. A reader that finds it even, and unchanged
after its lookup, has seen a consistent state. The master cannot tell another process by its clock until when it may
answer at all (I12, I16). So it numbers its questions: it asks, by a new number, and later confirms that number with the
time, counted from the confirmation, for which it still leads. A reader counts that time from its last look before the
number appeared, and so never too long.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import xxhash

MAGIC: Final = 0x3259454B_444C4F48
"""`HOLDKEY2`, in the first word; another layout has another one, and is not read. In `HOLDKEY1`, up to release 0.2.0, a
table of N places began at word N, and the memory of all smaller ones was lost: up to 16 bytes per key."""
KIND: Final = 0
SEQUENCE: Final = 1
MASK: Final = 2
"""The number of places minus one."""
ASKED: Final = 3
CONFIRMED: Final = 4
GOOD_MS: Final = 5
USED: Final = 6
"""The size of the largest table that was begun in this memory: so far it may hold words, and is emptied before another
one is filled."""
FIRST_PLACES: Final = 8192
"""Places of the smallest table, and the word at which all begin: on a page boundary, whatever the page size."""
MOST_BYTES: Final = 1 << 30
"""Address space: memory is taken only as it is filled. Enough for 32 million keys."""

MOST_PROBES: Final = 512
"""The most places at which a key is looked for. Tables are at most half full, so chance makes no run as long: in the
largest one the longest is some 150. Keys that were chosen to share a home place do."""

EMPTY: Final = 0
GONE: Final = 1
"""Tombstone: a key was here, and others may follow."""

SECRET_BYTES: Final = 16
"""Length of the secret that the master tells its clients, and that they present to be given the memory."""

_digest = xxhash.xxh3_64_intdigest


def fingerprint(key: bytes) -> int:
    """Fingerprint of a key. Two keys share one about once in 10^19 pairs; then each seems to exist if either does."""
    digest = _digest(key)
    return digest if digest > GONE else GONE + 1


def fingerprints(keys: list[str], prefix: bytes = b"") -> list[int]:
    """Those of these keys behind a prefix."""
    names: Iterable[bytes] = map(str.encode, keys)
    if prefix:
        names = [prefix + name for name in names]
    digests = [*map(_digest, names)]
    if digests and min(digests) <= GONE:
        return [max(digest, GONE + 1) for digest in digests]
    return digests
