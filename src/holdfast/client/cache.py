"""The client for threads: `Cache` runs an operation on its caller's thread. Any number of threads may share it.

Its calls are declared in `calls`; a `_call` runs one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from holdfast.client import calls, first_tries
from holdfast.client.arguments import checked_key, checked_keys, checked_text, checked_timeout
from holdfast.client.blocking_runner import Runner
from holdfast.client.buffers import BytesLike
from holdfast.client.calls import PutKeywords, PutMany, PutValue
from holdfast.client.first_tries import ASK
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


def open_cache(plan: ClientPlan, kind: type[Cache] | None = None, new_core: NewCore | None = None) -> Cache:
    """Connect; raises Unreachable if no master answers within 5 seconds, or within the timeout if that is less."""
    core, masters, timeout = plan.new_state(new_core)
    runner = Runner(core, masters, plan.tls)
    deadline = now_seconds() + min(timeout, CONNECT_SECONDS)
    try:
        runner.run(refresh(core, deadline), deadline)
    except BaseException:
        runner.close()
        raise
    return (kind or Cache)(core, runner, timeout)


class _Block(InPlace["Cache", S]):
    """The `with` block: it ends with the error that the caller's code raised, if there is one."""

    __slots__ = ()

    def __enter__(self) -> S:
        return self._cache._run_for(self._block.open, self._timeout)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        try:
            # The caller should see the error that the block raised.
            if kind is None:
                self._cache._run_for(self._block.close, self._timeout)
        finally:
            self._block.end()
        return False


class View(_Block[memoryview], OneInPlace["Cache"]):
    """`with cache.view(key) as view`: the object's bytes in place, read-only, under a lease that is kept alive."""

    __slots__ = ()


class Views(_Block[list[memoryview | HoldfastError | None]]):
    """`with cache.view_many(keys) as views`: as `View`, for many objects."""

    __slots__ = ()


class Reservation(ReservedObject["Cache"]):
    """Memory for one object, to be filled by parts from any thread; then `commit` stores it and `abandon` gives it
    back. The end of a `with` block abandons what was not committed."""

    __slots__ = ()

    @spelled_out
    def write(self, start: int, buffer: BytesLike, *, timeout: float | None = None) -> None:
        """Write bytes [start, start + length of the buffer). Every byte is written once. A write that fails costs the
        reservation."""
        self._cache._run_for(self._writes(start, buffer), timeout)

    @spelled_out
    def commit(self, *, timeout: float | None = None) -> bool:
        """Store it, when every byte is written. False: another put of the key came first, and its object is kept."""
        return only_outcome(self._cache.commit_many([self], timeout=timeout))

    def abandon(self) -> None:
        """Give the memory back. Does nothing if it was committed or has ended."""
        self._reserved.abandon(self._cache._core)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()


def _call(call: Callable[Concatenate[Core, float, P], Operation[T]]) -> Callable[Concatenate[Cache, P], T]:
    """The method that runs this call, within the caller's timeout or the client's."""

    def method(self: Cache, /, *args: P.args, **named: P.kwargs) -> T:
        seconds = self.timeout
        if "timeout" in named and (given := named.pop("timeout")) is not None:
            seconds = checked_timeout(given)
        deadline = now_seconds() + seconds
        return self._run(call(self._core, deadline, *args, **named), deadline)

    method.__qualname__ = f"Cache.{call.__name__}"
    return spelled_out(method, call)


class Cache(Shell):
    """A connected client. Close it, or use it in a `with` block.

    It also reads as a dict does: `key in cache`, `cache[key]`, `cache[key] = value`, `del cache[key]`, `len(cache)`,
    `for key in cache`. Each is a call to the cluster, within the client's timeout."""

    def __init__(self, core: Core, runner: Runner, timeout: float) -> None:
        super().__init__(core, runner, timeout)
        self._runner = runner
        self._run = runner.run
        self._at_once = runner.at_once

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run_for(self, operation: Callable[[float], Operation[T]], timeout: float | None) -> T:
        """Run the operation that ends by a deadline, within the caller's timeout or the client's."""
        deadline = self._deadline(timeout)
        return self._run(operation(deadline), deadline)

    @spelled_out
    def with_timeout(self, timeout: float) -> Cache:
        """This client with another timeout for its calls. Closing either closes both."""
        return type(self)(self._core, self._runner, checked_timeout(timeout))

    def close(self) -> None:
        """Give granted memory back, unmap, and hang up. Closing twice is harmless."""
        self._runner.close()

    put = _call(calls.put)

    @overload
    def put_many(
        self,
        items: PutMany,
        *,
        outcomes: Literal[False] = False,
        timeout: float | None = None,
        **keywords: Unpack[PutKeywords],
    ) -> int: ...
    @overload
    def put_many(
        self,
        items: PutMany,
        *,
        outcomes: Literal[True],
        timeout: float | None = None,
        **keywords: Unpack[PutKeywords],
    ) -> list[bool | HoldfastError]: ...
    @spelled_out
    def put_many(
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
            return self._put_each(items, timeout=timeout, **keywords)
        return self._put_many(items, timeout=timeout, **keywords)

    _put_many = _call(calls.put_many)
    _put_each = _call(calls.put_each)

    @overload
    def get(self, key: str, *, timeout: float | None = None) -> bytes: ...
    @overload
    def get(self, key: str, default: T, *, timeout: float | None = None) -> bytes | T: ...
    @spelled_out
    def get(self, key: str, default: Any = RAISE, timeout: float | None = None) -> Any:
        """The object's bytes. If there is none: `default` if that is given, else ObjectNotFound, a KeyError."""
        # `timeout` is not keyword-only here, though it is for type checkers: CPython calls a function that has such
        # parameters 40 ns slower, which is 5% of a get whose lease is live.
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
        found = first_tries.get(self._core, self._at_once, checked_key(key), deadline)
        if found is ASK or isinstance(found, tuple):
            place = found if isinstance(found, tuple) else None
            found = self._run(gets.get(self._core, key, deadline, place), deadline)
        return found if found is not None else absent(key, default)

    get_into = _call(calls.get_into)
    get_many = _call(calls.get_many)
    get_many_into = _call(calls.get_many_into)

    @spelled_out
    def view(self, key: str, *, timeout: float | None = None) -> View:
        """The object in place, without a copy: `with cache.view(key) as view`. LeaseLost is raised at the end of the
        block if the bytes seen may have been wrong."""
        return View(self, ViewBlock(self._core, checked_key(key)), timeout)

    @spelled_out
    def view_many(self, keys: Iterable[str], *, timeout: float | None = None) -> Views:
        """Many objects in place: `with cache.view_many(keys) as views`. One for each key, None where it is not stored,
        or the error of that key. Their leases are kept alive until the end of the block."""
        return Views(self, ViewsBlock(self._core, checked_keys(keys)), timeout)

    @spelled_out
    def exists(self, key: str, *, touch: bool = False, timeout: float | None = None) -> bool:
        """Is it stored and readable? `touch` also leases it and marks it as used, as a read does. False also while no
        node that holds it answers, though a put would still find the key taken."""
        checked_key(key)
        touch = bool(touch)
        if timeout is not None:
            timeout = checked_timeout(timeout)
        if not touch and (listed := self._core.in_key_table(key)) is not None:
            return listed
        deadline = now_seconds() + (timeout or self.timeout)
        there = first_tries.exists(self._core, self._at_once, key, touch, deadline)
        return self._run(verbs.exists(self._core, key, touch, deadline), deadline) if there is ASK else there

    def __contains__(self, key: str) -> bool:
        return self.exists(key)

    def __getitem__(self, key: str) -> bytes:
        """As `get`: ObjectNotFound, a KeyError, if it is not stored."""
        return self.get(key)

    def __setitem__(self, key: str, value: PutValue) -> None:
        """Store it, in the place of an object that the key has (`put` with `upsert`)."""
        self.put(key, value, upsert=True)

    def __delitem__(self, key: str) -> None:
        """As `remove`, but ObjectNotFound, a KeyError, if it is not stored."""
        if not self.remove(key):
            absent(key, RAISE)

    def __iter__(self) -> Iterator[str]:
        """As `keys`."""
        return self.keys()

    def __len__(self) -> int:
        """The number of keys that `keys` lists, which are counted one by one. Quicker, where there are no tenants:
        `status().objects`."""
        return sum(1 for _ in self.keys())

    exists_many = _call(calls.exists_many)
    lease_many = _call(calls.lease_many)
    release_many = _call(calls.release_many)
    use_many = _call(calls.use_many)

    @spelled_out
    def reserve(
        self, key: str, size: int, *, timeout: float | None = None, **keywords: Unpack[PutKeywords]
    ) -> Reservation | None:
        """Memory for one object, to be filled by parts. None: the key is there already (never with `upsert`)."""
        reserved = self._reserve(key, size, timeout=timeout, **keywords)
        return None if reserved is None else Reservation(self, reserved)

    @spelled_out
    def reserve_many(
        self,
        sizes: Mapping[str, int] | Iterable[tuple[str, int]],
        *,
        timeout: float | None = None,
        **keywords: Unpack[PutKeywords],
    ) -> list[Reservation | HoldfastError | None]:
        """Memory for many, in one request: per key its reservation, None if the key is there already, or its error."""
        outcomes = self._reserve_many(sizes, timeout=timeout, **keywords)
        return [Reservation(self, each) if isinstance(each, reservations.Reserved) else each for each in outcomes]

    _reserve = _call(calls.reserve)
    _reserve_many = _call(calls.reserve_many)

    @spelled_out
    def commit_many(
        self, reserved: Iterable[Reservation], *, timeout: float | None = None
    ) -> list[bool | HoldfastError]:
        """Store them in one request. Returns for each True, False if another put of the key came first, or its error; a
        reservation that failed may be committed again unless it was lost."""
        listed = own_reservations(self, Reservation, reserved)
        return self._run_for(lambda deadline: batch_reservations.commit_many(self._core, listed, deadline), timeout)

    @spelled_out
    def abandon_many(self, reserved: Iterable[Reservation]) -> None:
        """Give their memory back."""
        for each in own_reservations(self, Reservation, reserved):
            each.abandon(self._core)

    remove = _call(calls.remove)
    remove_many = _call(calls.remove_many)
    remove_matching = _call(calls.remove_matching)
    remove_all = _call(calls.remove_all)

    @overload
    def pin(self, which: str, *, hard: bool = False, timeout: float | None = None) -> bool: ...  # type: ignore[overload-overlap]  # A str is an iterable of str.
    @overload
    def pin(self, which: Iterable[str], *, hard: bool = False, timeout: float | None = None) -> list[bool]: ...
    @spelled_out
    def pin(self, which: str | Iterable[str], *, hard: bool = False, timeout: float | None = None) -> bool | list[bool]:
        """Pin what is stored: softly (evicted last, as long as it is used now and then), or `hard`. The pin takes the
        place of the one that it has. Returns whether it is stored; of several keys, a list of that."""
        found = self._pin(which, hard=hard, timeout=timeout)
        return found[0] if isinstance(which, str) else found

    @overload
    def unpin(self, which: str, *, timeout: float | None = None) -> bool: ...  # type: ignore[overload-overlap]  # A str is an iterable of str.
    @overload
    def unpin(self, which: Iterable[str], *, timeout: float | None = None) -> list[bool]: ...
    @spelled_out
    def unpin(self, which: str | Iterable[str], *, timeout: float | None = None) -> bool | list[bool]:
        """Take its pins away, soft and hard: it may be evicted as others are. Returns whether it is stored; of several
        keys, a list of that."""
        found = self._unpin(which, timeout=timeout)
        return found[0] if isinstance(which, str) else found

    _pin = _call(calls.pin)
    _unpin = _call(calls.unpin)

    @spelled_out
    def keys(self, prefix: str = "", *, timeout: float | None = None) -> Iterator[str]:
        """The keys that begin with `prefix`, in no order, fetched in pages as they are asked for. The timeout is for
        each page."""
        return self._keys(checked_text(prefix, "the prefix"), timeout)

    def _keys(self, prefix: str, timeout: float | None) -> Iterator[str]:
        page, cursor = self.some_keys(prefix, timeout=timeout)
        yield from page
        while cursor:
            page, cursor = self.some_keys(prefix, cursor, timeout=timeout)
            yield from page

    some_keys = _call(calls.some_keys)
    stat = _call(calls.stat)
    stat_many = _call(calls.stat_many)
    explain = _call(calls.explain)
    status = _call(calls.status)
    operate = _call(calls.operate)
    nodes = _call(calls.nodes)
