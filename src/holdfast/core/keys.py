"""From key to slot.

One dict of a million keys stops the process for 65 to 400 ms when it grows; many small ones grow a little at a
time. Which shard a key falls into depends on the process's hash seed, so nothing may depend on a shard's order.
"""

from __future__ import annotations

from collections.abc import Iterable

SHARDS = 64
_MASK = SHARDS - 1
ABSENT = -1
_THERE, _GONE = b"\1", b"\0"


class KeyIndex:
    __slots__ = ("_shards",)

    def __init__(self) -> None:
        self._shards: list[dict[str, int]] = [{} for _ in range(SHARDS)]

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def slot_of(self, key: str) -> int:
        return self._shards[hash(key) & _MASK].get(key, ABSENT)

    def slots_of(self, keys: list[str]) -> list[int]:
        shards = self._shards
        return [shards[h & _MASK].get(key, ABSENT) for h, key in zip(map(hash, keys), keys, strict=True)]

    def presence(self, keys: list[str]) -> bytes:
        """One byte a key: 1 if it is bound."""
        shards = self._shards
        if len(keys) == 1:
            key = keys[0]
            return _THERE if key in shards[hash(key) & _MASK] else _GONE
        return bytes([key in shards[h & _MASK] for h, key in zip(map(hash, keys), keys, strict=True)])

    def bind(self, key: str, slot: int) -> None:
        self._shards[hash(key) & _MASK][key] = slot

    def bind_many(self, keys: list[str], slots: list[int]) -> None:
        shards = self._shards
        for h, key, slot in zip(map(hash, keys), keys, slots, strict=True):
            shards[h & _MASK][key] = slot

    def unbind(self, keys: Iterable[str]) -> None:
        shards = self._shards
        for key in keys:
            del shards[hash(key) & _MASK][key]
