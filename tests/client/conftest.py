"""One face over both shells, so that every verb is tested once and holds for both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.client.faces import AwaitedFace
from tests.client.fake_master import FakeMaster
from tests.node.rig import Served


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
