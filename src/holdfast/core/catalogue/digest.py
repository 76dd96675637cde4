"""A number that is equal for two catalogues exactly if they hold the same objects, keys, places, hard pins and wanted
replica counts (I5).

The sum of a well-mixed hash per object: independent of slots and of order, so that a catalogue restored from a
snapshot agrees with the one it came from. Leases and soft pins end by time and are not included.
"""

from __future__ import annotations

import numpy as np

from holdfast.core.catalogue.catalogue import HARD_PIN, LIVE, Catalogue, Words

_ODD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)


def _mix(hashes: Words, words: Words, odd: int, scratch: Words) -> None:
    """In place: a million objects are a few passes over memory, and no new arrays."""
    np.bitwise_xor(hashes, words, out=hashes)
    np.multiply(hashes, np.uint64(odd), out=hashes)
    np.right_shift(hashes, np.uint64(29), out=scratch)
    np.bitwise_xor(hashes, scratch, out=hashes)


def digest(catalogue: Catalogue) -> str:
    top = catalogue.top
    flags = catalogue.flags[:top]
    hashes: Words = catalogue.ids[:top].copy()
    scratch = np.empty_like(hashes)
    _mix(hashes, catalogue.key_hashes[:top], _ODD[0], scratch)
    _mix(hashes, catalogue.sizes[:top].view(np.uint64), _ODD[1], scratch)
    _mix(hashes, catalogue.checksums[:top], _ODD[2], scratch)
    _mix(hashes, catalogue.offsets[:top].view(np.uint64), _ODD[3], scratch)
    _mix(hashes, catalogue.segments[:top].astype(np.uint64), _ODD[0], scratch)
    wanted = catalogue.further_wanted[:top].astype(np.uint64) + np.uint64(1)
    asked = (flags & HARD_PIN).astype(np.uint64) | wanted << np.uint64(8)
    _mix(hashes, asked, _ODD[1], scratch)
    np.multiply(hashes, flags & LIVE, out=hashes)
    total = int(hashes.sum(dtype=np.uint64))
    for slot, places in catalogue.others.items():
        for place in places:
            further = np.array([catalogue.id_at[slot]], np.uint64)
            for word, odd in zip((place.segment, place.offset, place.kind), _ODD, strict=False):
                _mix(further, np.array([word], np.uint64), odd, scratch[:1])
            total += int(further[0])
    return f"{(total + catalogue.count) & 0xFFFF_FFFF_FFFF_FFFF:016x}"
