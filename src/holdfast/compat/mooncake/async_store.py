"""`mooncake.async_store`: every method of the store also as `async_...`, to be awaited.

A call runs on a thread, so that the loop goes on. The client underneath releases the interpreter while it waits.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.compat.mooncake.store import MooncakeDistributedStore

PREFIX = "async_"


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(type(self), name.removeprefix(PREFIX), None) if name.startswith(PREFIX) else None
        if not callable(method):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        bound = functools.partial(method, self)

        @functools.wraps(method)
        async def awaited(*arguments: Any, **keywords: Any) -> Any:
            return await asyncio.to_thread(bound, *arguments, **keywords)

        return awaited


__all__ = ["MooncakeDistributedStoreAsync"]
