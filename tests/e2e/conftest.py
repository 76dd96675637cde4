"""A client of the module's rig: over shared memory, and over TCP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from tests.e2e.rig import Rig


@pytest.fixture(params=[True, False], ids=["mapped", "tcp"])
def cache(rig: Rig, request: pytest.FixtureRequest) -> Iterator[holdfast.Cache]:
    """Modules with another one of this name do not use this."""
    with rig.connect(shared_memory=request.param) as cache:
        yield cache
        cache.remove_all(force=True)
