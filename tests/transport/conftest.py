"""The memory that the tests of its transport reach, and servers that do what a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.node.rig import Served
from tests.transport.scripted import Serve, servers


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as served:
        yield served


@pytest.fixture
def scripted() -> Iterator[Callable[[Serve], str]]:
    with servers() as start:
        yield start
