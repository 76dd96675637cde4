"""Keys of KV blocks: each names its tokens and all tokens before them.

The KV of a token depends on every token before it, so a block is the same only where the whole prefix is. A chain of
hashes says that with one short name per block. The name begins with the model, because other weights make other KV.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

PREFIX = "engine-demo"


def block_keys(model: str, tokens: Sequence[int], block_tokens: int, salt: str = "") -> list[str]:
    """One key for each whole block of the prompt, in order. A different salt shares nothing.

    The last token belongs to no block: the model must compute it to say what comes next.
    """
    link = hashlib.sha256(f"{model}/{block_tokens}/{salt}".encode()).digest()
    keys = []
    for start in range(0, (len(tokens) - 1) // block_tokens * block_tokens, block_tokens):
        link = hashlib.sha256(link + array("I", tokens[start : start + block_tokens]).tobytes()).digest()
        keys.append(f"{PREFIX}/{model}/{link.hex()[:32]}")
    return keys
