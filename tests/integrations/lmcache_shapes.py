"""LMCache's interfaces by their shape, so that holdfast's faces to it are tested without LMCache.

What the faces import, and no more: names, signatures and behaviour as LMCache 0.5.6 declares them, in our own words.
`make ecosystem` runs the same faces inside the real one.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

FACES = ("holdfast.integrations.lmcache.l2_adapter", "holdfast.integrations.lmcache.remote_connector")
"""The modules that import LMCache."""


class Bitmap:
    def __init__(self, size: int) -> None:
        self.bits = [False] * size

    def set(self, index: int) -> None:
        self.bits[index] = True

    def test(self, index: int) -> bool:
        return self.bits[index]


class Notifier:
    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._descriptor

    def notify(self) -> None:
        os.eventfd_write(self._descriptor, 1)

    def consume(self) -> None:
        os.eventfd_read(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass(frozen=True)
class ObjectKey:
    chunk_hash: bytes
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""


@dataclass(frozen=True)
class EncodedObjectKey:
    chunk_hash_hex: str
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""


@dataclass(frozen=True)
class KeyEntry:
    key: EncodedObjectKey
    size_bytes: int


@dataclass(frozen=True)
class KeyListPage:
    entries: tuple[KeyEntry, ...]
    next_page_token: str | None


@dataclass(frozen=True)
class L2StoreResult:
    success: bool
    bytes_moved: int

    def is_successful(self) -> bool:
        return self.success

    def bytes_transferred(self) -> int:
        return self.bytes_moved


@dataclass(frozen=True)
class AdapterUsage:
    total_bytes_used: int
    total_capacity_bytes: int
    bytes_by_cache_salt: Mapping[str, int] = field(default_factory=dict)


class L2AdapterInterface(ABC):
    """Counts what it is told, and keeps it for the test."""

    def __init__(self, max_capacity_bytes: int = 0) -> None:
        self._max_capacity_bytes = max_capacity_bytes
        self._lock = threading.Lock()
        self._by_salt: dict[str, int] = {}
        self._total = 0
        self.told: list[tuple[str, tuple[ObjectKey, ...]]] = []
        self.identity: tuple[str, bool] | None = None

    def set_backend_identity(self, name: str, shared: bool = False) -> None:
        self.identity = (name, shared)

    def _notify_keys_stored(self, keys: list[ObjectKey], sizes: list[int]) -> None:
        self._account("stored", keys, sizes)

    def _notify_keys_accessed(self, keys: list[ObjectKey]) -> None:
        self._account("accessed", keys, [0] * len(keys))

    def _notify_keys_deleted(self, keys: list[ObjectKey], sizes: list[int]) -> None:
        self._account("deleted", keys, [-size for size in sizes])

    def _account(self, what: str, keys: list[ObjectKey], sizes: list[int]) -> None:
        with self._lock:
            self.told.append((what, tuple(keys)))
            for key, size in zip(keys, sizes, strict=True):
                self._total += size
                self._by_salt[key.cache_salt] = self._by_salt.get(key.cache_salt, 0) + size

    def get_usage(self) -> AdapterUsage:
        with self._lock:
            positive = {salt: size for salt, size in self._by_salt.items() if size > 0}
            return AdapterUsage(self._total, self._max_capacity_bytes, positive)

    @abstractmethod
    def get_store_event_fd(self) -> int: ...
    @abstractmethod
    def get_lookup_and_lock_event_fd(self) -> int: ...
    @abstractmethod
    def get_load_event_fd(self) -> int: ...
    @abstractmethod
    def submit_store_task(self, keys: list[ObjectKey], objects: list[Any]) -> int: ...
    @abstractmethod
    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]: ...
    @abstractmethod
    def submit_lookup_and_lock_task(self, keys: list[ObjectKey], group_layout_descs: dict[int, Any]) -> int: ...
    @abstractmethod
    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None: ...
    @abstractmethod
    def submit_unlock(self, keys: list[ObjectKey]) -> None: ...
    @abstractmethod
    def submit_load_task(self, keys: list[ObjectKey], objects: list[Any]) -> int: ...
    @abstractmethod
    def query_load_result(self, task_id: int) -> Bitmap | None: ...
    @abstractmethod
    def close(self) -> None: ...


class L2AdapterConfigBase(ABC):
    @classmethod
    @abstractmethod
    def from_dict(cls, d: dict[str, Any]) -> L2AdapterConfigBase: ...
    @classmethod
    @abstractmethod
    def help(cls) -> str: ...


class MemoryObject:
    """Memory of the engine's: bytes that show themselves as ctypes does (format '<B'), and a count of references."""

    def __init__(self, size: int, fill: bytes = b"", tokens: int = 0) -> None:
        self.memory = (ctypes.c_ubyte * size)()
        self.size = size
        self.tokens = tokens
        self.references = 1
        ctypes.memmove(self.memory, fill, len(fill))

    @property
    def byte_array(self) -> memoryview:
        return memoryview(self.memory)[: self.size]

    def __bytes__(self) -> bytes:
        return bytes(self.memory)[: self.size]

    def get_size(self) -> int:
        return self.size

    def get_shapes(self) -> list[tuple[int, ...]]:
        return [(2, 1, self.tokens, 4)]

    def get_dtypes(self) -> list[int]:
        return [1]

    def get_memory_format(self) -> int:
        return 1

    def ref_count_up(self) -> None:
        self.references += 1

    def ref_count_down(self) -> None:
        self.references -= 1


TOKEN_BYTES = 64
CHUNK_TOKENS = 16
_METADATA = struct.Struct("7i")


@dataclass
class RemoteMetadata:
    length: int
    shapes: list[tuple[int, ...]]
    dtypes: list[int]
    fmt: int

    def serialize(self) -> bytes:
        [shape], [dtype] = self.shapes, self.dtypes
        return _METADATA.pack(self.length, self.fmt, dtype, *shape)

    @staticmethod
    def deserialize(s: bytes) -> RemoteMetadata:
        length, fmt, dtype, *shape = _METADATA.unpack_from(s)
        return RemoteMetadata(length, [tuple(shape)], [dtype], fmt)


class LocalMemory:
    """Allocates a bounded number of objects, and knows all that it gave."""

    def __init__(self, most: int = 1_000) -> None:
        self.given: list[MemoryObject] = []
        self.most = most

    def allocate(
        self, shapes: list[tuple[int, ...]], dtypes: list[int], fmt: int, eviction: bool = True, busy_loop: bool = True
    ) -> MemoryObject | None:
        if self.in_use >= self.most:
            return None
        [(_, _, tokens, _)] = shapes
        self.given.append(MemoryObject(tokens * TOKEN_BYTES, b"\xee" * tokens * TOKEN_BYTES, tokens))
        return self.given[-1]

    @property
    def in_use(self) -> int:
        return sum(one.references > 0 for one in self.given)


class RemoteConnector:
    def __init__(self, config: Any, metadata: Any) -> None:
        self.save_chunk_meta = bool((config.extra_config or {}).get("save_chunk_meta", True))
        self.meta_shapes = [(2, 1, CHUNK_TOKENS, 4)]
        self.meta_dtypes = [1]
        self.meta_fmt = 1
        self.full_chunk_size_bytes = CHUNK_TOKENS * TOKEN_BYTES
        self.single_token_size = TOKEN_BYTES
        self.remote_metadata_bytes = _METADATA.size

    def reshape_partial_chunk(self, memory_obj: MemoryObject, bytes_read: int) -> MemoryObject:
        if bytes_read % TOKEN_BYTES or not 0 < bytes_read <= self.full_chunk_size_bytes:
            raise ValueError(bytes_read)
        memory_obj.size, memory_obj.tokens = bytes_read, bytes_read // TOKEN_BYTES
        return memory_obj


class ConnectorAdapter(ABC):
    def __init__(self, schema: str = "") -> None:
        self.schema = schema

    @abstractmethod
    def create_connector(self, context: Any) -> RemoteConnector: ...


def extract_plugin_type(plugin_name: str) -> str:
    return plugin_name.split(".", 1)[0]


@dataclass
class ConnectorContext:
    url: str
    local_cpu_backend: LocalMemory
    config: Any
    metadata: Any = None
    plugin_name: str | None = None


@dataclass(frozen=True)
class CacheEngineKey:
    chunk: int
    model: str = "model"

    def to_string(self) -> str:
        return f"{self.model}@1@0@{self.chunk:x}@half"


MODULES: dict[str, dict[str, Any]] = {
    "lmcache.lmcache_native": {"Bitmap": Bitmap},
    "lmcache.v1.distributed.api": {
        "EncodedObjectKey": EncodedObjectKey,
        "KeyEntry": KeyEntry,
        "KeyListPage": KeyListPage,
    },
    "lmcache.v1.distributed.internal_api": {"L2StoreResult": L2StoreResult},
    "lmcache.v1.distributed.l2_adapters.base": {
        "AdapterUsage": AdapterUsage,
        "L2AdapterInterface": L2AdapterInterface,
    },
    "lmcache.v1.distributed.l2_adapters.config": {"L2AdapterConfigBase": L2AdapterConfigBase},
    "lmcache.v1.platform": {"create_event_notifier": Notifier},
    "lmcache.v1.protocol": {"RemoteMetadata": RemoteMetadata},
    "lmcache.v1.storage_backend.connector": {
        "ConnectorAdapter": ConnectorAdapter,
        "extract_plugin_type": extract_plugin_type,
    },
    "lmcache.v1.storage_backend.connector.base_connector": {"RemoteConnector": RemoteConnector},
}


@contextmanager
def in_place_of_lmcache() -> Iterator[None]:
    """These classes as LMCache's modules, for the faces that are imported meanwhile."""
    names = {".".join(name.split(".")[:depth]) for name in MODULES for depth in range(1, name.count(".") + 2)}
    ours = {*names, *FACES}
    kept = {name: sys.modules.pop(name) for name in ours if name in sys.modules}
    try:
        for name in sorted(names):
            module = types.ModuleType(name)
            module.__path__ = []
            vars(module).update(MODULES.get(name, {}))
            sys.modules[name] = module
        yield
    finally:
        for name in ours:
            sys.modules.pop(name, None)
        sys.modules.update(kept)
