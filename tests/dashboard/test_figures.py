"""Figures that people read: the terminal's, derived in Python, are those that the page's script derives."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.dashboard import figures
from holdfast.dashboard.figures import RATES, Samples

SCRIPT = Path(figures.__file__).parent / "page" / "dashboard.js"
IN_ORDER = (
    "requests",
    "hit_rate",
    "found_bytes",
    "stored_bytes",
    "evicted",
    "",
    "",
    "tcp_read_bytes",
    "tcp_written_bytes",
    "refused",
    "",
)
"""The charts of the page; empty: it is no rate."""


def overview(uptime_ms: int, count: int, **more: Any) -> dict[str, Any]:
    """Of a primary that has counted up to here."""
    facts = {
        "name": "master-1",
        "role": "primary",
        "epoch": 3,
        "uptime_ms": uptime_ms,
        "requests": {"locate": 10 * count, "put": count},
        "hits": 3 * count,
        "misses": count,
        "hit_bytes": 4_096 * count,
        "stored_bytes": 1_000 * count,
        "evicted": count,
        "evicted_objects": {"watermark": count, "put": 0},
        "failures": {"no_room": count},
        "tcp_read_bytes": 7 * count,
        "tcp_written_bytes": 0,
        "latencies": {"locate": [8 * count, 9 * count, 10 * count], "put": [0, 0, count]},
        "latency_bounds_seconds": [0.001, 0.002],
        "capacity_bytes": 100,
        "free_bytes": 50,
        "objects": 1,
        "connections": 2,
    }
    return facts | more


def test_rates_are_of_the_time_between_two_overviews() -> None:
    found = figures.rates(overview(3_000, 30), overview(1_000, 10))
    assert found["requests"] == 110
    assert found["hit_rate"] == 0.75
    assert found["found_bytes"] == 40_960
    assert found["evicted"] == found["refused"] == 10
    nothing = figures.rates(overview(3_000, 10), overview(1_000, 10))
    assert nothing["hit_rate"] is None, "nobody read"
    standby = {"uptime_ms": 3_000, "requests": {}, "role": "standby"}
    assert figures.rates(standby, standby | {"uptime_ms": 1_000})["hit_rate"] is None


def test_latency_is_the_bound_within_which_a_share_was_answered() -> None:
    locate, put = figures.verbs(overview(3_000, 30), overview(1_000, 10))
    assert (locate.verb, locate.per_second, locate.median_seconds, locate.tail_seconds) == ("locate", 100, 0.001, None)
    assert (put.recent, put.median_seconds) == (20, None), "all of them took longer than the last bound"


def test_samples_are_of_one_process_in_one_role_and_of_a_minute() -> None:
    samples = Samples()
    for second in range(100):
        samples = samples.with_next(overview(1_000 * second, second))
    assert samples.now["uptime_ms"] - samples.before["uptime_ms"] == 60_000
    assert samples.last_rates["evicted"] == 1
    restarted = samples.with_next(overview(500, 1))
    assert len(restarted.minute) == 1
    assert set(restarted.last_rates.values()) == {None}
    assert len(samples.with_next(overview(101_000, 1, epoch=4)).minute) == 1


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, to run the page's script")
def test_the_page_s_script_derives_the_same() -> None:
    now, earlier = overview(3_000, 37), overview(1_000, 10)
    source = SCRIPT.read_text()
    charts = source[source.index("const CHARTS = [") : source.index("function takeSample")]
    verbs = source[source.index("function showVerbs") : source.index("function showEvictions")]
    program = f"""
        const bytes = String, percent = String, number = (one) => one, latency = (one) => one;
        let shown; const fill = (table, rows, key, cells) => {{ shown = rows.map(cells); }};
        {charts} {verbs}
        const now = {json.dumps(now)}, earlier = {json.dumps(earlier)};
        showVerbs(now, earlier);
        console.log(JSON.stringify([CHARTS.map(([, rate]) => rate(now, earlier, 2)), shown]));
    """
    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    rates, shown = json.loads(done.stdout)
    ours = figures.rates(now, earlier)
    assert {name: rate for name, rate in zip(IN_ORDER, rates, strict=True) if name} == ours
    assert set(ours) == set(RATES)
    assert [(row[0], row[1]["text"], row[2]["text"]) for row in shown] == [
        (one.verb, one.per_second, one.median_seconds or f"over {now['latency_bounds_seconds'][-1]}")
        for one in figures.verbs(now, earlier)
    ]
