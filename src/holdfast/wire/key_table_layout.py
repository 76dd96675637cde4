"""The memory in which a master shows its keys to clients of its own machine, in 64-bit words.

First some words about the table, then the table itself: a fingerprint a key, at the first free place from where it
belongs on. A table of so many places begins at that many words, so that one of another size is never in its way.

`SEQUENCE` is odd while the table is not what the master would answer. A reader that finds it even, and the same
after its look, has seen one moment's truth. Until when the master may answer at all (I12) no clock of its can tell
another process (I16). So it numbers its questions: it asks, by a new number, and later confirms that number with how
long, counted from then on, it still leads. Whoever last looked before the number was there counts from that look,
and so never too long.
"""

from __future__ import annotations

from typing import Final

import xxhash

MAGIC: Final = 0x3159454B_444C4F48
"""`HOLDKEY1`, in a first word; another layout has another one."""
KIND: Final = 0
SEQUENCE: Final = 1
MASK: Final = 2
"""The number of places less one."""
ASKED: Final = 3
CONFIRMED: Final = 4
GOOD_MS: Final = 5
FIRST_PLACES: Final = 8192
"""So that tables begin on pages, of whatever size those are."""
MOST_BYTES: Final = 1 << 30
"""Of addresses: memory is taken as it is filled. It is enough for 32 million keys."""

EMPTY: Final = 0
GONE: Final = 1
"""A key was here: others may follow."""

SECRET_BYTES: Final = 16
"""What a client says, as it was told by the master, to be handed the memory."""

_digest = xxhash.xxh3_64_intdigest


def fingerprint(key: bytes) -> int:
    """Two keys share one about once in 10^19 pairs, and then each is taken to be there when the other is."""
    digest = _digest(key)
    return digest if digest > GONE else GONE + 1


def fingerprints(keys: list[str]) -> list[int]:
    digests = [*map(_digest, map(str.encode, keys))]
    if digests and min(digests) <= GONE:
        return [max(digest, GONE + 1) for digest in digests]
    return digests
