"""Calls as a user may write them, for mypy: `tests/client/test_types.py` checks that it refuses exactly the lines that
say so, for the reason that they give."""

from __future__ import annotations

import array
import mmap

import numpy as np

import holdfast
from holdfast.errors import HoldfastError


def blocking(cache: holdfast.Cache, mapped: mmap.mmap) -> None:
    cache.put("key", b"bytes", timeout=1.5)
    cache.put("key", bytearray(5), replicas=2, soft_pin=True)
    cache.put("key", memoryview(b"view"))
    cache.put("key", array.array("I", [1, 2]))
    cache.put("key", np.zeros(5))
    cache.put("key", mapped)
    cache.put("key", [b"header", np.zeros(5), memoryview(b"rest")])
    cache.put("key", "text")  # refused: arg-type
    cache.put("key", ["text"])  # refused: list-item
    cache.put("key", None)  # refused: arg-type
    cache.put("key", 5)  # refused: arg-type
    cache.put(b"key", b"bytes")  # refused: arg-type
    cache.put("key", b"bytes", timeout="soon")  # refused: arg-type
    cache.put("key", b"bytes", replica=2)  # refused: call-arg
    stored: int = cache.put_many({"key": b"bytes"}, timeout=1)
    cache.put_many([("key", b"bytes"), ("other", np.zeros(5))])
    outcomes: list[bool | HoldfastError] = cache.put_many([("key", b"bytes")], outcomes=True)
    cache.put_many({"key": "text"})  # refused: arg-type
    data: bytes = cache.get("key", timeout=2)
    maybe: bytes | None = cache.get("key", None)
    data = cache.get("key", None)  # refused: arg-type
    cache.get_into("key", bytearray(5))
    cache.get_into("key", [holdfast.Part(2, np.zeros(5))])
    cache.get_into("key", "text")  # refused: arg-type
    cache["key"] = b"bytes"
    cache["key"] = "text"  # refused: assignment
    data = cache["key"]
    print("key" in cache, len(cache), [*cache], stored, outcomes, data, maybe)
    with cache.view("key", timeout=1) as view:
        print(view.nbytes)


async def awaited(cache: holdfast.AsyncCache) -> None:
    await cache.put("key", b"bytes", timeout=1.5)
    await cache.put("key", "text")  # refused: arg-type
    data: bytes = await cache.get("key", timeout=2)
    data = cache.get("key")  # refused: assignment
    print("key" in cache)  # refused: operator
    print(cache["key"])  # refused: index
    print([key async for key in cache], data)
    with cache.view("key") as view:  # refused: attr-defined
        print(view)


async def unawaited() -> None:
    cache = holdfast.connect_async("127.0.0.1:7070")
    await cache.get("key")  # refused: attr-defined
    print((await cache).timeout)
