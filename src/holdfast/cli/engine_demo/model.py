"""A decoder-only transformer with a KV cache: real attention and random weights, the same for the same seed.

Its words mean nothing, but its work is that of a language model: every token costs the same matrix products, and
attention over all tokens before it. What it says depends on the KV that it is given, so wrong KV gives other tokens.

The KV of a prompt lies in one tensor of [layer, key or value, token, width]. The KV of tokens a to b is thus one
contiguous piece for each layer and kind: an object of the cache is gathered from these pieces, and read back into them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from holdfast.cli.engine_demo.shape import Shape

SHARPNESS = 3.0
"""Scale of the queries. With random weights and 1.0, attention is an average of everything: no token would matter."""
LONGEST_WAVE = 10_000.0


class Layer(NamedTuple):
    """The matrices of one layer."""

    query_key_value: torch.Tensor
    attended: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


def threads() -> int:
    """How many compute."""
    return int(torch.get_num_threads())


class Model:
    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape = shape
        chance = torch.Generator().manual_seed(seed)

        def matrix(rows: int, columns: int) -> torch.Tensor:
            drawn: torch.Tensor = torch.randn(rows, columns, generator=chance) / rows**0.5
            return drawn

        width = shape.width
        self._embedding = torch.randn(shape.vocabulary, width, generator=chance)
        self._layers = [
            Layer(matrix(width, 3 * width), matrix(width, width), matrix(width, 4 * width), matrix(4 * width, width))
            for _ in range(shape.layers)
        ]
        self._head = matrix(width, shape.vocabulary)

    def new_memory(self, tokens: int) -> torch.Tensor:
        """Room for the KV of this many tokens."""
        return torch.empty(self.shape.layers, 2, tokens, self.shape.width)

    def next_token(self, tokens: Sequence[int], memory: torch.Tensor, start: int) -> int:
        """Compute tokens `start` and following, whose predecessors' KV is in memory; theirs is written there.

        The answer is the most likely token after the last one.
        """
        with torch.inference_mode():
            last = self._through_layers(tokens, memory, start)[-1]
            return int((_normal(last) @ self._head).argmax())

    def _through_layers(self, tokens: Sequence[int], memory: torch.Tensor, start: int) -> torch.Tensor:
        end = start + len(tokens)
        flow = self._embedding[torch.tensor(tokens)]
        waves = self._waves(start, end)
        # A token sees itself and what was before it.
        seen = torch.arange(end) <= torch.arange(start, end).unsqueeze(1)
        for number, layer in enumerate(self._layers):
            query, key, value = (_normal(flow) @ layer.query_key_value).chunk(3, dim=1)
            memory[number, 0, start:end] = self._turned(key, waves)
            memory[number, 1, start:end] = value
            attended = scaled_dot_product_attention(
                self._by_head(SHARPNESS * self._turned(query, waves)),
                self._by_head(memory[number, 0, :end]),
                self._by_head(memory[number, 1, :end]),
                attn_mask=seen,
            )
            flow = flow + attended.squeeze(0).transpose(0, 1).reshape(len(tokens), -1) @ layer.attended
            flow = flow + silu(_normal(flow) @ layer.up) @ layer.down
        return flow

    def _by_head(self, rows: torch.Tensor) -> torch.Tensor:
        """[token, width] as [1, head, token, width of a head], without a copy."""
        return rows.view(len(rows), self.shape.heads, -1).transpose(0, 1).unsqueeze(0)

    def _waves(self, start: int, end: int) -> torch.Tensor:
        """By which angles a token's place turns each pair of numbers (rotary embedding), as complex numbers."""
        pairs = self.shape.width // self.shape.heads // 2
        speeds = LONGEST_WAVE ** (-torch.arange(pairs) / pairs)
        angles = torch.outer(torch.arange(start, end, dtype=torch.float32), speeds)
        return torch.polar(torch.ones_like(angles), angles)

    def _turned(self, rows: torch.Tensor, waves: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(rows.reshape(len(rows), self.shape.heads, -1, 2))
        return torch.view_as_real(pairs * waves.unsqueeze(1)).reshape(len(rows), -1)


def _normal(flow: torch.Tensor) -> torch.Tensor:
    return rms_norm(flow, flow.shape[-1:])
