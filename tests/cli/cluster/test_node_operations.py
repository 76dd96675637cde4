"""`drain` and `nodes ACTION`, over a fake client: what they say where they end early."""

from __future__ import annotations

import pytest

from holdfast.cli.cluster import node_operations
from tests.cli.conftest import Run
from tests.cli.fake_cache import FakeCache


def test_ctrl_c_in_a_drain_says_that_the_node_goes_on_draining(
    run: Run, cache: FakeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "operate", lambda request: 1, raising=False)
    monkeypatch.setattr(node_operations, "_watch", interrupted)
    result = run("drain", "node-1")
    told = "holdfast drain node-1 watches again, with --cancel it ends that"
    assert (result.code, result.err) == (130, f"holdfast: interrupted; node-1 goes on draining: {told}\n")
