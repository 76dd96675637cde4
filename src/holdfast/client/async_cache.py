"""The client for asyncio: `AsyncCache` has the calls of `Cache`, awaited. It belongs to one event loop.

Its calls are declared in `calls`; a `_call` runs one of them.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NoReturn, ParamSpec, Self, TypeVar, Unpack, overload

from holdfast.client import calls
from holdfast.client.arguments import checked_key, checked_keys, checked_text, checked_timeout
from holdfast.client.async_runner import AsyncRunner
from holdfast.client.buffers import BytesLike
from holdfast.client.calls import PutKeywords, PutMany
from holdfast.client.operations import batch_reservations, gets, reservations, verbs
from holdfast.client.operations.batch_views import ViewsBlock
from holdfast.client.operations.places import refresh
from holdfast.client.operations.views import ViewBlock
from holdfast.client.parameters import spelled_out
from holdfast.client.shell import (
    CONNECT_SECONDS,
    RAISE,
    ClientPlan,
    InPlace,
    NewCore,
    OneInPlace,
    ReservedObject,
    Shell,
    absent,
    only_outcome,
    own_reservations,
)
from holdfast.client.state.client import Core
from holdfast.errors import HoldfastError
from holdfast.instant import now_seconds
from holdfast.operations.effects import Operation

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


async def open_async_cache(
    plan: ClientPlan, kind: type[AsyncCache] | None = None, new_core: NewCore | None = None
) -> AsyncCache:
    """Connect; raises Unreachable if no master answers within 5 seconds, or within a call's time if that is less."""
    core, masters, call_seconds = plan.new_state(new_core)
    runner = AsyncRunner(core, masters, plan.tls)
    deadline = now_seconds() + min(call_seconds, CONNECT_SECONDS)
    try:
        await runner.run(refresh(core, deadline), deadline)
    except BaseException:
        await runner.close()
        raise
    return (kind or AsyncCache)(core, runner, call_seconds)


def _refusal(text: str) -> Callable[..., NoReturn]:
    """A special method that cannot be awaited; its error says what can."""

    def refuse(self: object, *_: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__}: {text}")

    return refuse


NOT_AWAITED = (
    "the client is not connected yet: write `cache = await holdfast.connect_async(...)`, or "
    "`async with holdfast.connect_async(...) as cache`"
)


class Connecting:
    """The result of `connect_async`: await it for a cache, or use it in an `async with`, which closes the cache."""

    # Type checkers are not to see these: they refuse what is not there.
    if not TYPE_CHECKING:
        __enter__ = __exit__ = _refusal(NOT_AWAITED)
        __contains__ = __getitem__ = __setitem__ = __delitem__ = __len__ = __iter__ = __aiter__ = __enter__

        def __getattr__(self, name: str) -> NoReturn:
            told = NOT_AWAITED if hasattr(AsyncCache, name) and not name.startswith("_") else "there is no such name"
            raise AttributeError(f"{type(self).__name__}.{name}: {told}", name=name, obj=self)

    def __init__(self, plan: ClientPlan, kind: type[AsyncCache] | None = None, new_core: NewCore | None = None) -> None:
        self._open = functools.partial(open_async_cache, plan, kind, new_core)
        self._cache: AsyncCache | None = None

    def __bool__(self) -> Literal[True]:
        return True

    def __await__(self) -> Generator[Any, None, AsyncCache]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncCache:
        self._cache = await self._open()
        return self._cache

    async def __aexit__(self, *_: object) -> None:
        if self._cache is not None:
            await self._cache.close()


class _Block(InPlace["AsyncCache", S]):
    """The `async with` block: it ends with the error that the caller's code raised, if there is one."""

    __slots__ = ()
    if not TYPE_CHECKING:
        __enter__ = __exit__ = _refusal("write `async with`")

    async def __aenter__(self) -> S:
        return await self._cache._run_for(self._block.open, self._timeout)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            # The caller should see the error that the block raised.
            if kind is None:
                await self._cache._run_for(self._block.close, self._timeout)
        finally:
            self._block.end()
        return False


class AsyncView(_Block[memoryview], OneInPlace["AsyncCache"]):
    """`async with cache.view(key) as view`: the object's bytes in place, read-only, under a lease kept alive."""

    __slots__ = ()


class AsyncViews(_Block[list[memoryview | HoldfastError | None]]):
    """`async with cache.view_many(keys) as views`: as `AsyncView`, for many objects."""

    __slots__ = ()


class AsyncReservation(ReservedObject["AsyncCache"]):
    """Memory for one object, to be filled by parts by any task; then `commit` stores it and `abandon` gives it
    back. The end of an `async with` block abandons what was not committed."""

    __slots__ = ()

    @spelled_out
    async def write(self, start: int, buffer: BytesLike, *, timeout: float | None = None) -> None:
        """Write bytes [start, start + length of the buffer). Every byte is written once. A write that fails costs the
        reservation."""
        await self._cache._run_for(self._writes(start, buffer), timeout)

    @spelled_out
    async def commit(self, *, timeout: float | None = None) -> bool:
        """Store it, when every byte is written. False: another put of the key came first, and its object is kept."""
        return only_outcome(await self._cache.commit_many([self], timeout=timeout))

    async def abandon(self) -> None:
        """Give the memory back. Does nothing if it was committed or has ended."""
        self._reserved.abandon(self._cache._core)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.abandon()


def _call(
    call: Callable[Concatenate[Core, float, P], Operation[T]],
) -> Callable[Concatenate[AsyncCache, P], Coroutine[Any, Any, T]]:
    """The method that runs this call, within the caller's timeout or the client's."""

    async def method(self: AsyncCache, /, *args: P.args, **named: P.kwargs) -> T:
        seconds = self.timeout
        if "timeout" in named and (given := named.pop("timeout")) is not None:
            seconds = checked_timeout(given)
        deadline = now_seconds() + seconds
        return await self._run(call(self._core, deadline, *args, **named), deadline)

    method.__qualname__ = f"AsyncCache.{call.__name__}"
    return spelled_out(method, call)


class AsyncCache(Shell):
    """A connected client. Close it, or use it in an `async with` block. It belongs to the event loop in which it was
    connected. `async for key in cache` lists the keys."""

    if not TYPE_CHECKING:
        __enter__ = __exit__ = _refusal("write `async with`")
        __contains__ = _refusal("`in` cannot be awaited; write `await cache.exists(key)`")
        __getitem__ = _refusal("`cache[key]` cannot be awaited; write `await cache.get(key)`")
        __setitem__ = _refusal("an assignment cannot be awaited; write `await cache.put(key, value, upsert=True)`")
        __delitem__ = _refusal("`del` cannot be awaited; write `await cache.remove(key)`")
        __len__ = _refusal("`len` cannot be awaited; write `(await cache.status()).objects`, or count the keys")
        __iter__ = _refusal("write `async for key in cache`")

    def __init__(self, core: Core, runner: AsyncRunner, timeout: float) -> None:
        super().__init__(core, runner, timeout)
        self._runner = runner
        self._run = runner.run

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run_for(self, operation: Callable[[float], Operation[T]], timeout: float | None) -> T:
        """Run the operation that ends by a deadline, within the caller's timeout or the client's."""
        deadline = self._deadline(timeout)
        return await self._run(operation(deadline), deadline)

    @spelled_out
    def with_timeout(self, timeout: float) -> AsyncCache:
        """This client with another timeout for its calls. Closing either closes both."""
        return type(self)(self._core, self._runner, checked_timeout(timeout))

    async def close(self) -> None:
        """Give granted memory back, unmap, and hang up. Closing twice is harmless."""
        await self._runner.close()

    put = _call(calls.put)

    @overload
    async def put_many(
        self,
        items: PutMany,
        *,
        outcomes: Literal[False] = False,
        timeout: float | None = None,
        **keywords: Unpack[PutKeywords],
    ) -> int: ...
    @overload
    async def put_many(
        self,
        items: PutMany,
        *,
        outcomes: Literal[True],
        timeout: float | None = None,
        **keywords: Unpack[PutKeywords],
    ) -> list[bool | HoldfastError]: ...
    @spelled_out
    async def put_many(
        self,
        items: PutMany,
        *,
        outcomes: bool = False,
        timeout: float | None = None,
        **keywords: Unpack[PutKeywords],
    ) -> int | list[bool | HoldfastError]:
        """Store all of them, given as a dict or as (key, value) pairs. Returns the number stored; keys that were there
        already keep their objects. With `outcomes`, a list instead: per key True, False if it was there already, or
        its error."""
        if outcomes:
            return await self._put_each(items, timeout=timeout, **keywords)
        return await self._put_many(items, timeout=timeout, **keywords)

    _put_many = _call(calls.put_many)
    _put_each = _call(calls.put_each)

    @overload
    async def get(self, key: str, *, timeout: float | None = None) -> bytes: ...
    @overload
    async def get(self, key: str, default: T, *, timeout: float | None = None) -> bytes | T: ...
    @spelled_out
    async def get(self, key: str, default: Any = RAISE, timeout: float | None = None) -> Any:
        """The object's bytes. If there is none: `default` if that is given, else ObjectNotFound, a KeyError."""
        if timeout is not None:
            timeout = checked_timeout(timeout)
        try:
            data = self._read_leased(key)
        except TypeError:
            checked_key(key)  # A list is no key, which says more than that it cannot be hashed.
            raise
        if data is not None:
            return data
        deadline = now_seconds() + (timeout or self.timeout)
        data = await self._run(gets.get(self._core, checked_key(key), deadline), deadline)
        return data if data is not None else absent(key, default)

    get_into = _call(calls.get_into)
    get_many = _call(calls.get_many)
    get_many_into = _call(calls.get_many_into)

    @spelled_out
    def view(self, key: str, *, timeout: float | None = None) -> AsyncView:
        """The object in place, without a copy: `async with cache.view(key) as view`. LeaseLost is raised at the end of
        the block if the bytes seen may have been wrong."""
        return AsyncView(self, ViewBlock(self._core, checked_key(key)), timeout)

    @spelled_out
    def view_many(self, keys: Iterable[str], *, timeout: float | None = None) -> AsyncViews:
        """Many objects in place: `async with cache.view_many(keys) as views`. One for each key, None where it is not
        stored, or the error of that key. Their leases are kept alive until the end of the block."""
        return AsyncViews(self, ViewsBlock(self._core, checked_keys(keys)), timeout)

    @spelled_out
    async def exists(self, key: str, *, touch: bool = False, timeout: float | None = None) -> bool:
        """Is it stored and readable? `touch` also leases it and marks it as used, as a read does. False also while no
        node that holds it answers, though a put would still find the key taken."""
        checked_key(key)
        touch = bool(touch)
        if timeout is not None:
            timeout = checked_timeout(timeout)
        if not touch and (listed := self._core.in_key_table(key)) is not None:
            return listed
        deadline = now_seconds() + (timeout or self.timeout)
        return await self._run(verbs.exists(self._core, key, touch, deadline), deadline)

    exists_many = _call(calls.exists_many)
    lease_many = _call(calls.lease_many)
    release_many = _call(calls.release_many)
    use_many = _call(calls.use_many)

    @spelled_out
    async def reserve(
        self, key: str, size: int, *, timeout: float | None = None, **keywords: Unpack[PutKeywords]
    ) -> AsyncReservation | None:
        """Memory for one object, to be filled by parts. None: the key is there already (never with `upsert`)."""
        reserved = await self._reserve(key, size, timeout=timeout, **keywords)
        return None if reserved is None else AsyncReservation(self, reserved)

    @spelled_out
    async def reserve_many(
        self,
        sizes: Mapping[str, int] | Iterable[tuple[str, int]],
        *,
        timeout: float | None = None,
        **keywords: Unpack[PutKeywords],
    ) -> list[AsyncReservation | HoldfastError | None]:
        """Memory for many, in one request: per key its reservation, None if the key is there already, or its error."""
        outcomes = await self._reserve_many(sizes, timeout=timeout, **keywords)
        return [AsyncReservation(self, each) if isinstance(each, reservations.Reserved) else each for each in outcomes]

    _reserve = _call(calls.reserve)
    _reserve_many = _call(calls.reserve_many)

    @spelled_out
    async def commit_many(
        self, reserved: Iterable[AsyncReservation], *, timeout: float | None = None
    ) -> list[bool | HoldfastError]:
        """Store them in one request. Returns for each True, False if another put of the key came first, or its error; a
        reservation that failed may be committed again unless it was lost."""
        listed = own_reservations(self, AsyncReservation, reserved)
        return await self._run_for(
            lambda deadline: batch_reservations.commit_many(self._core, listed, deadline), timeout
        )

    @spelled_out
    async def abandon_many(self, reserved: Iterable[AsyncReservation]) -> None:
        """Give their memory back."""
        for each in own_reservations(self, AsyncReservation, reserved):
            each.abandon(self._core)

    remove = _call(calls.remove)
    remove_many = _call(calls.remove_many)
    remove_matching = _call(calls.remove_matching)
    remove_all = _call(calls.remove_all)

    @overload
    async def pin(self, which: str, *, hard: bool = False, timeout: float | None = None) -> bool: ...  # type: ignore[overload-overlap]  # A str is an iterable of str.
    @overload
    async def pin(self, which: Iterable[str], *, hard: bool = False, timeout: float | None = None) -> list[bool]: ...
    @spelled_out
    async def pin(
        self, which: str | Iterable[str], *, hard: bool = False, timeout: float | None = None
    ) -> bool | list[bool]:
        """Pin what is stored: softly (evicted last, as long as it is used now and then), or `hard`. The pin takes the
        place of the one that it has. Returns whether it is stored; of several keys, a list of that."""
        found = await self._pin(which, hard=hard, timeout=timeout)
        return found[0] if isinstance(which, str) else found

    @overload
    async def unpin(self, which: str, *, timeout: float | None = None) -> bool: ...  # type: ignore[overload-overlap]  # A str is an iterable of str.
    @overload
    async def unpin(self, which: Iterable[str], *, timeout: float | None = None) -> list[bool]: ...
    @spelled_out
    async def unpin(self, which: str | Iterable[str], *, timeout: float | None = None) -> bool | list[bool]:
        """Take its pins away, soft and hard: it may be evicted as others are. Returns whether it is stored; of several
        keys, a list of that."""
        found = await self._unpin(which, timeout=timeout)
        return found[0] if isinstance(which, str) else found

    _pin = _call(calls.pin)
    _unpin = _call(calls.unpin)

    @spelled_out
    def keys(self, prefix: str = "", *, timeout: float | None = None) -> AsyncIterator[str]:
        """The keys that begin with `prefix`, in no order, fetched in pages as they are asked for. The timeout is for
        each page."""
        return self._keys(checked_text(prefix, "the prefix"), timeout)

    async def _keys(self, prefix: str, timeout: float | None) -> AsyncIterator[str]:
        page, cursor = await self.some_keys(prefix, timeout=timeout)
        while True:
            for key in page:
                yield key
            if not cursor:
                return
            page, cursor = await self.some_keys(prefix, cursor, timeout=timeout)

    def __aiter__(self) -> AsyncIterator[str]:
        """As `keys`."""
        return self.keys()

    some_keys = _call(calls.some_keys)
    stat = _call(calls.stat)
    stat_many = _call(calls.stat_many)
    explain = _call(calls.explain)
    status = _call(calls.status)
    nodes = _call(calls.nodes)
