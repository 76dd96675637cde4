"""The keys of a catalogue as fingerprints in memory that other processes read (`wire.key_table_layout`).

Nothing here is durable or part of the state. Changes are noted as they are applied, and from then on the table is
marked as off; `catch_up` carries them out, and `mark_right` ends that, which its owner calls only when all changes
are durable. When the table is too full another one is begun, and filled slice by slice.

No probe goes further than `MOST_PROBES`, whatever is in the memory. Keys that were chosen to share a home place would
need more: then no table is offered, and clients ask the master, until the number of keys has changed so much that it is
worth another try.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from holdfast.wire.key_table_layout import (
    ASKED,
    CONFIRMED,
    EMPTY,
    FIRST_PLACES,
    GONE,
    GOOD_MS,
    KIND,
    MAGIC,
    MASK,
    MOST_PROBES,
    SEQUENCE,
    USED,
)

if TYPE_CHECKING:
    from holdfast.core.catalogue.catalogue import Catalogue, Slots, Words

SLICE = 8192
"""Slots of the catalogue to add per step: some 2 ms."""
CLEARED = 1 << 18
"""Words to zero per step: 2 MiB, some 0.3 ms."""
ROOMY = 3
"""A new table has at least this many places per key."""
ALL = 1 << 62


class KeyTable:
    """`words` is the memory."""

    def __init__(self, catalogue: Catalogue, words: Words) -> None:
        self._catalogue = catalogue
        self._words = words
        self._cells = words.data
        self._noted: list[tuple[bool, int | Words]] = []
        """(added or removed, one fingerprint or several), in order."""
        self._places = 0
        self._inserted = 0
        """Number of insertions since this table was begun."""
        self._uncleared = 0
        """Places at the beginning of the new table that may hold words of an older one."""
        self._count_without = 0
        """Number of keys when it was decided to show no table."""
        self._swept = 0
        """Slots from here on are not in the table yet; changes to them need no note, for the sweep will see them."""
        if self._cells[KIND] != MAGIC:
            self._cells[KIND], self._cells[MASK], self._cells[SEQUENCE] = MAGIC, FIRST_PLACES - 1, 1
        self._begin()

    @property
    def is_off(self) -> bool:
        """Is the table marked as not to be relied on?"""
        return bool(self._cells[SEQUENCE] & 1)

    def show_one(self, slot: int) -> None:
        if slot < self._swept:
            self._note(True, self._catalogue.key_hash_at[slot])

    def show(self, slots: Slots | slice) -> None:
        self._note_many(True, slots)

    def hide(self, slots: Slots) -> None:
        self._note_many(False, slots)

    def _note_many(self, added: bool, slots: Slots | slice) -> None:
        if self._swept != ALL:
            at = np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
            slots = at[at < self._swept]
        hashes = self._catalogue.key_hashes[slots]
        if len(hashes):
            self._note(added, hashes)

    def _note(self, added: bool, hashes: int | Words) -> None:
        self.turn_off()
        self._noted.append((added, hashes))

    def turn_off(self) -> None:
        """Mark the table as not to be relied on."""
        if not self._cells[SEQUENCE] & 1:
            self._cells[SEQUENCE] += 1

    def catch_up(self) -> bool:
        """Carry out the noted changes, and add another slice to a table that is being filled. True if there is more."""
        noted, self._noted = self._noted, []
        for added, hashes in noted:
            if not self._swept:
                break  # Another table was begun, which will be filled from the current catalogue.
            if not isinstance(hashes, int):
                (self._insert if added else self._remove)(np.maximum(hashes, np.uint64(GONE + 1)))
            elif added:
                self._insert_one(max(hashes, GONE + 1))
            else:
                self._remove_one(max(hashes, GONE + 1))
        if not self._places and not self._count_without / 2 <= self._catalogue.count <= 2 * self._count_without:
            self._begin()
        return self._places > 0 and self._swept != ALL and (self._clear() or self._sweep())

    def mark_right(self) -> None:
        """Mark the table as right: it holds exactly the keys of the catalogue, and all of them may be published."""
        if self._swept == ALL and not self._noted and self._cells[SEQUENCE] & 1:
            self._cells[SEQUENCE] += 1

    def beat(self, good_ms: int) -> None:
        """Extend by `good_ms` from now the time in which the master may answer: confirm the last number, and ask by
        the next."""
        cells = self._cells
        cells[GOOD_MS] = good_ms
        cells[CONFIRMED] = cells[ASKED]
        cells[ASKED] += 1

    def _begin(self) -> None:
        """Begin an empty table with room for the current keys. If the memory is too small for one, there is none."""
        places = FIRST_PLACES
        while places < ROOMY * self._catalogue.count:
            places *= 2
        self._start(places if FIRST_PLACES + places <= len(self._words) else 0)

    def _start(self, places: int) -> None:
        """Begin an empty table of this size. 0: show none, because they do not fit, or a key is too far from home."""
        self.turn_off()
        self._count_without = self._catalogue.count
        self._noted.clear()
        self._inserted = 0
        self._swept = 0
        self._places = places
        # Memory that was never used is empty, and its pages are not touched before they are needed.
        self._uncleared = min(places, self._cells[USED])
        self._cells[USED] = max(places, self._cells[USED])
        self._cells[MASK] = max(FIRST_PLACES, places) - 1

    def _clear(self) -> bool:
        """Empty the next part of a table that was used before. False: it is empty."""
        if not self._uncleared:
            return False
        stop = FIRST_PLACES + self._uncleared
        self._uncleared = max(0, self._uncleared - CLEARED)
        self._words[FIRST_PLACES + self._uncleared : stop] = EMPTY
        return True

    def _sweep(self) -> bool:
        catalogue = self._catalogue
        start = self._swept
        stop = min(start + SLICE, catalogue.top)
        self._swept = stop
        hashes = catalogue.key_hashes[start:stop][catalogue.is_visible(start, stop)]
        self._insert(np.maximum(hashes, np.uint64(GONE + 1)))
        if self._swept == stop == catalogue.top:
            self._swept = ALL
        return self._swept != ALL

    def _has_room(self, count: int) -> bool:
        """Is there room for `count` more? If not, begin another table, which the sweep fills from the catalogue."""
        self._inserted += count
        if 2 * self._inserted <= self._places:
            return True
        self._begin()
        return False

    def _insert_one(self, hash_: int) -> None:
        if self._has_room(1):
            cells, places = self._cells, self._places
            for at in range(hash_, hash_ + MOST_PROBES):
                place = FIRST_PLACES + (at & (places - 1))
                if cells[place] <= GONE:
                    cells[place] = hash_
                    return
            self._start(0)

    def _remove_one(self, hash_: int) -> None:
        cells, places = self._cells, self._places
        for at in range(hash_, hash_ + MOST_PROBES if places else hash_):
            place = FIRST_PLACES + (at & (places - 1))
            there = cells[place]
            if there == hash_:
                cells[place] = GONE
            if there in (hash_, EMPTY):
                return

    def _insert(self, hashes: Words) -> None:
        if not len(hashes) or not self._has_room(len(hashes)):
            return
        if _has_twins(hashes):
            self._inserted -= len(hashes)
            for hash_ in hashes.tolist():
                if not self._places:
                    return
                self._insert_one(hash_)
            return
        table = self._words[FIRST_PLACES : FIRST_PLACES + self._places]
        mask = self._places - 1
        at = (hashes & np.uint64(mask)).astype(np.intp)
        for _ in range(MOST_PROBES):
            free = table[at] <= GONE
            table[at[free]] = hashes[free]
            # Of two that wanted the same place, the last one got it.
            left = ~(free & (table[at] == hashes))
            hashes = hashes[left]
            if not len(hashes):
                return
            at = (at[left] + 1) & mask
        self._start(0)

    def _remove(self, hashes: Words) -> None:
        if _has_twins(hashes):
            for hash_ in hashes.tolist():
                self._remove_one(hash_)
            return
        table = self._words[FIRST_PLACES : FIRST_PLACES + self._places]
        mask = self._places - 1
        at = (hashes & np.uint64(mask)).astype(np.intp)
        for _ in range(MOST_PROBES if self._places else 0):
            there = table[at]
            found = there == hashes
            table[at[found]] = GONE
            left = ~found & (there != EMPTY)
            hashes = hashes[left]
            if not len(hashes):
                return
            at = (at[left] + 1) & mask


def _has_twins(hashes: Words) -> bool:
    """Do two keys share a fingerprint? Each needs a place of its own; an array operation would give them one."""
    in_order = np.sort(hashes)
    return bool((in_order[1:] == in_order[:-1]).any())
