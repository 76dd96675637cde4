"""A process of the fork server is what one would have been that was started with exec."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import prefork
from tests.waiting import wait_until

VARIABLES = {"PYTHONPATH": str(prefork.ROOT), "ANY": "1"}


@contextmanager
def probe(code: int = 0, **more: Any) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A running probe and what it says of itself."""
    command = [sys.executable, "-m", "tests.prefork_probe", str(code)]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with prefork.Popen(command, text=True, **streams, **more) as process:
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


@pytest.fixture(params=["forked", "started with exec"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefork, "_allowed", request.param == "forked")


@pytest.mark.usefixtures("_both_ways")
class TestAProcess:
    def test_is_a_child_of_the_test_with_nothing_of_the_servers(self, tmp_path: Path) -> None:
        with probe(cwd=tmp_path, env=VARIABLES, start_new_session=True) as (process, facts):
            assert facts["parent"] == os.getpid()
            assert facts["session"] == facts["group"] == process.pid
            assert facts["directory"] == str(tmp_path)
            assert facts["arguments"] == ["0"]
            assert set(VARIABLES) <= set(facts["variables"]) <= {*VARIABLES, "LC_CTYPE"}
            assert facts["threads"] == 1
            assert facts["descriptors"] == 3

    def test_stays_in_the_group_of_the_test_unless_told_otherwise(self) -> None:
        with probe(env=VARIABLES) as (_, facts):
            assert facts["group"] == os.getpgid(0)

    @pytest.mark.parametrize("code", [0, 7])
    def test_tells_its_exit_code(self, code: int) -> None:
        with probe(code, env=VARIABLES) as (process, _):
            assert process.poll() is None
            process.stdin.close()
            assert process.wait(60) == code

    @pytest.mark.parametrize(("sent", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, -15), (signal.SIGINT, 99)])
    def test_is_ended_by_a_signal(self, sent: signal.Signals, code: int) -> None:
        with probe(env=VARIABLES) as (process, _):
            # Before it blocks, it could read on: a signal that comes between Python's last look and the system call is
            # seen after the call.
            wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING, 60, "it reads")
            process.send_signal(sent)
            assert process.wait(60) == code

    def test_can_be_stopped_and_continued(self) -> None:
        with probe(3, env=VARIABLES) as (process, _):
            process.send_signal(signal.SIGSTOP)
            wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, 60, "it is stopped")
            process.send_signal(signal.SIGCONT)
            process.stdin.close()
            assert process.wait(60) == 3


def test_the_command_line_answers_as_ever() -> None:
    done = prefork.holdfast("master", "--leader-ttl-ms", "soon")
    assert done.returncode == 2
    assert done.stderr.startswith("holdfast: ")
    assert prefork.holdfast("--version").stdout.startswith("holdfast ")


def test_orphans_of_others_are_not_adopted() -> None:
    """They would stay as zombies, and tests that wait for their end would wait for ever."""
    assert prefork.holdfast("--version").returncode == 0
    waiting = "subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0, stdout=subprocess.DEVNULL)"
    script = f"import subprocess, sys; print({waiting}.pid)"
    told, tell = os.pipe()
    with os.fdopen(told), os.fdopen(tell, "w") as to_orphan:
        ended = subprocess.run(
            [sys.executable, "-c", script], stdin=told, stdout=subprocess.PIPE, text=True, timeout=60
        )
        orphan = psutil.Process(int(ended.stdout))
        assert orphan.ppid() != os.getpid()
        to_orphan.write("\n")
    assert psutil.wait_procs([orphan], 60)[0] == [orphan]
