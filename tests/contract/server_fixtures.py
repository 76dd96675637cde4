"""Fixtures of the real servers: one of each kind per session, for the suites whose conftest imports them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.servers import Server, start_etcd, start_zookeeper


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server
