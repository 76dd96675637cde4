"""`holdfast events` over real masters: what all of them noted, and on through the death of the primary."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.messages.requests import ChangeMode
from tests import prefork
from tests.failover.cluster import Cluster
from tests.waiting import wait_until


@pytest.mark.timeout(300)
def test_events_are_told_once_as_lines_and_as_one_document(cluster: Cluster) -> None:
    text = prefork.holdfast("events", "--address", cluster.address)
    assert (text.returncode, text.stderr) == (0, "")
    assert "segment mounted  node-1: 33,554,432 bytes" in text.stdout
    found = json.loads(prefork.holdfast("events", "--json", "--address", cluster.address).stdout)["events"]
    assert len(found) == len(text.stdout.splitlines())
    none = prefork.holdfast("events", "--limit", "0", "--address", cluster.address)
    assert (none.returncode, none.stdout, none.stderr) == (0, "", "")
    assert set(found[0]) == {"date_ms", "kind", "subject", "text", "master", "age_ms"}
    assert [one["date_ms"] for one in found] == sorted(one["date_ms"] for one in found)
    last = json.loads(prefork.holdfast("events", "--json", "-n", "1", "--address", cluster.address).stdout)["events"]
    assert [(one["master"], one["date_ms"]) for one in last] == [(found[-1]["master"], found[-1]["date_ms"])]


@pytest.mark.timeout(300)
def test_follow_ends_when_its_reader_has_ended(cluster: Cluster) -> None:
    """As in `holdfast events --follow | head -1`: nothing more happens in the cluster."""
    command = [sys.executable, "-m", "holdfast", "events", "--follow", "--address", cluster.address]
    with prefork.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as follower:
        try:
            assert follower.stdout is not None
            assert follower.stdout.readline()
            follower.stdout.close()
            assert follower.wait(60) == 141
        finally:
            if follower.poll() is None:
                follower.kill()


@pytest.mark.timeout(300)
def test_follow_survives_a_failover_and_tells_every_event_once(cluster: Cluster, tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = [sys.executable, "-m", "holdfast", "events", "--follow", "--json", "--address", cluster.address]

    def events() -> list[dict[str, object]]:
        return [json.loads(line) for line in told.read_text().splitlines()]

    with told.open("wb") as output, prefork.Popen(command, stdin=subprocess.DEVNULL, stdout=output) as follower:
        try:
            wait_until(lambda: any(one["kind"] == "segment_mounted" for one in events()), 60, "earlier events are told")
            primary, heir = cluster.primary(), cluster.standby()
            name, before = heir.status()["name"], len(events())
            primary.kill()

            def promoted() -> bool:
                return any(one["kind"] == "primary" and one["subject"] == name for one in events()[before:])

            wait_until(promoted, 90, "the new primary's promotion is told")
            with cluster.connect() as cache:
                cache.operate(ChangeMode("node-2", "cordoned"))
                cache.operate(ChangeMode("node-2", "open"))
            wait_until(lambda: any(one["kind"] == "node_cordoned" for one in events()), 60, "later events are told")
            found = [(one["master"], one["date_ms"]) for one in events()]
            assert len(found) == len(set(found))
            follower.send_signal(signal.SIGINT)
            assert follower.wait(60) == 0
        finally:
            if follower.poll() is None:
                follower.kill()
