"""The four backends, each real, behind one fixture: a test that takes `place` runs on every one of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contract.places import BACKENDS, Place
from tests.contract.server_fixtures import etcd_server, zookeeper_server
from tests.contract.servers import Server

__all__ = ["etcd_server", "zookeeper_server"]


@pytest.fixture(params=BACKENDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    if kind == "memory":
        found = Place(kind, f"memory://{tmp_path.name}")
    elif kind == "sqlite":
        found = Place(kind, f"sqlite://{tmp_path}/coordination.db", path=tmp_path / "coordination.db")
    else:
        server: Server = request.getfixturevalue(f"{kind}_server")
        found = Place(kind, f"{kind}://127.0.0.1:{server.port}/CLUSTER", server)
    try:
        yield found
    finally:
        await found.close()
