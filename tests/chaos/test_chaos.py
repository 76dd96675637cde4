"""A short run of `make chaos`: real processes in namespaces, a few faults, and nothing lost or wrong.

Where network namespaces are not allowed it is skipped, and says so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.namespaces import why_not
from tests.failover.cluster import SOURCE
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 110
SMALL = ("--masters", "2", "--nodes", "1", "--clients", "1")
TINY = ("--masters", "1", "--nodes", "1", "--clients", "1", "--only", "node stopped")

REASON = why_not()
pytestmark = [pytest.mark.skipif(bool(REASON), reason=REASON), pytest.mark.timeout(240)]


def start(*flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "chaos", *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"},
    )


def processes_in(folder: Path) -> list[str]:
    """Command lines of processes that name the folder."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # It has ended.
        if str(folder) in text and " -m chaos " not in text:
            found.append(text)
    return found


def test_a_cluster_under_faults_loses_nothing_and_reads_nothing_wrong(tmp_path: Path) -> None:
    """I1, I2, I7, I9, I13 over real processes: a primary is killed, links are cut, a node is stopped."""
    faults = ("primary killed", "master and node cut", "client and node cut one way", "node stopped", "etcd stopped")
    only = [part for fault in faults for part in ("--only", fault)]
    sizes = ["--masters", "2", "--nodes", "2", "--clients", "3"]
    folder = tmp_path / "run"
    ran = start("--seconds", "16", "--every", "4", "--seed", "5", "--json", "--folder", str(folder), *sizes, *only)
    said, progress = ran.communicate(timeout=220)
    assert ran.returncode == 0, f"{progress}\n{said}"
    verdict = json.loads(said)
    assert verdict["seed"] == 5
    assert "--seed 5" in verdict["replay"]
    assert sum(row["times"] for row in verdict["by_fault"].values()) >= 3
    assert verdict["calls"] > 200
    assert not processes_in(folder)


def test_a_loss_is_found_and_told_with_the_seed_and_the_logs_are_kept(tmp_path: Path) -> None:
    """A node's memory is given up though no fault of the run struck a node: the run must not call that good."""
    folder = tmp_path / "run"
    ran = start(
        *("--seconds", "6", "--every", "3", "--seed", "6", "--only", "handed over", "--folder", str(folder)),
        *SMALL,
    )
    try:
        wait_until(lambda: len(list(folder.glob("*.history"))) == 1, WITHIN_S, "clients are at work")
        wait_until(lambda: histories_have(folder, 200), WITHIN_S, "something was put")
        node = next(pid for pid in pids_in(folder / "node-1") if pid != ran.pid)
        os.kill(node, signal.SIGKILL)
        said, progress = ran.communicate(timeout=220)
    finally:
        ran.kill()
        ran.wait()
    assert ran.returncode == 1, f"{progress}\n{said}"
    assert "node-1 ended by itself" in said
    assert "--seed 6" in progress
    assert (folder / "node-1" / "log").exists()
    assert (folder / "master-1" / "log").exists()


def test_an_interrupted_run_tells_what_it_has_and_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ran = start("--seconds", "600", "--seed", "7", *TINY, "--folder", str(folder))
    try:
        wait_until(lambda: histories_have(folder, 50), WITHIN_S, "clients are at work")
        ran.send_signal(signal.SIGINT)
        said, progress = ran.communicate(timeout=WITHIN_S)
    finally:
        ran.kill()
        ran.wait()
    assert "interrupted" in progress
    assert "availability" in said
    assert not processes_in(folder)


def test_a_run_that_is_killed_leaves_no_process_and_no_namespace(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ran = start("--seconds", "600", "--seed", "8", *TINY, "--folder", str(folder))
    try:
        wait_until(lambda: histories_have(folder, 10), WITHIN_S, "a client is at work")
        assert processes_in(folder)
    finally:
        ran.kill()
        ran.communicate()
    wait_until(lambda: not processes_in(folder), what="everything has ended with the run")


def histories_have(folder: Path, lines: int) -> bool:
    return sum(len(path.read_text().splitlines()) for path in folder.glob("*.history")) > lines


def pids_in(folder: Path) -> list[int]:
    """Of processes whose command line names a file in the folder."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"{folder}/" in path.read_bytes().decode(errors="replace"):
                found.append(int(path.parent.name))
        except OSError:
            continue  # It has ended.
    return found
