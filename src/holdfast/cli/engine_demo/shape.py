"""The size of the model, and of its KV. It needs no torch: the memory of the cluster is reckoned from it."""

from __future__ import annotations

from typing import NamedTuple

FLOAT_BYTES = 4


class Shape(NamedTuple):
    layers: int
    width: int
    heads: int
    vocabulary: int = 8_192

    @property
    def name(self) -> str:
        return f"random-{self.layers}x{self.width}"

    @property
    def parameters(self) -> int:
        return self.layers * 12 * self.width**2 + 2 * self.vocabulary * self.width

    def kv_bytes(self, tokens: int) -> int:
        """A key and a value of the model's width, for each layer and token."""
        return 2 * self.layers * self.width * FLOAT_BYTES * tokens
