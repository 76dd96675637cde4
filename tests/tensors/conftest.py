"""One real cluster for all tests of tensors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from tests.e2e.rig import Rig


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig("64MiB") as rig:
        yield rig


@pytest.fixture(params=["mapped", "tcp"])
def cache(rig: Rig, request: pytest.FixtureRequest) -> Iterator[holdfast.Cache]:
    with rig.connect(shared_memory=request.param == "mapped") as cache:
        yield cache
        cache.remove_all(force=True)
