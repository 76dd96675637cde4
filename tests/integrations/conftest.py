"""A real cluster for each module, healed between tests, and the engines' interfaces as far as we use them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.failover.cluster import Cluster
from tests.integrations import sglang_shapes, vllm_shapes

for shapes in (sglang_shapes, vllm_shapes):
    sys.modules.update(shapes.modules())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("engines")
    url = f"sqlite://{folder}/coordination.db"
    with Cluster(folder, url, masters=2, nodes=1, lease_ttl_ms=5_000, size="64MiB") as started:
        started.settle()
        yield started
