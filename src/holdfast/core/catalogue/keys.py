"""From key to slot.

One dict of a million keys stops the process for 65 to 400 ms when it grows; many small ones grow a little at a
time. So a catalogue begins with one dict, whose lookups take half the time, and moves to many before its growth could
be noticed. The shard of a key depends on the process's hash seed, so nothing may depend on a shard's order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import repeat
from operator import and_, contains, delitem, setitem

SHARDS = 64
_MASK = SHARDS - 1
ONE_DICT_KEYS = 1 << 16
ABSENT = -1
_THERE, _GONE = b"\1", b"\0"


class KeyIndex:
    __slots__ = ("_one", "_shards")

    def __init__(self) -> None:
        self._one: dict[str, int] | None = {}
        """All keys, while they are few."""
        self._shards: list[dict[str, int]] = []

    def __len__(self) -> int:
        return len(self._one) if self._one is not None else sum(map(len, self._shards))

    def slot_of(self, key: str) -> int:
        if self._one is not None:
            return self._one.get(key, ABSENT)
        return self._shards[hash(key) & _MASK].get(key, ABSENT)

    def slots_of(self, keys: list[str]) -> list[int]:
        if self._one is not None:
            return [*map(self._one.get, keys, repeat(ABSENT))]
        shards = self._shards
        return [shards[h & _MASK].get(key, ABSENT) for h, key in zip(map(hash, keys), keys, strict=True)]

    def presence(self, keys: list[str]) -> bytes:
        """One byte per key: 1 if it is bound."""
        one, shards = self._one, self._shards
        if len(keys) == 1:
            key = keys[0]
            return _THERE if key in (shards[hash(key) & _MASK] if one is None else one) else _GONE
        if one is not None:
            return bytes(map(one.__contains__, keys))
        # No interpreter step per key: the rest is mostly waiting for memory. The fewer instructions between two
        # lookups, the more lookups the processor overlaps, so all shards are found first.
        return bytes(map(contains, [*self._shards_of(keys)], keys))

    def _shards_of(self, keys: list[str]) -> Iterator[dict[str, int]]:
        return map(self._shards.__getitem__, map(and_, map(hash, keys), repeat(_MASK)))

    def bind(self, key: str, slot: int) -> None:
        if self._one is None:
            self._shards[hash(key) & _MASK][key] = slot
        else:
            self._one[key] = slot
            if len(self._one) > ONE_DICT_KEYS:
                self._go_over(self._one)

    def bind_many(self, keys: list[str], slots: list[int]) -> None:
        if self._one is not None:
            if len(self._one) + len(keys) <= ONE_DICT_KEYS:
                self._one.update(zip(keys, slots, strict=True))
                return
            self._go_over(self._one)
        assert len(keys) == len(slots), "a slot for each key"
        deque(map(setitem, self._shards_of(keys), keys, slots), maxlen=0)

    def unbind(self, keys: list[str]) -> None:
        dicts = repeat(self._one) if self._one is not None else self._shards_of(keys)
        deque(map(delitem, dicts, keys), maxlen=0)

    def _go_over(self, one: dict[str, int]) -> None:
        """Move from this one dict to many."""
        self._one, self._shards = None, [{} for _ in range(SHARDS)]
        self.bind_many(list(one), list(one.values()))
