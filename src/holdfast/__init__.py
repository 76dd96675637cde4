"""holdfast: a shared memory cache for large immutable objects whose master can die without the cache going cold.

import holdfast
with holdfast.connect("127.0.0.1:7070") as cache:
    cache.put("greeting", b"hello")
    cache.get("greeting")
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import errors

if TYPE_CHECKING:
    import ssl

    from holdfast.client.async_cache import AsyncCache, Connecting
    from holdfast.client.buffers import memory_at
    from holdfast.client.cache import Cache, Reservation
    from holdfast.client.metered.metrics import ClientMetrics
    from holdfast.client.targets import Part

__version__ = "0.3.0.dev0"


def connect(
    address: str = "127.0.0.1:7070",
    *,
    timeout: float = 30.0,
    token: str = "",
    token_file: str | Path = "",
    tls: ssl.SSLContext | None = None,
    verify: bool = True,
    shared_memory: bool = True,
    metrics: ClientMetrics | None = None,
) -> Cache:
    """A cache to be used from any thread, until it is closed.

    - `address`: The masters: HOST:PORT, or several with commas; or the URL of their coordination, as in
      etcd://host:2379/cluster.
    - `timeout`: Seconds that a whole call may take, unless the call is given another timeout. Connecting takes at most
      5 seconds of it.
    - `token`: The secret that masters and nodes ask for. Empty: none is shown.
    - `token_file`: A file that holds the token, which no other user may read; in the place of `token`.
    - `tls`: How masters and nodes are trusted, as by ssl.create_default_context(cafile=...). None: no TLS.
    - `verify`: Compare every copy that is read with the checksum of the object.
    - `shared_memory`: Without it, the bytes of nodes on this machine move over TCP too.
    - `metrics`: Counts what this client does, and shows it when asked. None: nothing is counted."""
    # Imported here, so that masters and nodes, which share this package, do not load the client.
    from holdfast.client.arguments import checked_token
    from holdfast.client.cache import open_cache
    from holdfast.client.shell import ClientPlan

    plan = ClientPlan(address, timeout, checked_token(token, token_file), tls, verify, shared_memory)
    if metrics is None:
        return open_cache(plan)
    from holdfast.client.metered.clients import MeteredCache, new_core_of

    return open_cache(plan, MeteredCache, new_core_of(metrics))


def connect_async(
    address: str = "127.0.0.1:7070",
    *,
    timeout: float = 30.0,
    token: str = "",
    token_file: str | Path = "",
    tls: ssl.SSLContext | None = None,
    verify: bool = True,
    shared_memory: bool = True,
    metrics: ClientMetrics | None = None,
) -> Connecting:
    """The same cache for asyncio: `cache = await connect_async(...)` or `async with connect_async(...) as cache`.

    Its parameters are those of `connect`: `address`, `timeout`, `token`, `token_file`, `tls`, `verify`,
    `shared_memory` and `metrics`. The cache belongs to the event loop in which it is awaited."""
    from holdfast.client.arguments import checked_token
    from holdfast.client.async_cache import Connecting
    from holdfast.client.shell import ClientPlan

    plan = ClientPlan(address, timeout, checked_token(token, token_file), tls, verify, shared_memory)
    if metrics is None:
        return Connecting(plan)
    from holdfast.client.metered.clients import MeteredAsyncCache, new_core_of

    return Connecting(plan, MeteredAsyncCache, new_core_of(metrics))


__all__ = [
    "AsyncCache",
    "Cache",
    "ClientMetrics",
    "Part",
    "Reservation",
    "__version__",
    "connect",
    "connect_async",
    "errors",
    "memory_at",
]
_MODULES = {
    "AsyncCache": "holdfast.client.async_cache",
    "Cache": "holdfast.client.cache",
    "ClientMetrics": "holdfast.client.metered.metrics",
    "Part": "holdfast.client.targets",
    "Reservation": "holdfast.client.cache",
    "memory_at": "holdfast.client.buffers",
}
"""Names that are imported when they are first asked for."""


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
