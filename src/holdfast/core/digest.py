"""A number that two catalogues share exactly if they hold the same objects, keys, places and hard pins (I5).

The sum of a well-mixed hash of each object: independent of slots and of order, so that a catalogue restored from
a snapshot agrees with the one it came from. Leases and soft pins end by time and are not in it.
"""

from __future__ import annotations

import numpy as np

from holdfast.core.catalogue import HARD_PIN, Catalogue, Words

_ODD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)


def _mixed(hashes: Words, words: Words, odd: int) -> Words:
    hashes = (hashes ^ words) * np.uint64(odd)
    return hashes ^ (hashes >> np.uint64(29))


def digest(catalogue: Catalogue) -> str:
    slots = catalogue.live()
    hashes: Words = catalogue.ids[slots]
    hashes = _mixed(hashes, catalogue.key_hashes[slots], _ODD[0])
    hashes = _mixed(hashes, catalogue.sizes[slots].astype(np.uint64), _ODD[1])
    hashes = _mixed(hashes, catalogue.checksums[slots], _ODD[2])
    hashes = _mixed(hashes, catalogue.offsets[slots].astype(np.uint64), _ODD[3])
    hashes = _mixed(hashes, catalogue.segments[slots].astype(np.uint64), _ODD[0])
    hashes = _mixed(hashes, (catalogue.flags[slots] & HARD_PIN).astype(np.uint64), _ODD[1])
    total = int(hashes.sum(dtype=np.uint64))
    for slot, places in catalogue.others.items():
        for place in places:
            further = np.array([catalogue.id_at[slot]], np.uint64)
            further = _mixed(further, np.array([place.segment], np.uint64), _ODD[2])
            further = _mixed(further, np.array([place.offset], np.uint64), _ODD[3])
            total += int(_mixed(further, np.array([place.kind], np.uint64), _ODD[0])[0])
    return f"{(total + len(slots)) & 0xFFFF_FFFF_FFFF_FFFF:016x}"
