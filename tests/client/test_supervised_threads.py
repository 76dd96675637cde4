"""The threads of a client: a defect in one costs a moment, and never leaves leases or grants unkept for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.client import async_runner, blocking_runner
from holdfast.client.bytes.revocations import RevocationListener
from holdfast.messages import requests as m
from tests.client.bytes.test_revocations import listened, packed
from tests.client.fake_master import FakeMaster
from tests.client.inside import core_of
from tests.node.rig import Served
from tests.waiting import wait_until

Connect = Callable[..., Any]


def test_views_are_kept_alive_after_a_defect_in_the_keeper(
    master: FakeMaster, connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """I2: the lease of an open view is renewed as long as it is open."""
    met: list[int] = []
    for runner in (blocking_runner, async_runner):
        real = runner.keep_once

        def failing(core: Any, real: Any = real) -> Any:
            if not met:
                met.append(1)
                raise KeyError("defect")
            return real(core)

        monkeypatch.setattr(runner, "keep_once", failing)
    master.lease_ttl_ms = 500
    cache = connect(master.address)
    cache.put("key", b"x")
    with cache.view("key"):
        # The asyncio face runs only while something is asked of it.
        wait_until(lambda: cache.exists("key") and len(master.asked(m.RenewLeases)) >= 3, what="it is renewed")
    assert met
    said = [one.getMessage() for one in caplog.records if "keeper of leases and grants" in one.getMessage()]
    assert len(said) == 1


def test_revocations_are_heard_after_a_defect_in_the_thread_that_hears_them(
    master: FakeMaster, node: Served, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: what may have been missed is taken to be revoked, and the next one is heard."""
    cache = connect(master.address)
    assert cache.put_many({"key": b"x", "other": b"y"}) == 2
    assert cache.get_many(["key", "other"]) == {"key": b"x", "other": b"y"}
    wait_until(lambda: listened(node))
    met: list[int] = []
    real = RevocationListener._hear

    def failing(*args: Any) -> None:
        if not met:
            met.append(1)
            raise KeyError("defect")
        real(*args)

    monkeypatch.setattr(RevocationListener, "_hear", failing)
    node.attach.revoke(packed(master.objects["key"][0]))
    wait_until(lambda: not core_of(cache).leases.by_key, what="all are taken to be revoked")
    assert met
    assert cache.get("other") == b"y"
    assert "other" in core_of(cache).leases.by_key
    node.attach.revoke(packed(master.objects["other"][0]))
    wait_until(lambda: "other" not in core_of(cache).leases.by_key, what="the next one is heard")
