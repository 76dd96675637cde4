"""put_tensor and get_tensor, one or many.

A tensor is one object: its header and its elements, put by gathering both, so that nothing is copied first. It is read
into the framework's own memory, under a lease that gives its size: one round trip for any number of tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.client.cache import Cache
from holdfast.client.targets import Part
from holdfast.errors import BadValue, HoldfastError, ObjectNotFound
from holdfast.tensors.frameworks import Framework, elements_of, flat, header_for
from holdfast.tensors.header import header_of

_RAISE: Any = object()


def _parts(tensor: Any) -> list[Any]:
    return [header_for(tensor).packed(), *elements_of(tensor)]


def put_tensor(cache: Cache, key: str, tensor: Any, **options: Any) -> bool:
    """Store it with its dtype and shape; options and result as of `Cache.put`."""
    return cache.put(key, _parts(tensor), **options)


def put_tensors(cache: Cache, tensors: Mapping[str, Any], **options: Any) -> list[bool | HoldfastError]:
    """Store all of them. Returns for each True, False if the key was there already, or its error."""
    items = {key: _parts(tensor) for key, tensor in tensors.items()}
    return cache.put_many(items, outcomes=True, **options)


def get_tensor(cache: Cache, key: str, *, framework: Framework | None = None, default: Any = _RAISE) -> Any:
    """The tensor. Without `framework`: torch if the program has imported it, else NumPy.

    If there is none: `default` if that is given, else ObjectNotFound, a KeyError. BadValue if it is not a tensor."""
    found = get_tensors(cache, [key], framework=framework)
    if key in found:
        return found[key]
    if default is _RAISE:
        raise ObjectNotFound(f"no object is stored under {key!r}")
    return default


def get_tensors(cache: Cache, keys: Iterable[str], *, framework: Framework | None = None) -> dict[str, Any]:
    """The tensors by key; keys that are not stored are left out."""
    listed = list(dict.fromkeys(keys))
    sizes = cache.lease_many(listed)
    try:
        stored = [(key, flat(size, framework)) for key, size in zip(listed, sizes, strict=True) if size]
        read = cache.get_many_into([key for key, _ in stored], [memory.target for _, memory in stored])
    finally:
        cache.release_many(key for key, size in zip(listed, sizes, strict=True) if size)
    found: dict[str, Any] = {}
    for (key, memory), outcome in zip(stored, read, strict=True):
        if isinstance(outcome, HoldfastError):
            raise outcome
        if outcome:
            found[key] = memory.shaped(*header_of(key, memory.content))
    return found


def get_tensor_into(cache: Cache, key: str, tensor: Any) -> Any:
    """Read it into a tensor of the same dtype and shape, which is returned. BadValue, with nothing written, if the
    stored tensor differs."""
    header = header_for(tensor)
    wanted = header.packed()
    sizes = cache.lease_many([key])
    if not sizes[0]:
        raise ObjectNotFound(f"no object is stored under {key!r}; nothing was written")
    try:
        begin = bytearray(min(sizes[0], len(wanted)))
        # Checked before the caller's memory is touched.
        cache.get_into(key, [Part(0, begin)])
        if begin != wanted or sizes[0] != len(wanted) + header.nbytes:
            raise BadValue(
                f"{key!r} does not hold a tensor of {header.dtype} {list(header.shape)}; nothing was written"
            )
        cache.get_into(key, [begin, *elements_of(tensor)])
    finally:
        cache.release_many([key])
    return tensor
