"""`holdfast status --watch`: drawn again and again on a terminal, printed again and again elsewhere."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import prefork
from tests.cli.live.pty_program import PtyProgram
from tests.failover.cluster import Cluster
from tests.waiting import wait_until


@pytest.mark.timeout(300)
def test_status_is_drawn_again_through_a_failover(cluster: Cluster) -> None:
    command = ("status", "--watch", "0.2", "--timeout", "2", "--address", cluster.address)
    with PtyProgram(*command, columns=160) as shown:
        primary, heir = cluster.primary(), cluster.standby()
        shown.until(f"{primary.status()['name']} (primary")
        name = heir.status()["name"]
        primary.kill()
        shown.until(f"{name} (primary")
        assert not shown.is_given_back()
        assert shown.end("q") == 0
        assert shown.is_given_back()


@pytest.mark.timeout(300)
def test_elsewhere_every_look_is_a_document_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = [sys.executable, "-m", "holdfast", "status", "--watch", "0.1", "--json", "--address", cluster.address]
    with told.open("wb") as output, prefork.Popen(command, stdin=subprocess.DEVNULL, stdout=output) as watching:
        try:
            wait_until(lambda: told.read_text().count("\n") >= 3, 60, "three looks")
            watching.send_signal(signal.SIGINT)
            assert watching.wait(60) == 0
        finally:
            if watching.poll() is None:
                watching.kill()
    assert {json.loads(line)["role"] for line in told.read_text().splitlines()} == {"primary"}


def test_seconds_without_watch_are_told(cluster: Cluster) -> None:
    done = prefork.holdfast("status", "5", "--address", cluster.address)
    assert done.returncode == 2
    assert "--watch 5" in done.stderr
    assert prefork.holdfast("status", "--watch", "0.001", "--address", cluster.address).returncode == 2
