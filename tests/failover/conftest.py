"""One real server of each kind for all stories, and one cluster a module and backend that is healed between them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.server_fixtures import etcd_server, zookeeper_server
from tests.contract.servers import OwnEtcd, Server
from tests.failover.cluster import Cluster

__all__ = ["etcd_server", "zookeeper_server"]
BACKENDS = ("sqlite", "etcd", "zookeeper")
_numbers = itertools.count(1)


def place_for(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """A URL with a cluster of its own on that backend."""
    cluster = f"failover-{next(_numbers)}"
    if kind == "sqlite":
        return f"sqlite://{folder}/coordination.db?cluster={cluster}"
    server: Server = request.getfixturevalue(f"{kind}_server")
    return f"{kind}://127.0.0.1:{server.port}/{cluster}"


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def shared_cluster(
    backend: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp(backend)
    with Cluster(folder, place_for(backend, request, folder)) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """Two masters and a node, all well; shared with the module's other stories."""
    shared_cluster.heal()
    return shared_cluster


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[OwnEtcd]:
    """An etcd of the test's own, to be killed and emptied."""
    with OwnEtcd(tmp_path / "etcd") as etcd:
        yield etcd


@pytest.fixture
def url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Somewhere to coordinate a cluster of the test's own."""
    return place_for(backend, request, tmp_path)
