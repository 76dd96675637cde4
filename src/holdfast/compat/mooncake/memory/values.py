"""Puts and gets by value: bytes in, bytes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.compat.mooncake.codes import INVALID_PARAMS, OBJECT_NOT_FOUND, OK, code_of
from holdfast.compat.mooncake.link import MooncakeLink
from holdfast.compat.mooncake.linked import Linked
from holdfast.compat.mooncake.structures import BufferHandle, ReplicateConfig
from holdfast.errors import HoldfastError
from holdfast.integrations.link import answered

DEFAULT_CONFIG = ReplicateConfig()
"""Nobody changes it: it is what a put without a configuration means."""


def checked_config(config: object) -> ReplicateConfig:
    if not isinstance(config, ReplicateConfig):
        raise TypeError(f"incompatible function arguments: config is a ReplicateConfig, not {type(config).__name__}")
    return config


def flat(value: Any) -> memoryview:
    """The bytes of a value; a copy only where they do not lie together."""
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"incompatible function arguments: a buffer is wanted, not {type(value).__name__}") from None
    if not view.c_contiguous:
        return memoryview(view.tobytes())
    return view.cast("B") if view.nbytes else memoryview(b"")


def first_failure(codes: Sequence[int]) -> int:
    return next((code for code in codes if code < 0), OK)


def put_each(
    link: MooncakeLink, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig, upsert: bool
) -> list[int]:
    """A code for each: 0 also where the key was there. A value is a buffer, or a list of them that follow each other;
    an error stands in the place of a value that could not be had."""
    options = link.put_options(config, upsert)
    if options is None:
        return [INVALID_PARAMS] * len(keys)
    codes = [INVALID_PARAMS] * len(keys)
    places: list[int] = []
    items: list[tuple[str, Any]] = []
    for place, (stored, value) in enumerate(zip(link.names.stored_each(keys), values, strict=True)):
        if isinstance(value, HoldfastError):
            codes[place] = code_of(value)
        elif stored is not None and value is not None:
            places.append(place)
            items.append((stored, value))
    if items:
        outcomes = answered(link.puts.put_many(items, outcomes=True, **options))
        for place, outcome in zip(places, outcomes, strict=True):
            codes[place] = code_of(outcome) if isinstance(outcome, HoldfastError) else OK
    return codes


class Values(Linked):
    """The methods that take and give bytes."""

    def put(self, key: str, value: Any, config: ReplicateConfig = DEFAULT_CONFIG) -> int:
        return self._put_values([key], [flat(value)], config, upsert=False)[0]

    def upsert(self, key: str, value: Any, config: ReplicateConfig = DEFAULT_CONFIG) -> int:
        return self._put_values([key], [flat(value)], config, upsert=True)[0]

    def put_parts(self, key: str, *args: Any, config: ReplicateConfig = DEFAULT_CONFIG) -> int:
        return self._put_parts(key, args, config, upsert=False)

    def upsert_parts(self, key: str, *args: Any, config: ReplicateConfig = DEFAULT_CONFIG) -> int:
        return self._put_parts(key, args, config, upsert=True)

    def _put_parts(self, key: str, parts: Sequence[Any], config: ReplicateConfig, upsert: bool) -> int:
        views = [view for part in parts if (view := flat(part)).nbytes]
        return self._put_values([key], [views], config, upsert)[0] if parts else OK

    def put_batch(self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig = DEFAULT_CONFIG) -> int:
        return self._put_batch(keys, values, config, upsert=False)

    def upsert_batch(self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig = DEFAULT_CONFIG) -> int:
        return self._put_batch(keys, values, config, upsert=True)

    def _put_batch(self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig, upsert: bool) -> int:
        views = [flat(value) for value in values]
        # All or nothing where an argument is wrong, as the real one does it.
        if len(keys) != len(views) or not all(view.nbytes for view in views):
            checked_config(config)
            return INVALID_PARAMS
        return first_failure(self._put_values(keys, views, config, upsert))

    def _put_values(
        self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig, upsert: bool
    ) -> list[int]:
        checked_config(config)

        def put(link: MooncakeLink) -> list[int]:
            # Mooncake copies a value through its local buffer, and refuses what does not fit: programs see the same.
            fitting = [
                value if 0 < _size(value) <= link.buffer_bytes else None  # None: refused in its place.
                for value in values
            ]
            return put_each(link, keys, fitting, config, upsert)

        for key in keys:
            if not isinstance(key, str):
                raise TypeError(f"incompatible function arguments: a key is a str, not {type(key).__name__}")
        return self._ask(put, lambda code: [code] * len(keys))

    def get(self, key: str) -> bytes:
        return self.get_batch([key])[0]

    def get_batch(self, keys: Sequence[str]) -> list[bytes]:
        """An empty one for what is not there. Of no keys it is one empty value, as in Mooncake."""

        def get(link: MooncakeLink) -> list[bytes]:
            stored = link.names.stored_each(keys)
            wanted = [each for each in stored if each is not None]
            near = link.shared.within_reach(wanted)
            found = link.cache.get_many([each for each, is_near in zip(wanted, near, strict=True) if is_near])
            return [found.get(each, b"") if each is not None else b"" for each in stored]

        return self._ask(get, lambda code: [b""] * len(keys), masterless=True) if keys else [b""]

    def get_buffer(self, key: str) -> BufferHandle | None:
        return self.batch_get_buffer([key])[0]

    def batch_get_buffer(self, keys: Sequence[str]) -> list[BufferHandle | None]:
        def get(link: MooncakeLink) -> list[BufferHandle | None]:
            stored = link.names.stored_each(keys)
            wanted = [each for each in stored if each is not None]
            sizes = link.cache.lease_many(wanted)
            try:
                there = [(key, BufferHandle(size)) for key, size in zip(wanted, sizes, strict=True) if size > 0]
                read = link.cache.get_many_into([key for key, _ in there], [buffer for _, buffer in there])
            finally:
                link.cache.release_many(wanted)
            got = {
                key: buffer
                for (key, buffer), size in zip(there, read, strict=True)
                if isinstance(size, int) and size == buffer.size()
            }
            return [got.get(each) if each is not None else None for each in stored]

        return self._ask(get, lambda code: [None] * len(keys)) if keys else []

    def get_size(self, key: str) -> int:
        def ask(link: MooncakeLink) -> int:
            stored = link.names.stored(key)
            return OBJECT_NOT_FOUND if stored is None else link.cache.stat(stored).size_bytes

        return self._ask(ask, lambda code: code)

    def is_exist(self, key: str) -> int:
        return self.batch_is_exist([key])[0]

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        """1, 0, or a code. It marks what is there as used and takes no lease, so that probes never keep memory from
        being evicted; HOLDFAST_MOONCAKE_PROBES says otherwise."""

        def ask(link: MooncakeLink) -> list[int]:
            stored = link.names.stored_each(keys)
            wanted = [each for each in stored if each is not None]
            if link.probes == "use":
                found = link.cache.use_many(wanted)
            else:
                found = link.cache.exists_many(wanted, touch=link.probes == "lease")
            if len(wanted) == len(stored):
                return [int(there) for there in found]
            there = dict(zip(wanted, found, strict=True))
            return [int(there.get(each, False)) if each is not None else 0 for each in stored]

        return self._ask(ask, lambda code: [code] * len(keys)) if keys else []


def _size(value: Any) -> int:
    return sum(part.nbytes for part in value) if isinstance(value, list) else value.nbytes
