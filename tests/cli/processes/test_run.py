"""`master` and `node` as processes of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = [sys.executable, "-m", "holdfast"]
ANY_PORTS = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]


def ended(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}
    return subprocess.run([*PYTHON, *arguments], capture_output=True, text=True, timeout=60, env=environment)


@pytest.mark.parametrize("arguments", [("master", *ANY_PORTS), ("node", "--listen", "127.0.0.1:0", "--size", "1MiB")])
def test_a_process_whose_parent_has_already_ended_does_not_start(arguments: tuple[str, ...]) -> None:
    result = ended(*arguments, HOLDFAST_PARENT_PID="1000000000")
    assert result.returncode == 3
    assert result.stderr == "holdfast: the process that started this one has ended; nothing was started\n"


@pytest.mark.parametrize("flag", ["--listen", "--http"])
def test_a_master_says_which_port_is_in_use(flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = ended("master", *ANY_PORTS, flag, f"127.0.0.1:{port}")
    assert result.returncode == 1
    assert f":{port}" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("setting", "warned"), [("a", True), ("b", False)])
def test_a_master_says_which_of_two_cluster_names_counts(setting: str, warned: bool, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/coordination.db?cluster=b"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        arguments = ["--cluster", setting, "--coordination", url, "--listen", f"127.0.0.1:{port}"]
        result = ended("master", *ANY_PORTS, *arguments)
    assert ("cluster is a, and the URL of coordination says b, which counts" in result.stderr) == warned


def test_a_node_says_which_port_is_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = ended("node", "--listen", f"127.0.0.1:{port}", "--size", "1MiB")
    assert result.returncode == 1
    assert str(port) in result.stderr
    assert "Traceback" not in result.stderr


def test_a_setting_that_cannot_be_used_stops_a_process_before_it_starts() -> None:
    result = ended("master", *ANY_PORTS, HOLDFAST_LEASE_TTL_MS="soon")
    assert result.returncode == 2
    assert result.stderr.startswith("holdfast: HOLDFAST_LEASE_TTL_MS: ")
