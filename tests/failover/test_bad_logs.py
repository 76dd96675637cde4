"""A log that a standby must not follow: it stops, says why, and never serves (I13)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from holdfast.coordination.backends import open_coordination
from holdfast.coordination.interface import Coordination
from holdfast.errors import TryAgain
from holdfast.messages.log_versions import LOG_VERSION
from holdfast.replication.batches import Position, decode_batch, encode_batch
from tests.contract.stories import soon
from tests.failover.cluster import Cluster
from tests.failover.conftest import BACKENDS
from tests.waiting import wait_until

UNKNOWN_RECORD = b"\x92\xcc\xfa\x01"
"""An array of a tag that no version has used, and a number."""


async def position_of(coordination: Coordination) -> Position:
    last = await coordination.last_index()
    position = Position()
    async with aclosing(coordination.follow(0)) as followed:
        async for batches in followed:
            for number, batch in batches:
                _, position = decode_batch(position, number, batch)
            if position.batch >= last:
                return position
    raise AssertionError("the log ended")


def spoilt(kind: str, after: Position) -> bytes:
    if kind == "unknown record":
        return encode_batch(after, [UNKNOWN_RECORD])[0]
    return encode_batch(after, [], LOG_VERSION + 1)[0]


def says_why(status: dict[str, Any]) -> bool:
    reason = str(status.get("promotable_reason"))
    return status.get("promotable") is False and ("upgrade" in reason or "does not know" in reason)


@pytest.mark.parametrize(
    ("backend", "kind"),
    [*((backend, "unknown record") for backend in BACKENDS), ("sqlite", "newer version")],
    indirect=["backend"],
)
async def test_a_log_of_a_newer_version_stops_the_standby_which_says_so_and_never_serves(
    url: str, tmp_path: Path, kind: str
) -> None:
    """I13, I15. One master was following when it came, the other one is started after."""
    with Cluster(tmp_path, url) as cluster:
        with cluster.connect() as cache:
            cache.put("k", b"x")
        first, standby = cluster.primary(), cluster.standby()
        standby.kill()
        coordination = await open_coordination(url, leader_ttl_ms=1_500)
        try:
            assert first.stop() == 0
            term = await soon(coordination.campaign("127.0.0.1:1"))
            standby.start()
            position = await position_of(coordination)
            # In a thread: the loop must go on renewing the term, or the standby takes over.
            await asyncio.to_thread(standby.wait_until_ready)
            await asyncio.to_thread(wait_until, lambda: standby.status().get("promotable"), what="the standby follows")
            await term.append(position.batch + 1, spoilt(kind, position))
            await term.resign()
        finally:
            await coordination.close()
        first.start()
        first.wait_until_ready()
        for master in cluster.masters:
            wait_until(lambda asked=master: says_why(asked.status()), what="it says that it is stuck, and why")
            assert master.status()["role"] == "standby"
        with pytest.raises(TryAgain):
            cluster.connect(timeout=1)
        assert not cluster.primaries()
