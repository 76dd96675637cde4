"""LMCache's in-process mode: a remote connector on holdfast, for `holdfast://HOST:PORT` and `plugin://holdfast[.NAME]`.

With `save_chunk_meta` an object is LMCache's metadata and then the chunk's bytes, put and read as two buffers in one
go, so that nothing is copied to join or to part them. Without, it is the bytes alone, and a shorter object is a chunk
of fewer tokens. The connector never raises: LMCache would drop it, and try again only after ten seconds.

LMCache may stop waiting for a call (`blocking_timeout_secs`) while a worker still reads or fills its memory. So the
worker holds a reference of its own to what it sends, and gives back what it has read for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qsl

from lmcache.v1.protocol import RemoteMetadata
from lmcache.v1.storage_backend.connector import ConnectorAdapter, extract_plugin_type
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from holdfast import Part
from holdfast.integrations.lmcache.keys import META, RAW
from holdfast.integrations.lmcache.options import BadOption, LmcacheOptions
from holdfast.integrations.lmcache.shared_pool import SharedPool

T = TypeVar("T")
MemoryObj = Any
ChunkKey = Any
# The interface has a method called `list`, so its class needs other names for the type.
Keys: TypeAlias = list[ChunkKey]
Names: TypeAlias = list[str]
Objects: TypeAlias = list[MemoryObj]
Found: TypeAlias = list[MemoryObj | None]
Wanted: TypeAlias = "list[_Wanted]"
SCHEME = "holdfast://"
PLUGIN = "plugin://"
OWN_KEYS = ("module_path", "class_name")


class HoldfastConnectorAdapter(ConnectorAdapter):
    """Makes connectors from a URL and from `extra_config` (`remote_storage_plugin.NAME.KEY`)."""

    def __init__(self) -> None:
        super().__init__(SCHEME)

    def can_parse(self, url: str) -> bool:
        return url.startswith(SCHEME) or (url.startswith(PLUGIN) and _plugin_type(url) == "holdfast")

    def create_connector(self, context: Any) -> HoldfastRemoteConnector:
        return HoldfastRemoteConnector(options_of(context), context)


def options_of(context: Any) -> LmcacheOptions:
    name = context.plugin_name or "holdfast"
    start = f"remote_storage_plugin.{name}."
    extra: Mapping[str, object] = getattr(context.config, "extra_config", None) or {}
    given = {key.removeprefix(start): value for key, value in extra.items() if key.startswith(start)}
    # Of "holdfast", these would be options of the instances "holdfast.NAME".
    given = {key: value for key, value in given.items() if key not in OWN_KEYS and "." not in key}
    if context.url.startswith(SCHEME):
        address, _, query = context.url.removeprefix(SCHEME).partition("?")
        given |= {"address": address.rstrip("/"), **dict(parse_qsl(query, keep_blank_values=True))}
        if not given["address"]:
            raise BadOption(f"{context.url!r} names no master; write holdfast://HOST:PORT")
    return LmcacheOptions.from_mapping(given, f"extra_config ({start}*)")


class HoldfastRemoteConnector(RemoteConnector):
    def __init__(self, options: LmcacheOptions, context: Any) -> None:
        super().__init__(context.config, context.metadata)
        self._memory = context.local_cpu_backend
        self._pool = SharedPool(options, META if self.save_chunk_meta else RAW)
        self._workers = ThreadPoolExecutor(2 * options.workers, "holdfast-lmcache")

    def exists_sync(self, key: ChunkKey) -> bool:
        return self._hits([key]) == 1

    async def exists(self, key: ChunkKey) -> bool:
        return await self._run("a lookup", lambda: self.exists_sync(key), False)

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: Keys) -> int:
        return self._hits(keys)

    async def batched_async_contains(self, lookup_id: str, keys: Keys, pin: bool = False) -> int:
        return await self._run("a lookup", lambda: self._hits(keys), 0)

    async def get(self, key: ChunkKey) -> MemoryObj | None:
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys: Keys) -> Found:
        listed = list(keys)
        missed: Found = [None] * len(listed)
        return await self._run("a load", lambda: self._load(listed), missed, _give_back)

    async def batched_get_non_blocking(self, lookup_id: str, keys: Keys) -> Objects:
        """The chunks before the first miss."""
        found = await self.batched_get(keys)
        hits = found.index(None) if None in found else len(found)
        _give_back(found[hits:])
        return found[:hits]

    async def put(self, key: ChunkKey, memory_obj: MemoryObj) -> None:
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        return True

    async def batched_put(self, keys: Keys, memory_objs: Objects) -> None:
        names, objects = [key.to_string() for key in keys], list(memory_objs)
        for one in objects:
            one.ref_count_up()

        def store() -> None:
            try:
                self._store(names, objects)
            finally:
                _give_back(objects)

        await self._run("a store", store, None, never_ran=lambda: _give_back(objects))

    async def list(self) -> Names:
        return await self._run("a listing", self._names, [])

    def remove_sync(self, key: ChunkKey) -> bool:
        """In this mode LMCache removes by force: who reads the chunk meanwhile has a miss."""
        return self._pool.remove([key.to_string()], force=True)[0]

    def support_ping(self) -> bool:
        """LMCache bypasses even its own memory after a failed ping; so it is given none to fail, unless asked."""
        return self._pool.options.ping

    async def ping(self) -> int:
        return 0 if self._pool.is_up else 1

    async def close(self) -> None:
        def end() -> None:
            self._workers.shutdown()
            self._pool.close()

        await asyncio.to_thread(end)

    def _hits(self, keys: Keys) -> int:
        """How many are stored before the first that is not. They are leased as by a read, because a read follows."""
        found = [bool(one) for one in self._pool.present([key.to_string() for key in keys])]
        return found.index(False) if False in found else len(found)

    def _names(self) -> Names:
        names: Names = []
        cursor = 0
        while True:
            some, cursor = self._pool.some_names("", cursor)
            names += some
            if not cursor:
                return names

    def _store(self, names: Names, objects: Objects) -> None:
        values: list[Any] = []
        for one in objects:
            data = memoryview(one.byte_array)
            if self.save_chunk_meta:
                shapes, dtypes = one.get_shapes(), one.get_dtypes()
                values.append([RemoteMetadata(data.nbytes, shapes, dtypes, one.get_memory_format()).serialize(), data])
            else:
                values.append(data)
        outcomes = self._pool.store(names, values)
        self._pool.count(
            stored_bytes=sum(one.get_size() for one, done in zip(objects, outcomes, strict=True) if done is True)
        )

    def _load(self, keys: Keys) -> Found:
        names = [key.to_string() for key in keys]
        sizes = self._pool.lookup(names) or [0] * len(names)
        wanted = [_Wanted(index, names[index], size) for index, size in enumerate(sizes) if size]
        loaded: Found = [None] * len(names)
        try:
            if self.save_chunk_meta:
                self._allocate_by_metadata(wanted)
            else:
                self._allocate_chunks(wanted)
            for one in self._filled([one for one in wanted if one.memory is not None]):
                loaded[one.place], one.memory = one.memory, None
            return loaded
        finally:
            _give_back([one.memory for one in wanted])
            self._pool.release([one.name for one in wanted])

    def _allocate_chunks(self, wanted: Wanted) -> None:
        for one in wanted:
            # A size that no chunk of this model can have is of another model.
            if one.size <= self.full_chunk_size_bytes and one.size % self.single_token_size == 0:
                one.memory = self._memory.allocate(self.meta_shapes, self.meta_dtypes, self.meta_fmt, busy_loop=False)

    def _allocate_by_metadata(self, wanted: Wanted) -> None:
        """Reads the metadata, which says what to allocate; under the lease this asks no master."""
        length = self.remote_metadata_bytes
        whole = [one for one in wanted if one.size > length]
        for one in whole:
            one.head = bytearray(length)
        read = self._pool.load([one.name for one in whole], [[Part(0, one.head)] for one in whole])
        for one, size in zip(whole, read, strict=True):
            if not size:
                continue
            metadata = RemoteMetadata.deserialize(bytes(one.head))
            if metadata.length == one.size - length:
                one.memory = self._memory.allocate(metadata.shapes, metadata.dtypes, metadata.fmt, busy_loop=False)

    def _filled(self, wanted: Wanted) -> Iterator[_Wanted]:
        """Those that were read whole, checksums compared."""
        heads = [bytearray(len(one.head)) for one in wanted]
        targets = [
            [head, memoryview(one.memory.byte_array)] if head else memoryview(one.memory.byte_array)
            for one, head in zip(wanted, heads, strict=True)
        ]
        read = self._pool.load([one.name for one in wanted], targets)
        for one, head, size in zip(wanted, heads, read, strict=True):
            # Another object may have come under the key since it was looked up: its size or metadata tell.
            if size != one.size or head != one.head:
                continue
            if not head:
                one.memory = self.reshape_partial_chunk(one.memory, size)
            yield one

    async def _run(
        self,
        doing: str,
        work: Callable[[], T],
        failed: T,
        give_back: Callable[[Any], object] = lambda _: None,
        never_ran: Callable[[], object] = lambda: None,
    ) -> T:
        """Run it in a worker. `give_back` gets a result that nobody waits for any more."""

        def run() -> T:
            try:
                return work()
            except Exception as error:  # noqa: BLE001 - LMCache would drop the connector; it is logged.
                self._pool.failures.note(doing, error)
                return failed

        try:
            future: Future[T] = self._workers.submit(run)
        except RuntimeError as error:  # It was closed.
            self._pool.failures.note(doing, error)
            never_ran()
            return failed
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if future.cancel():
                never_ran()
            else:
                future.add_done_callback(lambda done: give_back(done.result()))
            raise


@dataclass(slots=True)
class _Wanted:
    """A chunk that is leased, on its way into LMCache's memory."""

    place: int
    name: str
    size: int
    head: bytearray = field(default_factory=bytearray)
    memory: MemoryObj = None


def _give_back(objects: Found) -> None:
    for one in objects:
        if one is not None:
            one.ref_count_down()


def _plugin_type(url: str) -> str:
    return str(extract_plugin_type(url.removeprefix(PLUGIN)))
