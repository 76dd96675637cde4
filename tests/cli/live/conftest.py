"""One cluster of real processes for the stories of `top`, `events` and `status --watch`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.failover.cluster import Cluster


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("live")
    url = f"sqlite://{folder}/coordination.db?cluster=watched"
    with Cluster(folder, url, nodes=2, size="32MiB") as found:
        found.standby()
        with found.connect() as cache:
            cache.put_many({f"block/{number}": bytes(20_000) for number in range(50)})
        yield found


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """Two masters and two nodes, all well."""
    shared_cluster.heal()
    return shared_cluster
