"""A master that is away for a while, and fifty nodes that hold a session with it: what the session's numbers promise.

Away for less than the time of jeopardy, nobody loses its session and no memory is mounted anew. Away for longer, every
node has ended its session by its own clock before the new master ends it (I4), and has its memory back all the same.
The master is killed, and started again at its address with its log; the times are the defaults.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

from benchmarks.measure import Row, Scale, least_row, most_row
from benchmarks.processes import Cluster
from benchmarks.sessions import started
from holdfast.client.cache import Cache
from holdfast.instant import now_ms
from tests.waiting import wait_until

KIB, MIB = 1 << 10, 1 << 20
PREFIX = "follower-"
SHORT_AWAY_S, LONG_AWAY_S = 25.0, 50.0
QUICK = {"session_lease_ms": 3_000, "session_reply_left_ms": 1_500, "session_jeopardy_ms": 13_000}
QUICK_SHARE = 0.4
"""Of the times, about; a master needs seconds to start where cores are crowded, so it cannot be much less."""
DURABLE = "sqlite"


def run(scale: Scale) -> list[Row]:
    count = scale.of(50, 5)
    times = QUICK if scale.quick else {}
    share = QUICK_SHARE if scale.quick else 1.0
    with (
        Cluster("4MiB", nodes=0, coordination="sqlite", **times) as cluster,
        _crowd(cluster, count) as said,
        cluster.connect() as cache,
    ):
        values = {f"{PREFIX}{i}": os.urandom(128 * KIB) for i in range(count)}
        for name, value in values.items():
            assert cache.put(name, value, prefer=[name])
        boots = _boots(cache)
        assert len(boots) == count
        short_s, short = _away(cluster, cache, said, count, SHORT_AWAY_S * share)
        rows = [
            most_row(
                f"master away {short_s:.0f} s: of {count} sessions, expired", _expired(short), "sessions", 0, DURABLE
            ),
            least_row("of those, in jeopardy meanwhile", _count(short, "jeopardy"), "sessions", None, DURABLE),
            most_row("segments mounted anew or unmounted", _remounted(cluster, short), "segments", 0, DURABLE),
        ]
        long_s, long = _away(cluster, cache, said, count, LONG_AWAY_S * share)
        margins = _margins(cluster, long)
        rows += [
            least_row(
                f"master away {long_s:.0f} s: of {count} followers, expired before the new master said so",
                sum(margin > 0 for margin in margins), "followers", count, DURABLE,
            ),
            least_row("the shortest time between the two", min(margins, default=0.0), "s", 0.0, DURABLE),
            most_row("segments mounted anew or unmounted", _remounted(cluster, long), "segments", 0, DURABLE),
            most_row("objects lost in both", count - len(cache.get_many(values)), "objects", 0, DURABLE),
        ]  # fmt: skip
        assert _boots(cache) == boots or any(row.reached is False for row in rows), "new memory is a remount"
    return rows


Said = list[dict[str, Any]]


@contextlib.contextmanager
def _crowd(cluster: Cluster, count: int) -> Iterator[Said]:
    """The nodes, and what they say; the list grows as they do."""
    said: Said = []
    with started("node_crowd", cluster.address, PREFIX, str(count), str(4 * MIB)) as crowd:
        reader = threading.Thread(target=_listen, args=(crowd, said), daemon=True)
        reader.start()
        wait_until(lambda: any("ready" in one for one in said) or crowd.poll() is not None, 300, "all are members")
        yield said


def _listen(crowd: subprocess.Popen[str], said: Said) -> None:
    assert crowd.stdout is not None
    for line in crowd.stdout:
        said.append(json.loads(line))


def _away(cluster: Cluster, cache: Cache, said: Said, count: int, seconds: float) -> tuple[float, Said]:
    """Kill the master, and have it serve again so much later: how long it was away, and what the nodes said until all
    have a session with it again."""
    before = len(said)
    killed = time.monotonic()
    cluster.master.kill()
    cluster.master.wait()
    time.sleep(max(0.0, seconds - cluster.last_start_s))
    cluster.start_master()
    away = time.monotonic() - killed
    # A node is available as soon as its keepalive is there; that it knows so itself takes an answer.
    wait_until(lambda: sum(node.standing == "safe" for node in cache.nodes().nodes) == count, 120, "all are back")
    wait_until(lambda: _settled(said[before:]), 120, "all have said so")
    return away, said[before:]


def _settled(said: Said) -> bool:
    troubled = {one["node"] for one in said if one["kind"] in ("jeopardy", "expired")}
    last = {one["node"]: one["kind"] for one in said}
    return all(last[node] in ("safe_again", "registered") for node in troubled)


def _count(said: Said, kind: str) -> int:
    return len({one["node"] for one in said if one["kind"] == kind})


def _expired(said: Said) -> int:
    return _count(said, "expired")


def _events(cluster: Cluster) -> list[dict[str, Any]]:
    http = cluster.masters["master-0"][1]["http"]
    with urllib.request.urlopen(f"http://{http}/api/v1/events?limit=1000", timeout=10) as answer:
        found: list[dict[str, Any]] = json.load(answer)["events"]
        return found


def _remounted(cluster: Cluster, said: Said) -> int:
    """As the master tells it and as the nodes do."""
    kinds = Counter(event["kind"] for event in _events(cluster))
    return max(kinds["segment_mounted"] + kinds["segment_unmounted"], _count(said, "memory_void"))


def _margins(cluster: Cluster, said: Said) -> list[float]:
    """For each session that ended, seconds from its follower's word to the new master's."""
    now = now_ms()
    ended = {
        event["subject"]: now - event["age_ms"]
        for event in _events(cluster)
        if event["kind"] in ("session_expired", "session_closed")
    }
    own = {one["node"]: one["at_ms"] for one in said if one["kind"] == "expired"}
    return [(ended[name] - at_ms) / 1_000 for name, at_ms in own.items() if name in ended]


def _boots(cache: Cache) -> dict[str, int]:
    return {node.name: node.boot for node in cache.nodes().nodes}
