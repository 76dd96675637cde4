"""The one place where tests look inside a client: neither its state nor its connection has a public face."""

from __future__ import annotations

from typing import Any

from holdfast.client.state.client import Core


def core_of(cache: Any) -> Core:
    """The state of a `Cache`, an `AsyncCache` or an `AwaitedFace`."""
    core = getattr(cache, "cache", cache)._core
    assert isinstance(core, Core)
    return core


def runner_of(cache: Any) -> Any:
    """What runs its operations: a runner on threads, or one in an event loop."""
    return getattr(cache, "cache", cache)._runner


def connection_of(cache: Any) -> Any:
    """Its connection to the master; None if there is none."""
    return runner_of(cache).channel
