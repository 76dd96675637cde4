"""The client for asyncio: `AsyncCache` has the verbs of `Cache`, awaited. It belongs to one event loop."""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar, overload

from holdfast.client.arguments import (
    checked_items,
    checked_key,
    checked_keys,
    checked_sizes,
    checked_target,
    checked_targets,
    checked_text,
    checked_timeout,
    checked_tls,
    checked_value,
    put_options,
)
from holdfast.client.async_runner import AsyncRunner
from holdfast.client.buffers import BytesLike, flat
from holdfast.client.bytes.nodes import NodeBytes
from holdfast.client.operations import (
    batch_gets,
    batch_puts,
    batch_reservations,
    batch_views,
    buffer_gets,
    gets,
    lookups,
    puts,
    reservations,
    verbs,
    views,
)
from holdfast.client.operations.places import refresh
from holdfast.client.operations.verbs import Explanation
from holdfast.client.state.client import Core
from holdfast.client.targets import CallersRoom, Part
from holdfast.coordination.masters import Masters
from holdfast.errors import BadPattern, HoldfastError, ObjectNotFound, Refused
from holdfast.instant import now_seconds
from holdfast.messages.requests import NodeList, ObjectStat, Status

T = TypeVar("T")
PutMany: TypeAlias = (
    Mapping[str, BytesLike | Sequence[BytesLike]] | Iterable[tuple[str, BytesLike | Sequence[BytesLike]]]
)
CONNECT_SECONDS = 5.0
_RAISE: Any = object()


async def open_async_cache(
    address: str, call_seconds: float, token: str, tls: ssl.SSLContext | None, verify: bool, shared_memory: bool
) -> AsyncCache:
    """Connect; raises Unreachable if no master answers within 5 seconds, or within a call's time if that is less."""
    masters = Masters(address)
    call_seconds = checked_timeout(call_seconds)
    checked_tls(tls)
    core = Core(now_seconds, checked_text(token, "the token"), bool(verify), NodeBytes(bool(shared_memory), tls))
    runner = AsyncRunner(core, masters, tls)
    deadline = now_seconds() + min(call_seconds, CONNECT_SECONDS)
    try:
        await runner.run(refresh(core, deadline), deadline)
    except BaseException:
        await runner.close()
        raise
    return AsyncCache(core, runner, call_seconds)


class Connecting:
    """The result of `connect_async`: await it for a cache, or use it in an `async with`, which closes the cache."""

    def __init__(
        self, address: str, timeout: float, token: str, tls: ssl.SSLContext | None, verify: bool, shared_memory: bool
    ) -> None:
        self._open = functools.partial(open_async_cache, address, timeout, token, tls, verify, shared_memory)
        self._cache: AsyncCache | None = None

    def __await__(self) -> Generator[Any, None, AsyncCache]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncCache:
        self._cache = await self._open()
        return self._cache

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._cache is not None:
            await self._cache.close()


class AsyncView:
    """`async with cache.view(key) as view`: the object's bytes in place, read-only, under a lease kept alive."""

    __slots__ = ("_cache", "_key", "_viewed")

    def __init__(self, cache: AsyncCache, key: str) -> None:
        self._cache = cache
        self._key = key
        self._viewed: views.Viewed | None = None

    @property
    def revoked(self) -> bool:
        """Inside the block: has a node of this machine reported that the object was removed or moved? Its bytes stay
        right until its lease ends, but they are old: a caller that can should end the block and read again."""
        viewed = self._viewed
        return viewed is not None and viewed.open is not None and viewed.open.revoked

    async def __aenter__(self) -> memoryview:
        if self._viewed is not None:
            raise Refused(f"this view of {self._key!r} is open already; call view() again for another one")
        cache = self._cache
        deadline = now_seconds() + cache.timeout
        self._viewed = await cache._run(views.open_view(cache._core, self._key, deadline), deadline)
        return self._viewed.view

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        viewed, self._viewed = self._viewed, None
        if viewed is None:
            return False
        cache = self._cache
        try:
            # The caller should see the error that the block raised.
            if kind is None:
                deadline = now_seconds() + cache.timeout
                await cache._run(views.close_view(cache._core, viewed, deadline), deadline)
        finally:
            views.end_view(cache._core, viewed)
        return False


class AsyncViews:
    """`async with cache.view_many(keys) as views`: as `AsyncView`, for many objects."""

    __slots__ = ("_cache", "_keys", "_shown")

    def __init__(self, cache: AsyncCache, keys: list[str]) -> None:
        self._cache = cache
        self._keys = keys
        self._shown: list[batch_views.Shown] | None = None

    async def __aenter__(self) -> list[memoryview | HoldfastError | None]:
        if self._shown is not None:
            raise Refused("these views are open already; call view_many() again for others")
        cache = self._cache
        deadline = now_seconds() + cache.timeout
        self._shown = await cache._run(batch_views.open_views(cache._core, self._keys, deadline), deadline)
        return [each.view if isinstance(each, views.Viewed) else each for each in self._shown]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        shown, self._shown = self._shown, None
        if shown is None:
            return False
        cache = self._cache
        try:
            # The caller should see the error that the block raised.
            if kind is None:
                deadline = now_seconds() + cache.timeout
                await cache._run(batch_views.close_views(cache._core, shown, deadline), deadline)
        finally:
            batch_views.end_views(cache._core, shown)
        return False


class AsyncReservation:
    """Memory for one object, to be filled by parts by any task; then `commit` stores it and `abandon` gives it
    back. The end of an `async with` block abandons what was not committed."""

    __slots__ = ("_cache", "_reserved")

    def __init__(self, cache: AsyncCache, reserved: reservations.Reserved) -> None:
        self._cache = cache
        self._reserved = reserved

    @property
    def key(self) -> str:
        return self._reserved.key

    @property
    def size(self) -> int:
        return self._reserved.size

    async def write(self, start: int, buffer: BytesLike) -> None:
        """Write bytes [start, start + length of the buffer). Every byte is written once. A write that fails costs the
        reservation."""
        cache = self._cache
        deadline = now_seconds() + cache.timeout
        part = checked_value(buffer)
        await cache._run(reservations.write(cache._core, self._reserved, start, part, deadline), deadline)

    async def commit(self) -> bool:
        """Store it, when every byte is written. False: another put of the key came first, and its object is kept."""
        (outcome,) = await self._cache.commit_many([self])
        if isinstance(outcome, HoldfastError):
            raise outcome
        return outcome

    async def abandon(self) -> None:
        """Give the memory back. Does nothing if it was committed or has ended."""
        self._reserved.abandon(self._cache._core)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.abandon()


class AsyncCache:
    """A connected client. Close it, or use it in an `async with` block."""

    def __init__(self, core: Core, runner: AsyncRunner, timeout: float) -> None:
        self.timeout = timeout
        self._core = core
        self._runner = runner
        self._run = runner.run
        self._read_leased = core.read_leased

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def with_timeout(self, timeout: float) -> AsyncCache:
        """This client with another timeout for its calls. Closing either closes both."""
        return AsyncCache(self._core, self._runner, checked_timeout(timeout))

    async def close(self) -> None:
        """Give granted memory back, unmap, and hang up. Closing twice is harmless."""
        await self._runner.close()

    async def put(
        self,
        key: str,
        value: BytesLike | Sequence[BytesLike],
        *,
        replicas: int = 1,
        soft_pin: bool = False,
        hard_pin: bool = False,
        prefer: str | Sequence[str] | None = None,
        durability: str | None = None,
        upsert: bool = False,
    ) -> bool:
        """Store it. False: the key was there already, and keeps its object (unless `upsert`). The value is a buffer,
        or a list of them, whose bytes are stored one after the other."""
        options = put_options(replicas, soft_pin, hard_pin, prefer, durability, upsert)
        deadline = now_seconds() + self.timeout
        operation = puts.put(self._core, checked_key(key), checked_value(value), options, deadline)
        return await self._run(operation, deadline)

    @overload
    async def put_many(
        self,
        items: PutMany,
        *,
        replicas: int = 1,
        soft_pin: bool = False,
        hard_pin: bool = False,
        prefer: str | Sequence[str] | None = None,
        durability: str | None = None,
        upsert: bool = False,
        outcomes: Literal[False] = False,
    ) -> int: ...
    @overload
    async def put_many(
        self,
        items: PutMany,
        *,
        replicas: int = 1,
        soft_pin: bool = False,
        hard_pin: bool = False,
        prefer: str | Sequence[str] | None = None,
        durability: str | None = None,
        upsert: bool = False,
        outcomes: Literal[True],
    ) -> list[bool | HoldfastError]: ...
    async def put_many(
        self,
        items: PutMany,
        *,
        replicas: int = 1,
        soft_pin: bool = False,
        hard_pin: bool = False,
        prefer: str | Sequence[str] | None = None,
        durability: str | None = None,
        upsert: bool = False,
        outcomes: bool = False,
    ) -> int | list[bool | HoldfastError]:
        """Store all of them, given as a dict or as (key, value) pairs; the number stored. Keys that were there already
        keep their objects, and if a key is given twice the first value counts. With `outcomes`, a list instead: per key
        True, False if it was there already, or its error."""
        options = put_options(replicas, soft_pin, hard_pin, prefer, durability, upsert)
        given = checked_items(items)
        deadline = now_seconds() + self.timeout
        if outcomes:
            return await self._run(batch_puts.put_each(self._core, given, options, deadline), deadline)
        return await self._run(batch_puts.put_many(self._core, given, options, deadline), deadline)

    @overload
    async def get(self, key: str) -> bytes: ...
    @overload
    async def get(self, key: str, default: T) -> bytes | T: ...
    async def get(self, key: str, default: Any = _RAISE) -> Any:
        """The object's bytes. If there is none: `default` if that is given, else ObjectNotFound, a KeyError."""
        data = self._read_leased(key)
        if data is not None:
            return data
        deadline = now_seconds() + self.timeout
        data = await self._run(gets.get(self._core, checked_key(key), deadline), deadline)
        if data is not None:
            return data
        if default is _RAISE:
            raise ObjectNotFound(f"no object is stored under {key!r}")
        return default

    async def get_into(self, key: str, target: BytesLike | Sequence[BytesLike | Part]) -> int:
        """Copy the object into the caller's buffer, or into several, one after the other, and return its size in bytes;
        or copy `Part`s of it into theirs, and return the size of those. BufferTooSmall: nothing was copied."""
        room = CallersRoom(checked_key(key), checked_target(target))
        deadline = now_seconds() + self.timeout
        lease = await self._run(gets.get_into(self._core, key, room, deadline), deadline)
        if lease is None:
            raise ObjectNotFound(f"no object is stored under {key!r}; nothing was copied")
        return room.taken(lease.size_bytes)

    async def get_many_into(
        self,
        keys: Iterable[str],
        targets: Iterable[BytesLike | Sequence[BytesLike | Part]],
        *,
        verify: bool | None = None,
    ) -> list[int | HoldfastError]:
        """Copy each object into its target, as `get_into` does. Returns per key the number of bytes, 0 if it is not
        stored, or its error. `verify`, unless None, overrides the client's own setting."""
        listed, rooms = checked_targets(keys, targets)
        deadline = now_seconds() + self.timeout
        checked = None if verify is None else bool(verify)
        return await self._run(buffer_gets.get_many_into(self._core, listed, rooms, checked, deadline), deadline)

    def register(self, buffer: BytesLike) -> None:
        """Announce memory that will be put from or read into. Shared memory and TCP need no registration, so this only
        checks that it is a buffer."""
        flat(buffer, "the buffer")

    def unregister(self, buffer: BytesLike) -> None:
        """Announce that the memory is no longer used. It is checked as by `register`."""
        flat(buffer, "the buffer")

    async def get_many(
        self, keys: Iterable[str], *, errors: dict[str, HoldfastError] | None = None
    ) -> dict[str, bytes]:
        """The objects by key; keys that are not stored are left out. So are those that cannot be read at the moment
        because no node that holds them answers or gives the right bytes: the error of each is put into `errors`."""
        listed = checked_keys(keys)
        deadline = now_seconds() + self.timeout
        return await self._run(batch_gets.get_many(self._core, listed, errors, deadline), deadline)

    def view(self, key: str) -> AsyncView:
        """The object in place, without a copy: `async with cache.view(key) as view`. LeaseLost is raised at the end of
        the block if the bytes seen may have been wrong."""
        return AsyncView(self, checked_key(key))

    def view_many(self, keys: Iterable[str]) -> AsyncViews:
        """Many objects in place: `async with cache.view_many(keys) as views`. One for each key, None where it is not
        stored, or the error of that key. Their leases are kept alive until the end of the block."""
        return AsyncViews(self, checked_keys(keys))

    async def exists(self, key: str, *, touch: bool = False) -> bool:
        """Is it stored and readable? `touch` also leases it and marks it as used, as a read does. False also while no
        node that holds it answers, though a put would still find the key taken."""
        checked_key(key)
        shown = self._core.shown if not (touch or self._core.bytes.failing.by_address) else None
        if shown is not None and (there := shown.has(key)) is not None:
            return there
        deadline = now_seconds() + self.timeout
        return await self._run(verbs.exists(self._core, key, bool(touch), deadline), deadline)

    def leased_at_once(self, keys: Iterable[str]) -> list[bool]:
        """Which of these this client may read without asking a master, by a lease that is live now. Never waits."""
        return self._core.leases.are_live(checked_keys(keys), now_seconds())

    def exists_at_once(self, key: str) -> bool | None:
        """Is it stored, according to memory of this machine? None: only a master knows. Nothing is sent."""
        return self._core.shown_at_once(checked_key(key))

    async def exists_many(self, keys: Iterable[str], *, touch: bool = False) -> list[bool]:
        listed = checked_keys(keys)
        shown = self._core.shown if not (touch or self._core.bytes.failing.by_address) else None
        if shown is not None and (there := shown.has_each(listed)) is not None:
            return there
        deadline = now_seconds() + self.timeout
        return await self._run(verbs.exists_many(self._core, listed, bool(touch), deadline), deadline)

    async def lease_many(self, keys: Iterable[str]) -> list[int]:
        """Look up and lock: the size of each object that is leased now, 0 for a miss. The leases are kept alive until
        `release_many` has been called as often. A leased object is neither evicted nor removed without force."""
        listed = checked_keys(keys)
        deadline = now_seconds() + self.timeout
        return await self._run(lookups.lease_many(self._core, listed, deadline), deadline)

    async def release_many(self, keys: Iterable[str]) -> None:
        """Give up one lease of each; keys that are not leased are skipped."""
        self._core.held_leases.release(checked_keys(keys))

    async def use_many(self, keys: Iterable[str]) -> list[bool]:
        """Mark these as used, for the order of eviction, without leasing them. Returns which of them are stored."""
        listed = checked_keys(keys)
        deadline = now_seconds() + self.timeout
        return await self._run(lookups.use_many(self._core, listed, deadline), deadline)

    async def reserve(
        self,
        key: str,
        size: int,
        *,
        replicas: int = 1,
        soft_pin: bool = False,
        hard_pin: bool = False,
        prefer: str | Sequence[str] | None = None,
        upsert: bool = False,
    ) -> AsyncReservation | None:
        """Memory for one object, to be filled by parts. None: the key is there already (never with `upsert`)."""
        (outcome,) = await self.reserve_many(
            {key: size}, replicas=replicas, soft_pin=soft_pin, hard_pin=hard_pin, prefer=prefer, upsert=upsert
        )
        if isinstance(outcome, HoldfastError):
            raise outcome
        return outcome

    async def reserve_many(
        self,
        sizes: Mapping[str, int] | Iterable[tuple[str, int]],
        *,
        replicas: int = 1,
        soft_pin: bool = False,
        hard_pin: bool = False,
        prefer: str | Sequence[str] | None = None,
        upsert: bool = False,
    ) -> list[AsyncReservation | HoldfastError | None]:
        """Memory for many, in one request: per key its reservation, None if the key is there already, or its error."""
        options = put_options(replicas, soft_pin, hard_pin, prefer, None, upsert)
        keys, lengths = checked_sizes(sizes)
        deadline = now_seconds() + self.timeout
        operation = batch_reservations.reserve_many(self._core, keys, lengths, options, deadline)
        outcomes = await self._run(operation, deadline)
        return [AsyncReservation(self, each) if isinstance(each, reservations.Reserved) else each for each in outcomes]

    async def commit_many(self, reserved: Iterable[AsyncReservation]) -> list[bool | HoldfastError]:
        """Store them in one request. Returns for each True, False if another put of the key came first, or its error; a
        reservation that failed may be committed again unless it was lost."""
        listed = [self._own(each) for each in reserved]
        deadline = now_seconds() + self.timeout
        return await self._run(batch_reservations.commit_many(self._core, listed, deadline), deadline)

    async def abandon_many(self, reserved: Iterable[AsyncReservation]) -> None:
        """Give their memory back."""
        for each in [self._own(each) for each in reserved]:
            each.abandon(self._core)

    def _own(self, reservation: AsyncReservation) -> reservations.Reserved:
        if not isinstance(reservation, AsyncReservation):
            raise TypeError(f"a AsyncReservation is wanted, not {type(reservation).__name__}; nothing was changed")
        if reservation._cache is not self:
            raise Refused(f"{reservation.key!r} was reserved by another client; nothing was changed")
        return reservation._reserved

    async def remove(self, key: str, *, force: bool = False) -> int:
        """Remove it. Returns 1, or 0 if it was not there. ObjectLeased if it is being read, unless `force`."""
        deadline = now_seconds() + self.timeout
        return await self._run(verbs.remove(self._core, checked_key(key), bool(force), deadline), deadline)

    async def remove_many(self, keys: Iterable[str], *, force: bool = False) -> list[bool]:
        """Remove them. Returns per key whether it was there and is gone. Objects being read stay, unless `force`."""
        deadline = now_seconds() + self.timeout
        return await self._run(verbs.remove_many(self._core, checked_keys(keys), bool(force), deadline), deadline)

    async def remove_matching(self, regex: str, *, force: bool = False) -> int:
        """Remove the keys in which this RE2 expression is found; returns how many. Skips leased and pinned ones."""
        if not checked_text(regex, "the expression"):
            raise BadPattern(
                "the expression is empty, which would match every key; use remove_all. Nothing was removed"
            )
        deadline = now_seconds() + self.timeout
        return await self._run(verbs.remove_matching(self._core, regex, bool(force), deadline), deadline)

    async def remove_all(self, *, force: bool = False) -> int:
        """Remove everything that is not leased or pinned, or with `force` really everything; returns how many."""
        deadline = now_seconds() + self.timeout
        return await self._run(verbs.remove_matching(self._core, "", bool(force), deadline), deadline)

    def keys(self, prefix: str = "") -> AsyncIterator[str]:
        """The keys that begin with `prefix`, in no order, fetched as they are asked for."""
        return self._keys(checked_text(prefix, "the prefix"))

    async def _keys(self, prefix: str) -> AsyncIterator[str]:
        cursor = 0
        while True:
            deadline = now_seconds() + self.timeout
            page = await self._run(verbs.some_keys(self._core, prefix, cursor, deadline), deadline)
            for key in page.keys:
                yield key
            cursor = page.cursor
            if cursor == 0:
                return

    async def some_keys(self, prefix: str = "", cursor: int = 0) -> tuple[list[str], int]:
        """Some of the keys that begin with `prefix`, maybe none, and the cursor to go on with: 0 at the end."""
        deadline = now_seconds() + self.timeout
        found = await self._run(
            verbs.some_keys(self._core, checked_text(prefix, "the prefix"), cursor, deadline), deadline
        )
        return found.keys, found.cursor

    async def stat(self, key: str) -> ObjectStat:
        """The master's knowledge of an object: its size, replicas, lease and pins."""
        deadline = now_seconds() + self.timeout
        return await self._run(verbs.stat(self._core, checked_key(key), deadline), deadline)

    async def stat_many(self, keys: Iterable[str]) -> list[ObjectStat | None]:
        """As `stat`, per key; None for a key that is not stored."""
        deadline = now_seconds() + self.timeout
        return await self._run(verbs.stat_many(self._core, checked_keys(keys), deadline), deadline)

    async def explain(self, key: str) -> Explanation:
        """Why an object is kept, or what removed it."""
        deadline = now_seconds() + self.timeout
        return await self._run(verbs.explain(self._core, checked_key(key), deadline), deadline)

    async def status(self) -> Status:
        """The master's own view of the cluster."""
        deadline = now_seconds() + self.timeout
        return await self._run(verbs.status(self._core, deadline), deadline)

    async def nodes(self) -> NodeList:
        """The nodes and how they stand."""
        deadline = now_seconds() + self.timeout
        return await self._run(verbs.nodes(self._core, deadline), deadline)
