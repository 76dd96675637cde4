"""Altered bytes: from good ones, by a seed.

Half of the alterations work on bytes (flipped, cut, repeated, put in), half on the values of msgpack, so that the
result still decodes and reaches the code behind the decoder: numbers at the edges of their columns, bytes of another
length, values of another type, rows repeated and left out, deep nesting, lengths that nothing follows.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

EDGES = [
    *(0, 1, -1, 7, 255, 256, 65_535, 65_536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40),
    *((1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 31), -(1 << 63)),
]
TEXTS = ["", "a", "\0", "\x01x", "é" * 300, "k" * 70_000, "../../x", "%s%n", "\ud7ff", "host:0", "[::1]:99999"]
TOLD_LENGTHS = [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"]
BAD_TEXT = b"\xa2\xff\xfe"
MOST_BYTES = 256 << 10


class Mutator:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def altered(self, good: bytes) -> bytes:
        """These bytes with one to four alterations."""
        for _ in range(self.random.choice((1, 1, 2, 4))):
            good = self._altered_tree(good) if self.random.random() < 0.6 else self._altered_bytes(good)
        return good[:MOST_BYTES]

    def _altered_bytes(self, good: bytes) -> bytes:
        data, at = bytearray(good), self.random.randrange(len(good) + 1)
        kind = self.random.randrange(7)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << self.random.randrange(8)
        elif kind == 1 and data:
            data[at % len(data)] = self.random.randrange(256)
        elif kind == 2:
            del data[at : at + self.random.choice((1, 4, 8, len(data)))]
        elif kind == 3:
            data[at:at] = self.random.randbytes(self.random.choice((1, 4, 8, 100)))
        elif kind == 4:
            data[at:at] = self.random.choice([*TOLD_LENGTHS, BAD_TEXT, b"\x91" * 3_000])
        elif kind == 5:
            data[at:at] = data[at : at + self.random.choice((8, 64, 1_000))]
        else:
            number = self.random.choice(EDGES) & (1 << 64) - 1
            data[at : at + 8] = number.to_bytes(8, self.random.choice(("little", "big")))
        return bytes(data)

    def _altered_tree(self, good: bytes) -> bytes:
        try:
            tree = msgspec.msgpack.decode(good)
            return msgspec.msgpack.encode(self._altered_value(tree))
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, TypeError):
            return self._altered_bytes(good)

    def _altered_value(self, value: Any) -> Any:
        roll = self.random.random()
        if roll < 0.05:
            return self._anything()
        if isinstance(value, list) and value:
            return self._altered_list([*value])
        if isinstance(value, dict) and value:
            key = self.random.choice([*value])
            return {**value, key: self._altered_value(value[key])}
        if isinstance(value, bool) or value is None:
            return not value
        if isinstance(value, int):
            return self.random.choice([*EDGES, value + 1, value - 1, value ^ 1 << self.random.randrange(64)])
        if isinstance(value, str):
            return self.random.choice([*TEXTS, value + "x", value[:-1]])
        if isinstance(value, bytes):
            return self._altered_bytes(value)
        return self._anything()

    def _altered_list(self, value: list[Any]) -> list[Any]:
        at, roll = self.random.randrange(len(value)), self.random.random()
        if roll < 0.08:
            del value[at]
        elif roll < 0.16:
            value.insert(at, value[at])
        elif roll < 0.2:
            value[:] = value * self.random.choice((2, 50))
        else:
            value[at] = self._altered_value(value[at])
        return value

    def _anything(self) -> Any:
        return self.random.choice(
            [
                None,
                True,
                1.5,
                float("nan"),
                [],
                {},
                [[]],
                {"a": 1},
                {1: 2},
                b"",
                self.random.randbytes(40),
                *EDGES,
                *TEXTS,
            ]
        )
