"""The keys of a catalogue's slots as bytes in one piece of memory, without a Python object per key (ADR 65).

The memory is divided into chunks, which are filled one after another. The life of a key in it:

1. It is written behind the last one, padded to whole 64-bit words; `places` of its slot has its first word and length.
2. Dropped, it is garbage: its chunk has fewer words in use. A chunk without any is filled again.
3. When a quarter of the memory is garbage, the chunks with much of it are condemned, and a sweep over all slots moves
   the keys in them away, a few thousand slots at a time, as other keys come and go.

The memory is an array that grows without a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from holdfast.core.catalogue.growing_array import GrowingArray

if TYPE_CHECKING:
    from holdfast.core.catalogue.catalogue import Slots, Words

Numbers = npt.NDArray[np.int64]

CHUNK_BITS: Final = 15
CHUNK: Final = 1 << CHUNK_BITS
"""Words of a chunk: 256 KiB, some 5,000 keys of 48 bytes."""
LENGTH_BITS: Final = 16
LENGTH: Final = (1 << LENGTH_BITS) - 1
SWEPT: Final = 4096
"""Slots per step of a sweep: below 1 ms."""
CHANGES: Final = 1024
"""Keys that come or go per step of a sweep. So a sweep ends before a quarter as many have come as there are slots."""
READ_AT_ONCE: Final = 8192
"""Keys per array operation: bounds the memory that it takes."""
FEW: Final = 16
"""Below this many keys, one by one is quicker."""


class Packed(NamedTuple):
    """Keys as they lie in the memory: each padded to whole words, one behind the other."""

    words: Words
    lengths: Numbers
    """In bytes."""

    @property
    def widths(self) -> Numbers:
        """In words."""
        return (self.lengths + 7) >> 3


def pack(keys: list[str]) -> Packed:
    text = "".join(keys)
    if not text.isascii():
        names = [*map(str.encode, keys)]
        lengths = np.fromiter(map(len, names), np.int64, len(names))
        padded = map(bytes.ljust, names, ((lengths + 7) & -8).tolist(), repeat(b"\0"))
        return Packed(np.frombuffer(b"".join(padded), np.uint64), lengths)
    # As most are: no object per key is made.
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    if (lengths & 7).any():
        text = "".join(map(str.ljust, keys, ((lengths + 7) & -8).tolist(), repeat("\0")))
    return Packed(np.frombuffer(text.encode(), np.uint64), lengths)


def _chosen(keys: Packed, chosen: Slots) -> Packed:
    inside = np.zeros(len(keys.lengths), np.bool_)
    inside[chosen] = True
    return Packed(keys.words[np.repeat(inside, keys.widths)], keys.lengths[chosen])


class KeyArena:
    """A sequence: the key of each slot, or None."""

    __slots__ = (
        "_changes",
        "_condemned",
        "_current",
        "_end",
        "_fresh",
        "_next",
        "_reusable",
        "_swept",
        "_top",
        "_used",
        "memory",
        "places",
    )

    def __init__(self) -> None:
        self.memory = GrowingArray(CHUNK, np.uint64)
        self.places = GrowingArray(1024, np.uint64)
        """Per slot: the first word of its key << LENGTH_BITS | the key's length. 0: it has none."""
        self._top = 0
        self._used: list[int] = [0]
        """Per chunk: words of keys that are there. A chunk that is being filled counts as usual."""
        self._current = 0
        """The chunk that is being filled, from the word `_next` up to `_end`."""
        self._next, self._end = 0, CHUNK
        self._reusable: list[int] = []
        """Empty chunks below `_fresh`."""
        self._fresh = 1
        """Chunks from here on were never used."""
        self._condemned: npt.NDArray[np.bool_] | None = None
        """Per chunk: are its keys to be moved away? None: there is no sweep."""
        self._swept = 0
        self._changes = 0

    def __len__(self) -> int:
        return self._top

    @overload
    def __getitem__(self, slot: int) -> str | None: ...
    @overload
    def __getitem__(self, slot: slice) -> list[str | None]: ...
    def __getitem__(self, slot: int | slice) -> str | list[str | None] | None:
        if isinstance(slot, slice):
            start, stop, step = slot.indices(self._top)
            assert step == 1, "slots lie side by side"
            return [key for first in range(start, stop, READ_AT_ONCE) for key in self._between(first, stop)]
        if not 0 <= slot < self._top:
            raise IndexError(f"slot {slot} of {self._top}")
        place = self.places.cells[slot]
        if not place:
            return None
        start = place >> LENGTH_BITS << 3
        return self.memory.raw[start : start + (place & LENGTH)].decode()

    def __iter__(self) -> Iterator[str | None]:
        for first in range(0, self._top, READ_AT_ONCE):
            yield from self._between(first, self._top)

    def _between(self, first: int, stop: int) -> list[str | None]:
        stop = min(stop, first + READ_AT_ONCE)
        there = np.flatnonzero(self.places.array[first:stop])
        found = self.keys_of(there + first)
        if len(found) == stop - first:
            return [*found]
        keys: list[str | None] = [None] * (stop - first)
        for at, key in zip(there.tolist(), found, strict=True):
            keys[at] = key
        return keys

    @property
    def used_bytes(self) -> int:
        """Memory of the keys that are there."""
        return 8 * sum(self._used)

    @property
    def taken_bytes(self) -> int:
        """Memory of all chunks that were ever used."""
        return 8 * CHUNK * self._fresh

    @property
    def is_sweeping(self) -> bool:
        return self._condemned is not None

    def extend(self, count: int) -> None:
        """Add this many slots, without keys."""
        self._top += count
        room = len(self.places.cells)
        if self._top > room:
            self.places.grow(max(self._top, room + max(room // 4, 1024)))

    def put(self, slot: int, key: bytes) -> None:
        """The key of a slot that has none."""
        width = (len(key) + 7) >> 3
        if self._next + width > self._end:
            self._take_chunk()
        start = self._next << 3
        raw = self.memory.raw
        raw[start : start + len(key)] = key
        if len(key) & 7:
            raw[start + len(key) : start + 8 * width] = bytes(8 * width - len(key))
        self.places.cells[slot] = self._next << LENGTH_BITS | len(key)
        self._used[self._current] += width
        self._next += width
        if self._condemned is not None:
            self._changed(1)

    def put_many(self, slots: Slots, keys: Packed) -> None:
        """The keys of slots that have none."""
        self._write(slots, keys)
        if self._condemned is not None:
            self._changed(len(slots))

    def _write(self, slots: Slots, keys: Packed) -> None:
        ends = keys.widths.cumsum()
        done = 0
        while done < len(slots):
            written = int(ends[done - 1]) if done else 0
            stop = int(ends.searchsorted(self._end - self._next + written, "right"))
            if stop == done:
                self._take_chunk()
                continue
            starts = ends[done:stop] - keys.widths[done:stop] + (self._next - written)
            width = int(ends[stop - 1]) - written
            self.memory.array[self._next : self._next + width] = keys.words[written : written + width]
            self.places.array[slots[done:stop]] = starts << LENGTH_BITS | keys.lengths[done:stop]
            self._used[self._current] += width
            self._next += width
            done = stop

    def drop(self, slot: int) -> None:
        """The slot has no key any more."""
        place = self.places.cells[slot]
        self.places.cells[slot] = 0
        self._free(place >> LENGTH_BITS + CHUNK_BITS, ((place & LENGTH) + 7) >> 3)
        self._changed(1)

    def drop_many(self, slots: Slots) -> None:
        places = self.places.array[slots].astype(np.int64)
        self.places.array[slots] = 0
        self._free_many(places)
        self._changed(len(slots))

    def _free_many(self, places: Numbers) -> None:
        widths = ((places & LENGTH) + 7) >> 3
        freed = np.bincount(places >> LENGTH_BITS + CHUNK_BITS, widths)
        for chunk in np.flatnonzero(freed).tolist():
            self._free(chunk, int(freed[chunk]))

    def _free(self, chunk: int, width: int) -> None:
        self._used[chunk] -= width
        if self._used[chunk]:
            return
        if chunk == self._current:
            self._next = chunk << CHUNK_BITS
            return
        self._reusable.append(chunk)
        if self._condemned is not None and chunk < len(self._condemned):
            self._condemned[chunk] = False

    def _take_chunk(self) -> None:
        if self._used[self._current] == 0:
            self._next = self._current << CHUNK_BITS
            return
        if self._reusable:
            self._current = self._reusable.pop()
        else:
            self._current = self._fresh
            self._fresh += 1
            self._used.append(0)
            room = len(self.memory.cells)
            if self._fresh << CHUNK_BITS > room:
                self.memory.grow(room + max(room // 4 & -CHUNK, CHUNK))
        self._next = self._current << CHUNK_BITS
        self._end = self._next + CHUNK

    def differing(self, slots: Slots, keys: Packed) -> Slots:
        """Indices of those of these keys that are not those of these slots."""
        there = self.packed(slots)
        same = there.lengths == keys.lengths
        if not same.all():
            # Of those with another length nothing more is compared.
            alike = np.flatnonzero(same)
            further = self.differing(slots[alike], _chosen(keys, alike))
            return np.union1d(np.flatnonzero(~same), alike[further])
        unequal = np.flatnonzero(there.words != keys.words)
        # Mostly none: a word of the index that is another key's has the same 32 bits of the hash.
        return np.unique(keys.widths.cumsum().searchsorted(unequal, "right")) if len(unequal) else unequal

    def packed(self, slots: Slots) -> Packed:
        """The keys of these slots, each of which has one."""
        places = self.places.array[slots].astype(np.int64)
        lengths = places & LENGTH
        return Packed(self._words_at(places >> LENGTH_BITS, (lengths + 7) >> 3), lengths)

    def keys_of(self, slots: Slots) -> list[str]:
        """The keys of these slots, each of which has one."""
        if len(slots) < FEW:
            cells, raw = self.places.cells, self.memory.raw
            few = []
            for slot in slots.tolist():
                start = cells[slot] >> LENGTH_BITS << 3
                few.append(raw[start : start + (cells[slot] & LENGTH)].decode())
            return few
        keys = self.packed(slots)
        ends = keys.widths.cumsum() << 3
        starts = ends - (keys.widths << 3)
        blob = keys.words.tobytes()
        spans = zip(starts.tolist(), (starts + keys.lengths).tolist(), strict=True)
        if blob.isascii():
            text = blob.decode("ascii")
            return [text[start:end] for start, end in spans]
        return [blob[start:end].decode() for start, end in spans]

    def bytes_of(self, slots: Slots) -> tuple[bytes, Numbers]:
        """The keys of these slots, one behind the other, and their lengths."""
        keys = self.packed(slots)
        if not (keys.lengths & 7).any():
            return keys.words.tobytes(), keys.lengths
        padding = (keys.widths << 3) - keys.lengths
        # Every other run is padding.
        runs = np.repeat(np.arange(2 * len(slots)), np.stack([keys.lengths, padding], axis=1).ravel())
        return keys.words.view(np.uint8)[runs & 1 == 0].tobytes(), keys.lengths

    def slots_with(self, prefix: bytes, first: int, stop: int) -> Slots:
        """Those of these slots whose key begins so."""
        first = min(first, self._top)  # A client may name any.
        places = self.places.array[first : min(stop, self._top)].astype(np.int64)
        found = np.flatnonzero(places & LENGTH >= max(1, len(prefix)))
        starts = places[found] >> LENGTH_BITS
        for at in range(0, len(prefix), 8):
            part = prefix[at : at + 8]
            wanted = np.uint64(int.from_bytes(part, "little"))
            bits = np.uint64((1 << 8 * len(part)) - 1)
            same = self.memory.array[starts + (at >> 3)] & bits == wanted
            found, starts = found[same], starts[same]
        return found + first

    def _words_at(self, starts: Numbers, widths: Numbers) -> Words:
        words = self.memory.array
        if len(starts) and (width := int(widths[0])) and (widths == width).all():
            # Keys of one width are copied as wholes, in a quarter of the time.
            wholes = np.ndarray((len(words) - width + 1,), f"V{8 * width}", words.data, strides=(8,))
            return wholes[starts].view(np.uint64)
        ends = widths.cumsum()
        total = int(ends[-1]) if len(ends) else 0
        found: Words = words[np.repeat(starts - (ends - widths), widths) + np.arange(total)]
        return found

    def _changed(self, count: int) -> None:
        """Begin a sweep if there is much garbage, and take the steps that are due."""
        self._changes += count
        if self._changes < CHANGES:
            return
        if self._condemned is None:
            self._changes = 0
            self._begin_sweep()
            return
        while self._changes >= CHANGES and self._condemned is not None:
            self._changes -= CHANGES
            self._sweep(self._condemned)

    def _begin_sweep(self) -> None:
        chunks = self._fresh - len(self._reusable)
        used = np.array(self._used, np.int64)
        garbage = (chunks << CHUNK_BITS) - int(used.sum())
        if garbage <= (chunks << CHUNK_BITS - 2) + 2 * CHUNK:
            return
        self._condemned = (used > 0) & (used < CHUNK - CHUNK // 4)
        self._condemned[self._current] = False
        self._swept = 0

    def _sweep(self, condemned: npt.NDArray[np.bool_]) -> None:
        first, stop = self._swept, min(self._swept + SWEPT, self._top)
        self._swept = stop
        places = self.places.array[first:stop].astype(np.int64)
        chunks = places >> LENGTH_BITS + CHUNK_BITS
        # Chunks that are younger than the sweep are not condemned. Nor is any slot without a key.
        moved = np.flatnonzero((places != 0) & (chunks < len(condemned)))
        moved = moved[condemned[chunks[moved]]]
        if len(moved):
            self._write(moved + first, self.packed(moved + first))
            self._free_many(places[moved])
        if stop == self._top:
            self._condemned = None
