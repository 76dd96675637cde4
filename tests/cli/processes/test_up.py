"""`holdfast up` as a user runs it: real processes, from the first line to the last."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.cli.processes import ports, up
from holdfast.errors import Refused
from tests.waiting import wait_until

PYTHON = [sys.executable, "-m", "holdfast"]
SMALL = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--size", "16MiB"]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


@contextmanager
def running(tmp_path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    ready = tmp_path / "up.json"
    command = [*PYTHON, "up", *SMALL, "--data-dir", str(tmp_path / "data"), "--ready-file", str(ready), *arguments]
    # What is killed cannot tidy up. The path is short, because that of a Unix socket must be.
    with (
        tempfile.TemporaryDirectory(prefix="hf-") as short,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(TMPDIR=short)
        ) as process,
    ):
        try:
            wait_until(lambda: ready.exists() or process.poll() is not None, 60, "up or an early end")
            assert process.poll() is None, process.communicate()
            yield process, json.loads(ready.read_text())
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def holdfast(facts: dict[str, Any], *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [*PYTHON, *arguments, "--address", facts["address"]]
    return subprocess.run(command, input=given, capture_output=True, timeout=60, env=environment())


def pids(facts: dict[str, Any]) -> list[int]:
    return [one["pid"] for one in facts["masters"] + facts["nodes"]]


def primary(facts: dict[str, Any]) -> dict[str, Any]:
    return next(master for master in facts["masters"] if master["name"] == facts["primary"])


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def none_alive(pids: list[int]) -> bool:
    return not any(map(alive, pids))


def test_a_cluster_starts_stores_and_ends_cleanly(tmp_path: Path) -> None:
    with running(tmp_path, "--nodes", "2") as (process, facts):
        assert len(set(pids(facts))) == 4
        stored = holdfast(facts, "put", "greeting", given=b"\x00hello")
        assert stored.returncode == 0, stored.stderr
        assert holdfast(facts, "get", "greeting").stdout == b"\x00hello"
        assert len(json.loads(holdfast(facts, "nodes", "--json").stdout)) == 2
        assert json.loads(holdfast(facts, "doctor", "--json").stdout)["ok"] is True
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "holdfast is up" in out
    assert f"export HOLDFAST_ADDRESS={facts['address']}" in out
    assert f"kill -9 {primary(facts)['pid']}" in out
    assert "Traceback" not in err
    assert not [pid for pid in pids(facts) if alive(pid)]
    assert not (tmp_path / "up.json").exists()


def test_what_dies_is_started_again_where_it_was(tmp_path: Path) -> None:
    with running(tmp_path) as (process, facts):
        for pid in pids(facts):
            os.kill(pid, signal.SIGKILL)

        def stored() -> bool:
            return holdfast(facts, "put", "again", "--timeout", "5", given=b"1").returncode == 0

        wait_until(stored, 90, "the cluster to be back")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    for name in ("master-1", "master-2"):
        assert f"{name} ended by SIGKILL; it is started again in 0.5 s" in err
    assert "node-1 was started again" in err


def test_the_children_die_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    with running(tmp_path) as (process, facts):
        process.kill()
        wait_until(lambda: not any(alive(pid) for pid in pids(facts)), 60, "the end of the children")


def test_a_token_is_needed_and_is_not_on_the_command_line(tmp_path: Path) -> None:
    with running(tmp_path, "--token", "hush") as (_, facts):
        assert holdfast(facts, "status").returncode == 1
        assert holdfast(facts, "status", "--token", "hush").returncode == 0
        assert not [pid for pid in pids(facts) if "hush" in psutil.Process(pid).cmdline()]


def test_a_directory_of_an_earlier_cluster_is_used_again(tmp_path: Path) -> None:
    """I14: its nodes are new, so that nothing of their old memory is served; the log goes on."""
    epochs = []
    for value in (b"first", b"second"):
        with running(tmp_path, "--masters", "1") as (process, facts):
            assert holdfast(facts, "get", "greeting").returncode == 4
            assert holdfast(facts, "put", "greeting", given=value).returncode == 0
            assert holdfast(facts, "get", "greeting").stdout == value
            epochs.append(json.loads(holdfast(facts, "status", "--json").stdout)["epoch"])
            for pid in [process.pid, *pids(facts)]:
                os.kill(pid, signal.SIGKILL)
            wait_until(partial(none_alive, pids(facts)), 30, "the end of the children")
        (tmp_path / "up.json").unlink()
    assert epochs == [1, 2]


def test_two_clusters_do_not_share_a_directory(tmp_path: Path) -> None:
    with up.locked(tmp_path):
        arguments = ["up", *SMALL, "--data-dir", str(tmp_path)]
        result = subprocess.run([*PYTHON, *arguments], capture_output=True, text=True, timeout=60, env=environment())
    assert result.returncode == 1
    assert "another holdfast up runs on" in result.stderr


@pytest.mark.parametrize("flag", ["--listen", "--http"])
def test_a_port_in_use_is_one_line_that_names_it(tmp_path: Path, flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        arguments = ["up", *SMALL, "--data-dir", str(tmp_path), flag, f"127.0.0.1:{port}"]
        result = subprocess.run([*PYTHON, *arguments], capture_output=True, text=True, timeout=60, env=environment())
    assert result.returncode == 1
    assert f"port {port} on 127.0.0.1" in result.stderr
    assert flag in result.stderr
    assert result.stderr.count("\n") == 1


def test_more_memory_than_there_is_is_refused_before_anything_starts(tmp_path: Path) -> None:
    arguments = ["up", *SMALL, "--data-dir", str(tmp_path / "data"), "--size", "1000TiB"]
    result = subprocess.run([*PYTHON, *arguments], capture_output=True, text=True, timeout=60, env=environment())
    assert result.returncode == 1
    assert "lend less, or use --force" in result.stderr
    assert not (tmp_path / "data").exists()


def test_the_next_free_port_passes_over_taken_ones() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert ports.bind_fault("127.0.0.1", port) == "address already in use"
        assert ports.next_free_port("127.0.0.1", port, taken=set()) > port
    with pytest.raises(Refused, match="no port from 65536"):
        ports.next_free_port("127.0.0.1", 65_536, taken=set())


def test_further_masters_pass_over_the_ports_of_the_nodes() -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    taken = {port}
    [master] = ports.further_places(f"127.0.0.1:{port}", 1, 3, taken)
    assert int(master.rpartition(":")[2]) >= port + 3
    nodes = ports.further_places(f"127.0.0.1:{port}", 2, 1, taken)
    assert len({master, *nodes}) == 3
    assert ports.further_places("127.0.0.1:0", 2, 1, set()) == ["127.0.0.1:0", "127.0.0.1:0"]


def test_a_master_that_listens_everywhere_is_reached_here() -> None:
    assert ports.reachable("0.0.0.0:7070") == "127.0.0.1:7070"
    assert ports.reachable("[::]:7070") == "[::1]:7070"
    assert ports.reachable("10.0.0.1:7070") == "10.0.0.1:7070"


def test_a_ready_file_without_a_directory_is_refused_before_anything_starts(tmp_path: Path) -> None:
    command = [
        *PYTHON,
        "up",
        *SMALL,
        "--data-dir",
        str(tmp_path / "data"),
        "--ready-file",
        str(tmp_path / "no" / "file"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
    told = f"holdfast: --ready-file: there is no directory {tmp_path / 'no'}. Nothing was started\n"
    assert (ended.returncode, ended.stderr) == (2, told)
    assert not (tmp_path / "data").exists()
