"""One scheme for keys, readable in every listing: PREFIX/LAYOUT/ and then LMCache's own name of the chunk.

    lmcache/l2/meta-llama/Llama-3.1-8B@01000100@0@9f86d081884c7d65[@alice]
            |  model                   |        | |               cache_salt, if there is one
            |                          kv_rank  | chunk_hash
            |                                   object group
            l2: objects of L2 adapters; meta: in-process mode with metadata before the bytes; raw: without

The layout is part of the key because the same chunk has other bytes in another layout. `plugin` and `native_plugin`
name chunks alike and so share their objects. A name whose key would be over 1,024 bytes is cut and ends with a hash of
the whole of it, after `~`; it has no `@`, so that no other chunk's key can be like it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from holdfast.ids import MAX_KEY_BYTES

L2, META, RAW = "l2", "meta", "raw"
KEPT_CHARACTERS = 64


class Chunk(Protocol):
    """LMCache's ObjectKey."""

    @property
    def chunk_hash(self) -> bytes: ...
    @property
    def model_name(self) -> str: ...
    @property
    def kv_rank(self) -> int: ...
    @property
    def object_group_id(self) -> int: ...
    @property
    def cache_salt(self) -> str: ...


class ChunkName(NamedTuple):
    """The parts of an L2 name, read back."""

    model_name: str
    kv_rank: int
    object_group_id: int
    chunk_hash: bytes
    cache_salt: str


class Namespace:
    """The keys of one prefix and layout."""

    def __init__(self, prefix: str, layout: str) -> None:
        self.start = f"{prefix}/{layout}/"

    def key_of(self, name: str) -> str:
        key = self.start + name
        if key.isascii() and len(key) <= MAX_KEY_BYTES:
            return key
        whole = name.encode(errors="surrogatepass")
        # A lone surrogate is in no valid key either.
        if len(self.start) + len(whole) <= MAX_KEY_BYTES and whole == name.encode(errors="replace"):
            return key
        kept = name.partition("@")[0][:KEPT_CHARACTERS].encode(errors="replace").decode()
        return f"{self.start}{kept}~{hashlib.sha256(whole).hexdigest()}"

    def keys_of(self, names: Iterable[str]) -> list[str]:
        return [self.key_of(name) for name in names]

    def name_of(self, key: str) -> str:
        return key.removeprefix(self.start)


def l2_name(chunk: Chunk) -> str:
    name = f"{chunk.model_name}@{chunk.kv_rank:08x}@{chunk.object_group_id:x}@{chunk.chunk_hash.hex()}"
    return f"{name}@{chunk.cache_salt}" if chunk.cache_salt else name


def parsed_l2_name(name: str) -> ChunkName | None:
    """None: it is no name of an L2 chunk, or one that was cut."""
    parts = name.split("@")
    if len(parts) not in (4, 5) or len(parts[1]) < 8:
        return None
    try:
        rank, group, chunk_hash = int(parts[1], 16), int(parts[2], 16), bytes.fromhex(parts[3])
    except ValueError:
        return None
    return ChunkName(parts[0], rank, group, chunk_hash, parts[4] if len(parts) == 5 else "")
