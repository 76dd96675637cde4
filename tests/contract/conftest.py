"""The four backends, each real, behind one fixture: a test that takes `place` runs on every one of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contract.places import BACKENDS, Place
from tests.contract.servers import Server, start_etcd, start_zookeeper


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_etcd(tmp_path_factory.mktemp("etcd"))
    try:
        server.wait_until_it_serves()
        yield server
    finally:
        server.end()


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_zookeeper(tmp_path_factory.mktemp("zookeeper"))
    try:
        server.wait_until_it_serves()
        yield server
    finally:
        server.end()


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
