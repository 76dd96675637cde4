"""Clients on a master's machine look into its table of keys, and are never told by a dead or a stopped one."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.client.cache import Cache
from holdfast.errors import ClientClosed
from holdfast.messages.of_masters import HandOver
from holdfast.messages.requests import Done
from tests.client.inside import core_of
from tests.failover.cluster import Cluster, Process, call
from tests.waiting import wait_until


def wait_until_shown(cache: Cache, key: str) -> None:
    """Until this client is told of the key without asking."""
    wait_until(lambda: (shown := core_of(cache).key_table) is not None and shown.has(key), what="the key is shown")


def primary_that_shows(cluster: Cluster, cache: Cache, key: str) -> Process:
    """This client is told of the key without asking, and a standby could take over."""
    wait_until_shown(cache, key)
    old = cluster.primary()
    cluster.standby()
    return old


def test_after_the_primary_died_the_next_one_is_asked(cluster: Cluster) -> None:
    """I1, I7: what was put and removed at the new primary is seen at once by who looked at the old one's table."""
    with cluster.connect() as looking, cluster.connect() as other:
        other.put_many({"shown/removed": b"x", "shown/kept": b"y"})
        old = primary_that_shows(cluster, looking, "shown/kept")
        old.kill()
        assert other.put("shown/new", b"z") is True
        assert looking.exists("shown/new") is True, "told by nobody who is dead"
        assert other.remove("shown/removed", force=True) == 1
        assert looking.exists_many(["shown/removed", "shown/kept", "shown/new"]) == [False, True, True]
        wait_until_shown(looking, "shown/new")
        other.remove_matching("^shown/", force=True)
        assert looking.exists_many(["shown/kept", "shown/new"]) == [False, False]


def test_a_stopped_primary_tells_nothing_once_another_may_lead(cluster: Cluster) -> None:
    """I12: its table and its connections are still there."""
    with cluster.connect() as looking, cluster.connect() as other:
        other.put("shown/stopped", b"x")
        old = primary_that_shows(cluster, looking, "shown/stopped")
        old.pause()
        try:
            assert looking.exists("shown/stopped") is True, "it is still the primary, and its table is right"
            assert cluster.primary(but=old) is not old
            assert other.put("shown/after", b"y") is True
            assert looking.exists("shown/after") is True
            assert other.remove("shown/stopped", force=True) == 1
            assert looking.exists("shown/stopped") is False
        finally:
            old.resume()
        assert looking.exists_many(["shown/stopped", "shown/after"]) == [False, True]


def test_a_handover_leaves_no_table_behind(cluster: Cluster) -> None:
    with cluster.connect() as looking, cluster.connect() as other:
        other.put("shown/handed", b"x")
        old = primary_that_shows(cluster, looking, "shown/handed")
        with old.channel() as channel:
            assert isinstance(call(channel, HandOver()), Done)
        assert other.put("shown/taken", b"y") is True
        assert looking.exists("shown/taken") is True


async def test_an_asyncio_client_sees_them_too(cluster: Cluster) -> None:
    async with holdfast.connect_async(cluster.address, timeout=30) as cache:
        await cache.put("shown/async", b"x")
        assert await cache.exists("shown/async") is True
        shown = core_of(cache).key_table
        assert shown is not None
        wait_until(lambda: shown.has("shown/async"), what="the key is shown")
        assert await cache.exists_many(["shown/async", "shown/none"]) == [True, False]
        await cache.remove("shown/async", force=True)
        assert await cache.exists("shown/async") is False
    with pytest.raises(ClientClosed):
        await cache.exists("shown/async")
