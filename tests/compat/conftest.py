"""One real cluster for the tests of a module: a master with its log in memory, and one node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.compat.mooncake.store import MooncakeDistributedStore
from tests.e2e.rig import Rig


@pytest.fixture(scope="module")
def cluster() -> Iterator[Rig]:
    with Rig("256MiB", nodes=1, lease_ttl_ms=10_000) as rig:
        rig.wait_for_nodes(1)
        yield rig


def set_up(store: MooncakeDistributedStore, address: str, **more: object) -> int:
    said = {
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "global_segment_size": 0,
        "local_buffer_size": 64 << 20,
        "master_server_addr": address,
        **more,
    }
    return store.setup(said)


@pytest.fixture
def store(cluster: Rig) -> Iterator[MooncakeDistributedStore]:
    made = MooncakeDistributedStore()
    assert set_up(made, cluster.address) == 0
    yield made
    made.remove_all(force=True)
    made.close()
