"""A real cluster for each module, healed between tests, and the engines' interfaces as far as we use them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from tests.failover.cluster import Cluster
from tests.integrations import lmcache_shapes, sglang_shapes, vllm_shapes

for shapes in (sglang_shapes, vllm_shapes):
    sys.modules.update(shapes.modules())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("engines")
    url = f"sqlite://{folder}/coordination.db"
    with Cluster(folder, url, masters=2, nodes=1, lease_ttl_ms=5_000, size="64MiB") as started:
        started.settle()
        yield started


@pytest.fixture(scope="module")
def lmcache_by_its_shape() -> Iterator[None]:
    with lmcache_shapes.in_place_of_lmcache():
        yield


@pytest.fixture(scope="module")
def lmcache_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two masters, and as many nodes as the module's NODES."""
    folder = tmp_path_factory.mktemp("lmcache")
    with Cluster(folder, f"sqlite://{folder}/coordination.db", nodes=request.module.NODES, size="64MiB") as started:
        started.settle()
        yield started


@pytest.fixture
def closed_at_the_end(cluster: Cluster) -> Iterator[list[Callable[[], object]]]:
    """What a test adds here is called at its end; then the cluster is healed and emptied."""
    closing: list[Callable[[], object]] = []
    yield closing
    for close in closing:
        close()
    cluster.heal()
    with cluster.connect() as cache:
        cache.remove_all(force=True)
