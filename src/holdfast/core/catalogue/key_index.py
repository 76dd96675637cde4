"""From key to slot: a hash table of 64-bit words, whose keys are in the arena (ADR 65).

A word is `slot + 1` in its upper half and 32 bits of the key's hash in its lower one, which also say where it is looked
for first; so a table moves into a larger one without a look at a key. It lies at the first free place from there on.
A found word is believed only when the key in the arena is the same, byte by byte.

The hash has a secret, so that nobody can choose keys that share a place. It is this process's own, as that of its dicts
is, and nothing depends on a word's place: every process answers alike.

A table that is too full, of words or of tombstones, is replaced by another one. Both are in use while the words of the
old one move, a few for each key that comes or goes: growth is no pause.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Final

import numpy as np
from xxhash import xxh3_64_intdigest

from holdfast.core.catalogue.growing_array import GrowingArray
from holdfast.core.catalogue.key_arena import LENGTH, LENGTH_BITS, KeyArena, pack

if TYPE_CHECKING:
    from holdfast.core.catalogue.catalogue import Slots, Words

ABSENT: Final = -1
EMPTY: Final = 0
GONE: Final = 1
"""Tombstone: a key was here, and others may follow."""
FIRST_PLACES: Final = 64
FULLEST: Final = 0.6
"""Share of the places that may hold a word or a tombstone."""
MOVED: Final = 16
"""Places to move into the new table per key that comes or goes: all have moved before the new one is full."""
MOVED_AT_ONCE: Final = 4096
"""At least this many, because an array operation takes its time: some 0.1 ms."""
TOGETHER: Final = 32
"""From this many keys on, look them up by array operations."""
FEW: Final = 32
"""When this few are left, they are looked up or put one by one."""
_HASH: Final = 0xFFFF_FFFF
_SECRET: Final = hash("the secret of the key index") & 0xFFFF_FFFF_FFFF_FFFF
_THERE, _GONE = b"\1", b"\0"

_digest = xxh3_64_intdigest


class KeyIndex:
    __slots__ = ("_arena", "_cells", "_count", "_due", "_filled", "_mask", "_moved", "_old", "_table")

    def __init__(self, arena: KeyArena) -> None:
        self._arena = arena
        self._old: Words | None = None
        """The table before this one, while words are in it."""
        self._moved = 0
        """Places of the old table below it have none any more."""
        self._due = 0
        """Places that are to be moved."""
        self._count = 0
        self._use(FIRST_PLACES)

    def _use(self, places: int) -> None:
        """An empty table, in memory of its own: a freed one leaves no hole in the heap."""
        memory = GrowingArray(places, np.uint64)
        self._table: Words = memory.array
        self._cells = memory.cells
        self._mask = places - 1
        self._filled = 0
        """Places that are not empty."""

    def __len__(self) -> int:
        return self._count

    @property
    def is_moving(self) -> bool:
        return self._old is not None

    @property
    def taken_bytes(self) -> int:
        return int(self._table.nbytes) + (0 if self._old is None else int(self._old.nbytes))

    def slot_of(self, key: str) -> int:
        name = key.encode()
        hash_ = _digest(name, _SECRET) & _HASH
        slot = self._slot_in(self._cells, name, hash_)
        if slot == ABSENT and self._old is not None:
            return self._slot_in(self._old.data, name, hash_)
        return slot

    def _slot_in(self, cells: memoryview, name: bytes, hash_: int) -> int:
        mask = len(cells) - 1
        at = hash_ & mask
        while word := cells[at]:
            if word & _HASH == hash_ and word != GONE:
                slot: int = (word >> 32) - 1
                # `KeyArena.holds`, which would take 60 ns more when called.
                place = self._arena.places.cells[slot]
                start = place >> LENGTH_BITS << 3
                if self._arena.memory.raw[start : start + (place & LENGTH)] == name:
                    return slot
            at = at + 1 & mask
        return ABSENT

    def slots_of(self, keys: list[str]) -> list[int]:
        if len(keys) < TOGETHER:
            return [*map(self.slot_of, keys)]
        slots: list[int] = self.find(keys).tolist()
        return slots

    def presence(self, keys: list[str]) -> bytes:
        """One byte per key: 1 if it is bound."""
        if len(keys) < TOGETHER:
            return b"".join([_THERE if self.slot_of(key) >= 0 else _GONE for key in keys])
        return (self.find(keys) >= 0).tobytes()

    def find(self, keys: list[str]) -> Slots:
        """The slots of these keys, ABSENT for those that have none."""
        hashes = _hashes(keys)
        slots = _candidates(self._table, hashes)
        if self._old is not None:
            further = np.flatnonzero(slots == ABSENT)
            slots[further] = _candidates(self._old, hashes[further])
        there = np.flatnonzero(slots != ABSENT)
        if len(there) == len(keys):
            wrong = self._arena.differing(slots, pack(keys))
        else:
            wrong = there[self._arena.differing(slots[there], pack([keys[i] for i in there.tolist()]))]
        for i in wrong.tolist():  # Their hashes are those of other keys.
            slots[i] = self.slot_of(keys[i])
        return slots

    def bind(self, key: str, slot: int) -> None:
        """The key must be unbound, and in the arena."""
        hash_ = _digest(key.encode(), _SECRET) & _HASH
        if self._filled >= FULLEST * len(self._table):
            self._replace(1)
        self._put(slot + 1 << 32 | hash_)
        self._count += 1
        if self._old is not None:
            self._move(1)

    def _put(self, word: int) -> None:
        cells, mask = self._cells, self._mask
        at = word & mask
        while cells[at] > GONE:
            at = at + 1 & mask
        self._filled += cells[at] == EMPTY
        cells[at] = word

    def bind_many(self, keys: list[str], slots: Slots) -> None:
        """The keys must be unbound, different, and in the arena."""
        if self._filled + len(keys) > FULLEST * len(self._table):
            self._replace(len(keys))
        self._put_many(_words(keys, slots))
        self._count += len(keys)
        if self._old is not None:
            self._move(len(keys))

    def _put_many(self, words: Words) -> None:
        table, mask = self._table, np.uint64(self._mask)
        at = (words & mask).astype(np.intp)
        while len(words) > FEW:
            there = table[at]
            free = there <= GONE
            table[at[free]] = words[free]
            # Of two that wanted the same place, the last one got it.
            got = free & (table[at] == words)
            self._filled += int(np.count_nonzero(there[got] == EMPTY))
            left = ~got
            words = words[left]
            at = (at[left] + 1) & self._mask
        for word in words.tolist():
            self._put(word)

    def unbind(self, keys: list[str], slots: Slots) -> None:
        """Each key must be bound to its slot."""
        words = _words(keys, slots)
        left = words if len(words) <= FEW else _without(self._table, words)
        for word in left.tolist():
            found = _removed(self._cells, word) or (self._old is not None and _removed(self._old.data, word))
            assert found, "a key is unbound once"
        self._count -= len(keys)
        if not self._count:
            self._old = None
            self._use(FIRST_PLACES)
        elif self._old is not None:
            self._move(len(keys))

    def _replace(self, coming: int) -> None:
        """Go on in an empty table with room for these too, into which the words will move."""
        if self._old is not None:
            self._move(len(self._old))
        places = FIRST_PLACES
        while places < 2 * (self._count + coming):
            places *= 2
        if self._count:
            self._old, self._moved, self._due = self._table, 0, 0
        self._use(places)

    def _move(self, changes: int) -> None:
        """Move the words that are due."""
        assert self._old is not None, "words are moving"
        self._due += MOVED * changes
        if self._due < MOVED_AT_ONCE and self._due < len(self._old) - self._moved:
            return
        stop = self._moved + self._due
        some = self._old[self._moved : stop]
        words = some[some > GONE]
        # Those that are behind one of them must still be found there.
        some[some != EMPTY] = GONE
        self._moved, self._due = stop, 0
        if stop >= len(self._old):
            self._old = None
        self._put_many(words)


def _hashes(keys: list[str]) -> Words:
    return np.fromiter(map(_digest, map(str.encode, keys), repeat(_SECRET)), np.uint64, len(keys)) & np.uint64(_HASH)


def _words(keys: list[str], slots: Slots) -> Words:
    return (slots + 1).astype(np.uint64) << np.uint64(32) | _hashes(keys)


def _candidates(table: Words, hashes: Words) -> Slots:
    """Per hash: the slot of the first word that has it, or ABSENT."""
    mask = len(table) - 1
    at = (hashes & np.uint64(mask)).view(np.intp)
    slots = np.full(len(hashes), ABSENT)
    left = np.arange(len(hashes))
    while len(left) > FEW:
        words = table.take(at)
        same = (words & np.uint64(_HASH) == hashes) & (words != GONE)
        found = np.flatnonzero(same)
        slots[left[found]] = (words[found] >> np.uint64(32)).view(np.intp) - 1
        # Words of one hash lie behind one another without an empty place between them.
        further = np.flatnonzero((words != EMPTY) & ~same)
        left, hashes, at = left[further], hashes[further], (at[further] + 1) & mask
    cells = table.data
    for i, hash_, place in zip(left.tolist(), hashes.tolist(), at.tolist(), strict=True):
        while (word := cells[place]) and (word & _HASH != hash_ or word == GONE):
            place = place + 1 & mask
        slots[i] = (word >> 32) - 1
    return slots


def _removed(cells: memoryview, word: int) -> bool:
    mask = len(cells) - 1
    at = word & mask
    while cells[at] != word:
        if cells[at] == EMPTY:
            return False
        at = at + 1 & mask
    cells[at] = GONE
    return True


def _without(table: Words, words: Words) -> Words:
    """Replace these words by tombstones; return those that are not there, or far from home."""
    mask = len(table) - 1
    at = (words & np.uint64(mask)).astype(np.intp)
    for _ in range(4):
        found = table[at] == words
        table[at[found]] = GONE
        words = words[~found]
        if len(words) <= FEW:
            break
        at = (at[~found] + 1) & mask
    return words
