"""`demo` as a newcomer runs it, only shorter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from holdfast.cli.demo.command import check_own_cluster
from holdfast.errors import Refused
from tests.cli.processes.test_up import PYTHON, environment
from tests.waiting import wait_until

SHORT = ["demo", "--objects", "300", "--value-size", "256KiB", "--seconds", "1.5"]
"""Large enough that the new primary must grant memory right after it took over."""


def test_the_demo_kills_the_primary_and_loses_nothing(folder: Path) -> None:
    """I1."""
    # Settings of a cluster of the user's own must not reach that of the demo.
    variables = environment(TMPDIR=str(folder), HOLDFAST_TOKEN="hush", HOLDFAST_DURABILITY="memory")
    result = subprocess.run([*PYTHON, *SHORT, "--json"], capture_output=True, text=True, timeout=110, env=variables)
    assert result.returncode == 0, result.stdout + result.stderr
    facts = json.loads(result.stdout)
    assert (facts["acknowledged"], facts["verified"], facts["lost"], facts["wrong"]) == (300, 300, 0, 0)
    assert facts["acknowledged_after_kill"] > 0
    assert facts["outage_ms"] > 0
    assert {facts["killed"], facts["new_primary"]} == {"master-1", "master-2"}
    assert facts["digests_equal"] is not False
    assert "was killed with SIGKILL" in result.stderr
    assert not list(folder.iterdir())


def interrupted(arguments: list[str], folder: Path, at: str) -> list[psutil.Process]:
    """Interrupts a demo when it prints this. Returns the processes that it had started; all of them have ended."""
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(TMPDIR=str(folder))
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if at in line:
                break
        children = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    wait_until(lambda: not any(child.is_running() for child in children), 30, "the end of what it started")
    assert not list(folder.iterdir())
    return children


def test_a_demo_that_is_interrupted_ends_all_that_it_started(folder: Path) -> None:
    arguments = [*PYTHON, "demo", "--objects", "1000", "--value-size", "1KiB", "--seconds", "300"]
    assert len(interrupted(arguments, folder, "clients write")) >= 3


@pytest.mark.parametrize("url", ["etcd://h:2379/production", "sqlite:///tmp/x.db?cluster=mine"])
def test_a_demo_kills_no_primary_of_a_cluster_that_has_a_name(url: str) -> None:
    with pytest.raises(Refused, match="Leave the name out"):
        check_own_cluster(url)


def test_a_demo_may_use_coordination_that_is_there() -> None:
    check_own_cluster("")
    check_own_cluster("etcd://h:2379")
