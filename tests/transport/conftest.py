"""The memory that the tests of its transport reach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.rig import Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as served:
        yield served
