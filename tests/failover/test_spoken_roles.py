"""A master says in its log and its events what it has become, how long that took, and how it knew."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.contract.servers import start_etcd
from tests.failover.cluster import Cluster, Process
from tests.waiting import wait_until


def lines_of(master: Process, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in master.said().splitlines()]
    return [line for line in found if line["event"].startswith(event)]


def events_of(master: Process, kind: str) -> list[str]:
    """Its own: a master shows the events of the others too (ADR 60)."""
    with urllib.request.urlopen(f"http://{master.http}/api/v1/events", timeout=5) as answer:
        events = json.load(answer)["events"]
    return [event["text"] for event in events if (event["kind"], event["master"]) == (kind, master.folder.name)]


def became_primary(master: Process) -> dict[str, Any]:
    [line] = wait_until(lambda: lines_of(master, "this master is the primary now"), 40, "it says so")
    assert line["promotion_ms"] >= 0
    [event] = events_of(master, "primary")
    assert line["knew"] in event
    assert f"{line['promotion_ms']} ms" in event
    return line


def test_a_takeover_says_how_it_knew_and_how_long_it_took(tmp_path: Path) -> None:
    with Cluster(tmp_path, f"sqlite://{tmp_path}/coordination.db") as cluster:
        first, standby = cluster.primary(), cluster.standby()
        assert became_primary(first)["knew"] == "there was no primary before"
        assert lines_of(standby, "this master is a standby")
        first.kill()
        assert cluster.primary() is standby
        assert became_primary(standby)["knew"] == "its process is gone (lock free)"


def test_a_handover_is_said_by_both(tmp_path: Path) -> None:
    with Cluster(tmp_path, f"sqlite://{tmp_path}/coordination.db") as cluster:
        first, standby = cluster.primary(), cluster.standby()
        assert first.stop() == 0
        assert cluster.primary() is standby
        assert became_primary(standby)["knew"] == "the last one resigned"
        assert lines_of(first, "this master is a standby now")[-1]["why"]


@pytest.mark.parametrize(
    ("how", "knew", "leader_ttl_ms"),
    # A busy machine may keep the first one from its term so long that it resigns before it is killed.
    [("killed", "its port is refused: a guess", 10_000), ("stopped", "silent for 4 s", 4_000)],
)
def test_over_etcd_a_guess_is_called_a_guess_and_silence_has_its_length(
    tmp_path: Path, how: str, knew: str, leader_ttl_ms: int
) -> None:
    url = "etcd://127.0.0.1:{port}/spoken"
    with (
        start_etcd(tmp_path / "etcd") as etcd,
        Cluster(tmp_path / "c", url.format(port=etcd.port), nodes=0, leader_ttl_ms=leader_ttl_ms) as cluster,
    ):
        first, standby = cluster.primary(), cluster.standby()
        (first.kill if how == "killed" else first.pause)()
        assert cluster.primary(but=first) is standby
        line = became_primary(standby)
        assert knew in line["knew"] or "its process is gone" in line["knew"] or "ran out" in line["knew"]


def shows_it(standby: Process, reasons: set[str]) -> bool:
    status = standby.status()
    reasons.add(status.get("promotable_reason", "no answer"))
    print(reasons)
    return not status.get("promotable", True) and "does not answer" in status["promotable_reason"]


def test_an_unreachable_store_is_said_again_while_it_lasts(tmp_path: Path) -> None:
    """I17: not at every try, and not once only."""
    with (
        start_etcd(tmp_path / "etcd") as etcd,
        Cluster(tmp_path / "cluster", f"etcd://127.0.0.1:{etcd.port}/spoken", nodes=0) as cluster,
    ):
        cluster.primary()  # Before there is one, any of them may become it.
        standby = cluster.standby()
        etcd.pause()
        try:
            said = "coordination does not answer"
            wait_until(lambda: lines_of(standby, said), 40, "it is said")
            reasons: set[str] = set()
            wait_until(lambda: shows_it(standby, reasons), 40, "it is shown too")
            wait_until(lambda: len(lines_of(standby, said)) >= 2, 60, "it is said again")
            assert "s now)" in lines_of(standby, said)[1]["event"]
            assert len(standby.said().splitlines()) < 60
        finally:
            etcd.resume()
        wait_until(lambda: "it works again" in standby.said(), 40, "its end is said")
