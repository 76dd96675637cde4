"""A node on the dead primary's machine proves its end: removals and upserts wait for nothing else (I2, I12).

The leadership lasts a minute here: what waited for it to run out would outlast every call. The standby lives in a
process namespace of its own, so that it can only guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client.cache import Cache
from holdfast.errors import Settling
from holdfast.messages.of_masters import HandOver
from tests.failover.cluster import Cluster, Process, call
from tests.failover.conftest import place_for
from tests.namespaces import needs_namespaces
from tests.waiting import wait_until

LEADER_TTL_MS = 60_000
CALL_S = 20.0
pytestmark = needs_namespaces


def cluster_with(apart: tuple[str, ...], kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[Cluster]:
    url = place_for(kind, request, folder)
    with Cluster(folder, url, leader_ttl_ms=LEADER_TTL_MS, grant_timeout_ms=90_000, apart=apart) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=["etcd", "zookeeper"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from cluster_with(("master-2",), request.param, request, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def witnessed(shared: Cluster) -> Cluster:
    """The second master sees nobody; the node sees the first master."""
    shared.heal()
    return shared


@pytest.fixture
def unwitnessed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """The node sees nobody either."""
    yield from cluster_with(("master-2", "node-1"), "etcd", request, tmp_path)


def led_by_the_first(cluster: Cluster) -> tuple[Process, Process]:
    """The first master leads, whichever began; and the second could."""
    first, second = cluster.masters
    if cluster.primary() is second:
        hand_over(cluster, second)
    wait_until(lambda: second.status().get("promotable"), 40, "the second master could take over")
    assert cluster.primary() is first
    wait_until_met(first, second)
    return first, second


def wait_until_met(primary: Process, standby: Process) -> None:
    """A standby suspects only a primary that it has reached: a port that was always refused may be a wrong address."""
    met = f'"epoch": {primary.status()["epoch"]}, "address": "{primary.address}", "event": "the primary answers here'
    wait_until(lambda: met in standby.said(), 40, "the standby has reached the primary")


def hand_over(cluster: Cluster, primary: Process) -> None:
    cluster.standby()
    with primary.channel(looks=True) as channel:
        call(channel, HandOver())
    cluster.primary(but=primary)


def remove_after_its_death(cache: Cache, primary: Process, prefix: str) -> None:
    """Two objects, a and b; a is removed when the primary has been killed."""
    cache.put_many({f"{prefix}/a": b"a", f"{prefix}/b": b"b"})
    primary.kill()
    assert cache.remove(f"{prefix}/a", force=True) == 1


def test_removals_and_upserts_are_answered_soon_after_the_primary_was_killed(witnessed: Cluster) -> None:
    first, second = led_by_the_first(witnessed)
    with witnessed.connect(timeout=CALL_S) as cache:
        remove_after_its_death(cache, first, "killed")
        assert cache.put("killed/b", b"another", upsert=True) is True
        assert witnessed.primary(but=first) is second
        assert cache.exists("killed/a") is False
        assert cache.get("killed/b") == b"another"
    wait_until(lambda: '"witness": "node-1"' in second.said(), 60, "the log says so")
    first.start()
    first.wait_until_ready()
    witnessed.verify({"killed/b": b"another"}, {"killed/a"})


def test_a_second_death_is_proven_too(witnessed: Cluster) -> None:
    """The doubt that the first takeover began with was over, and the store says so."""
    first, second = led_by_the_first(witnessed)
    with witnessed.connect(timeout=CALL_S) as cache:
        remove_after_its_death(cache, first, "twice")
        first.start()
        first.wait_until_ready()
        wait_until(lambda: first.status().get("promotable"), 40, "the first master could take over")
        hand_over(witnessed, second)
        wait_until_met(first, second)
        first.kill()
        assert cache.remove("twice/b", force=True) == 1


def test_a_node_of_another_namespace_says_nothing(unwitnessed: Cluster) -> None:
    first, second = led_by_the_first(unwitnessed)
    with unwitnessed.connect(timeout=3) as cache:
        cache.put("unseen/a", b"a")
        first.kill()
        assert unwitnessed.primary(but=first) is second
        here = f'"epoch": {second.status()["epoch"]}'
        said = unwitnessed.nodes[0].said
        wait_until(
            lambda: any("registered" in line and here in line for line in said().splitlines()), 40, "the node is back"
        )
        with pytest.raises(Settling):
            cache.remove("unseen/a", force=True)
        assert cache.get("unseen/a") == b"a"
