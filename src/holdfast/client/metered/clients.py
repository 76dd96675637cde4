"""Clients that count: `Cache` and `AsyncCache` with `ClientMetrics` around every call.

They are classes of their own, made only where metrics are wanted: a client without them has not one statement more.
Bytes over TCP and retries are counted where they happen (`MeteredBytes`, `MeteredCore`), the rest from what a call was
given and gave.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.client.async_cache import AsyncCache
from holdfast.client.buffers import flat
from holdfast.client.bytes.nodes import NodeBytes, WantedBytes
from holdfast.client.cache import Cache
from holdfast.client.metered.metrics import ClientMetrics
from holdfast.client.shell import NewCore
from holdfast.client.state.client import Core
from holdfast.errors import HoldfastError, ObjectNotFound
from holdfast.ids import GrantId
from holdfast.instant import now_ns, now_seconds
from holdfast.messages.shapes import Range, SegmentPlace
from holdfast.transport.data_tcp import WantedRange


class MeteredBytes(NodeBytes):
    def __init__(self, shared_memory: bool, tls: ssl.SSLContext | None, metrics: ClientMetrics) -> None:
        super().__init__(shared_memory, tls)
        self._metrics = metrics

    def _read_one(
        self, place: SegmentPlace, wanted: WantedRange, checksum: bool, deadline: float, hurried: bool
    ) -> int:
        digest = super()._read_one(place, wanted, checksum, deadline, hurried)
        self._metrics._moved(read=wanted.target.nbytes)
        return digest

    def read_many(
        self,
        place: SegmentPlace,
        wanted: Sequence[tuple[WantedBytes, memoryview]],
        deadline: float,
        hurried: bool = False,
    ) -> None:
        super().read_many(place, wanted, deadline, hurried)
        self._metrics._moved(read=sum(target.nbytes for _, target in wanted))

    def write(
        self,
        place: SegmentPlace,
        grant: GrantId,
        piece: Range,
        length: int,
        values: Sequence[tuple[int, Sequence[memoryview]]],
        checksum: bool,
        deadline: float,
    ) -> list[int]:
        checksums = super().write(place, grant, piece, length, values, checksum, deadline)
        self._metrics._moved(written=sum(source.nbytes for _, parts in values for source in parts))
        return checksums


class MeteredCore(Core):
    def __init__(
        self, metrics: ClientMetrics, token: str, verify: bool, shared_memory: bool, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(now_seconds, token, verify, MeteredBytes(shared_memory, tls, metrics))
        self.metrics = metrics

    def tried_again(self) -> None:
        self.metrics._retried()


class CallFigures(NamedTuple):
    """What a call found and moved."""

    hits: int = 0
    misses: int = 0
    read: int = 0
    written: int = 0


NONE = CallFigures()
_ONE_MISS = CallFigures(misses=1)


def _size(value: Any) -> int:
    if type(value) is bytes:
        return len(value)
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return flat(value, "the value").nbytes


def _of_put(found: bool, named: Mapping[str, Any], key: str, value: Any, **_: Any) -> CallFigures:
    return CallFigures(written=_size(value) * named.get("replicas", 1)) if found else NONE


def _of_put_many(found: Any, named: Mapping[str, Any], items: Any, **_: Any) -> CallFigures:
    values = list(items.values()) if isinstance(items, Mapping) else [value for _, value in items]
    if isinstance(found, list):
        values = [value for value, stored in zip(values, found, strict=False) if stored is True]
    elif found < len(values):
        # Which of them were there already is not said; those that were not are on average as large.
        return CallFigures(written=sum(map(_size, values)) * found // len(values) * named.get("replicas", 1))
    return CallFigures(written=sum(map(_size, values)) * named.get("replicas", 1))


def _of_get(found: Any, named: Mapping[str, Any], key: str, default: Any = None, **_: Any) -> CallFigures:
    return _ONE_MISS if found is default or type(found) is not bytes else CallFigures(hits=1, read=len(found))


def _of_get_into(found: int, named: Mapping[str, Any], *_: Any, **__: Any) -> CallFigures:
    return CallFigures(hits=1, read=found)


def _of_get_many(found: dict[str, bytes], named: Mapping[str, Any], keys: Any, **_: Any) -> CallFigures:
    return CallFigures(len(found), len(set(keys)) - len(found), sum(map(len, found.values())))


def _of_get_many_into(found: list[Any], named: Mapping[str, Any], *_: Any, **__: Any) -> CallFigures:
    sizes = [one for one in found if isinstance(one, int)]
    return CallFigures(sum(size > 0 for size in sizes), sizes.count(0), sum(sizes))


READS = ("get", "get_into")
COUNTED: dict[str, Callable[..., CallFigures]] = {
    "put": _of_put,
    "put_many": _of_put_many,
    "get": _of_get,
    "get_into": _of_get_into,
    "get_many": _of_get_many,
    "get_many_into": _of_get_many_into,
}
TIMED = (
    *COUNTED, "exists", "exists_many", "lease_many", "release_many", "use_many", "reserve", "reserve_many",
    "commit_many", "remove", "remove_many", "remove_matching", "remove_all", "pin", "unpin", "some_keys", "stat",
    "stat_many", "explain", "status", "nodes",
)  # fmt: skip
"""Verbs that are one call. Objects seen in place (`view`) are not among them: nothing is copied."""
_ITERATED = {"put_many": "items", "get_many": "keys"}
"""Arguments that are gone through twice: an iterator is made a list of."""


def _listed(verb: str, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    name = _ITERATED[verb]
    given = args[0] if args else named.get(name)
    if isinstance(given, Iterable) and not hasattr(given, "__len__"):
        return ((list(given), *args[1:]), named) if args else (args, named | {name: list(given)})
    return args, named


def _note(metrics: ClientMetrics, verb: str, ns: int, found: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    count = COUNTED.get(verb)
    metrics._took(verb, ns, *(count(found, named, *args, **named) if count is not None else NONE))


def _note_failure(metrics: ClientMetrics, verb: str, ns: int, error: HoldfastError) -> None:
    missed = isinstance(error, ObjectNotFound) and verb in READS
    metrics._took(verb, ns, *(_ONE_MISS if missed else NONE))
    if not missed:
        metrics._failed(error.code)


def _blocking(verb: str) -> Any:
    plain = getattr(Cache, verb)

    @functools.wraps(plain)
    def method(self: MeteredCache, *args: Any, **named: Any) -> Any:
        if verb in _ITERATED:
            args, named = _listed(verb, args, named)
        began = now_ns()
        try:
            found = plain(self, *args, **named)
        except HoldfastError as error:
            _note_failure(self.metrics, verb, now_ns() - began, error)
            raise
        _note(self.metrics, verb, now_ns() - began, found, args, named)
        return found

    return method


def _awaited(verb: str) -> Any:
    plain = getattr(AsyncCache, verb)

    @functools.wraps(plain)
    async def method(self: MeteredAsyncCache, *args: Any, **named: Any) -> Any:
        if verb in _ITERATED:
            args, named = _listed(verb, args, named)
        began = now_ns()
        try:
            found = await plain(self, *args, **named)
        except HoldfastError as error:
            _note_failure(self.metrics, verb, now_ns() - began, error)
            raise
        _note(self.metrics, verb, now_ns() - began, found, args, named)
        return found

    return method


class MeteredCache(Cache):
    __doc__ = Cache.__doc__
    _core: MeteredCore

    @property
    def metrics(self) -> ClientMetrics:
        return self._core.metrics


class MeteredAsyncCache(AsyncCache):
    __doc__ = AsyncCache.__doc__
    _core: MeteredCore

    @property
    def metrics(self) -> ClientMetrics:
        return self._core.metrics


def new_core_of(metrics: ClientMetrics) -> NewCore:
    if not isinstance(metrics, ClientMetrics):
        raise TypeError(f"metrics takes a holdfast.ClientMetrics, not {type(metrics).__name__}; nothing was sent")
    return functools.partial(MeteredCore, metrics)


for _verb in TIMED:
    setattr(MeteredCache, _verb, _blocking(_verb))
    setattr(MeteredAsyncCache, _verb, _awaited(_verb))
