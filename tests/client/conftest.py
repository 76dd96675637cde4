"""One face over both shells, so that every verb is tested once and holds for both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from client.fake_master import FakeMaster
from node.rig import Served


class AwaitedFace:
    """AsyncCache with the calls of Cache: each verb runs the loop until it is done."""

    def __init__(self, loop: asyncio.AbstractEventLoop, cache: holdfast.AsyncCache) -> None:
        self.loop = loop
        self.cache = cache
        self._core = cache._core

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return lambda *args, **named: self.loop.run_until_complete(getattr(self.cache, verb)(*args, **named))

    def keys(self, prefix: str = "") -> Iterator[str]:
        async def gathered() -> list[str]:
            return [key async for key in self.cache.keys(prefix)]

        return iter(self.loop.run_until_complete(gathered()))

    @contextlib.contextmanager
    def view(self, key: str) -> Iterator[memoryview]:
        view = self.cache.view(key)
        shown = self.loop.run_until_complete(view.__aenter__())
        try:
            yield shown
        except BaseException as error:
            self.loop.run_until_complete(view.__aexit__(type(error), error, None))
            raise
        self.loop.run_until_complete(view.__aexit__(None, None, None))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as served:
        yield served


@pytest.fixture
def master(node: Served) -> Iterator[FakeMaster]:
    with FakeMaster(node) as master:
        yield master


@pytest.fixture
def remote_master(node: Served) -> Iterator[FakeMaster]:
    """The node is on another machine, as far as the client is told."""
    with FakeMaster(node, local=False) as master:
        yield master


@pytest.fixture(params=["blocking", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    with contextlib.ExitStack() as opened:
        loop: asyncio.AbstractEventLoop | None = None
        if request.param == "asyncio":
            loop = asyncio.new_event_loop()
            opened.callback(loop.close)

        def opener(address: str, **named: Any) -> Any:
            if loop is None:
                return opened.enter_context(holdfast.connect(address, **named))

            async def connected() -> holdfast.AsyncCache:
                return await holdfast.connect_async(address, **named)

            face = AwaitedFace(loop, loop.run_until_complete(connected()))
            opened.callback(face.close)
            return face

        yield opener
