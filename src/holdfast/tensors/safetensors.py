"""Read and write safetensors files; each tensor of the file is an object of the cache.

The format is eight bytes with the length of a JSON header, the header (name to dtype, shape and offsets), and the
elements. Files are mapped: their elements go from the page cache into a node's memory and back in one copy each,
without NumPy, torch or memory of our own.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from holdfast.client.buffers import BytesLike
from holdfast.client.cache import Cache
from holdfast.client.targets import Part
from holdfast.errors import BadValue, HoldfastError, ObjectNotFound
from holdfast.tensors.header import MOST_DIMENSIONS, SIZES, Header, header_of

MOST_HEADER_BYTES = 100 << 20
"""The limit of the format."""
AT_ONCE = 64
"""Tensors per batch: enough to share a round trip, few enough to be interrupted between two."""
LONGEST_HEADER = 1_024
"""The longest header of a stored tensor: 64 dimensions take less."""
_LENGTH = struct.Struct("<Q")


def put_safetensors(cache: Cache, file: str | os.PathLike[str], *, prefix: str = "", **options: Any) -> list[str]:
    """Store every tensor of the file under `prefix` and its name. Returns the keys. Existing objects are kept, unless
    `upsert`. After an interrupt or error it may be repeated: tensors that were stored are not copied again."""
    keys: list[str] = []
    with Path(file).open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        content = memoryview(mapped)
        try:
            found = list(_tensors_in(Path(file).name, content).items())
            for start in range(0, len(found), AT_ONCE):
                some: dict[str, list[BytesLike]] = {
                    prefix + name: [header.packed(), *data] for name, (header, data) in found[start : start + AT_ONCE]
                }
                for key, outcome in zip(some, cache.put_many(some, outcomes=True, **options), strict=True):
                    if isinstance(outcome, HoldfastError):
                        raise outcome
                    keys.append(key)
                del some
        finally:
            found = []
            content.release()
    return keys


def _tensors_in(name: str, content: memoryview) -> dict[str, tuple[Header, list[memoryview]]]:
    try:
        (length,) = _LENGTH.unpack_from(content)
        if length > min(MOST_HEADER_BYTES, content.nbytes - _LENGTH.size):
            raise ValueError("its header is longer than the file")
        start = _LENGTH.size + length
        described = json.loads(bytes(content[_LENGTH.size : start]))
        described.pop("__metadata__", None)
        found: dict[str, tuple[Header, list[memoryview]]] = {}
        for tensor, facts in described.items():
            header = Header(facts["dtype"], tuple(facts["shape"]))
            begin, end = facts["data_offsets"]
            if header.dtype not in SIZES or not 0 <= begin <= end <= content.nbytes - start:
                raise ValueError(f"{tensor!r} is of a dtype that is not known, or lies outside of the file")
            if len(header.shape) > MOST_DIMENSIONS or min(header.shape, default=0) < 0:
                raise ValueError(f"{tensor!r} has the shape {list(header.shape)[:9]}")
            if end - begin != header.nbytes:
                raise ValueError(f"{tensor!r} has {end - begin:,} bytes, not those of its shape")
            found[tensor] = (header, [content[start + begin : start + end]] if end > begin else [])
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise BadValue(f"{name} is no safetensors file ({error}); nothing was stored") from None
    return found


def get_safetensors(
    cache: Cache,
    file: str | os.PathLike[str],
    *,
    keys: Iterable[str] | None = None,
    prefix: str = "",
    metadata: dict[str, str] | None = None,
) -> list[str]:
    """Write these keys, or all that begin with `prefix`, to a file. Returns their names in it (without the prefix). The
    file is never partial: it is written under another name and renamed."""
    listed = sorted(cache.keys(prefix)) if keys is None else list(dict.fromkeys(keys))
    sizes = cache.lease_many(listed)
    try:
        absent = [key for key, size in zip(listed, sizes, strict=True) if not size]
        if absent:
            raise ObjectNotFound(f"{len(absent):,} of {len(listed):,} keys are not stored, such as {absent[0]!r}")
        headers = _headers_of(cache, listed, sizes)
        _write(cache, Path(file), listed, headers, prefix, metadata or {})
    finally:
        cache.release_many(key for key, size in zip(listed, sizes, strict=True) if size)
    return [key.removeprefix(prefix) for key in listed]


def _headers_of(cache: Cache, keys: list[str], sizes: list[int]) -> list[tuple[Header, int]]:
    """The header of each, and where its elements begin."""
    fronts = [bytearray(min(size, LONGEST_HEADER)) for size in sizes]
    _read(keys, cache.get_many_into(keys, [[Part(0, front)] for front in fronts]))
    return [header_of(key, memoryview(front), size) for key, front, size in zip(keys, fronts, sizes, strict=True)]


def _read(keys: list[str], outcomes: list[int | HoldfastError]) -> None:
    for key, outcome in zip(keys, outcomes, strict=True):
        if isinstance(outcome, HoldfastError):
            raise outcome
        if not outcome:
            raise ObjectNotFound(f"{key!r} was removed while it was read; no file was written")


def _write(
    cache: Cache,
    file: Path,
    keys: list[str],
    headers: list[tuple[Header, int]],
    prefix: str,
    metadata: dict[str, str],
) -> None:
    described: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for key, (header, _) in zip(keys, headers, strict=True):
        begin, end = end, end + header.nbytes
        described[key.removeprefix(prefix)] = {
            "dtype": header.dtype,
            "shape": list(header.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with partial.open("w+b") as opened:
            opened.write(_LENGTH.pack(len(text)) + text)
            opened.truncate(_LENGTH.size + len(text) + end)
            opened.flush()
            if end:
                with mmap.mmap(opened.fileno(), 0) as mapped:
                    _fill(cache, keys, headers, mapped, _LENGTH.size + len(text))
            os.fsync(opened.fileno())
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _fill(cache: Cache, keys: list[str], headers: list[tuple[Header, int]], mapped: mmap.mmap, start: int) -> None:
    content = memoryview(mapped)
    targets: list[list[Any]] = []
    try:
        for header, front in headers:
            elements = [content[start : start + header.nbytes]] if header.nbytes else []
            targets.append([bytearray(front), *elements])
            start += header.nbytes
        for first in range(0, len(keys), AT_ONCE):
            some = keys[first : first + AT_ONCE]
            _read(some, cache.get_many_into(some, targets[first : first + AT_ONCE]))
    finally:
        for target in targets:
            for view in target[1:]:
                view.release()
        content.release()
