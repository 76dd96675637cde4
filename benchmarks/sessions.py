"""Ten thousand followers of one master, over as many connections: what they cost it, and how soon one is told.

CPU is what the kernel counted for the master over two whole rounds of keepalives, in steady state. A stamp carries the
time at which the master was asked to notify; the clock is the machine's, so the follower's reading of it can be
compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Row, Scale, most_row
from benchmarks.processes import SOURCE

ROOT = str(Path(__file__).parents[1])
CROWDS = ("a", "b")
"""Processes of followers; a name begins with its crowd's."""
ROUND_S = 7.0
STAMPS = 200


def run(scale: Scale) -> list[Row]:
    count = scale.of(10_000, 400)
    with started("session_master") as master:
        address = _line(master)
        with contextlib.ExitStack() as crowds:
            each = count // len(CROWDS)
            children = [
                crowds.enter_context(started("session_crowd", address, f"{crowd}-", str(each))) for crowd in CROWDS
            ]
            for child in children:
                assert _line(child) == "ready"
            time.sleep(ROUND_S)  # The first keepalives are all of one moment; let them come apart.
            share = _cpu_share(master.pid, scale.of(3, 1) * ROUND_S)
            latencies, trouble = _stamps(master, children, scale.of(STAMPS, 20), each)
    return [
        most_row(f"CPU of the master with {count:,} sessions", share, "of a core", 0.25),
        most_row("notify to receipt at that load, median", statistics.median(latencies), "ms", 50.0),
        most_row("notify to receipt at that load, p99", statistics.quantiles(latencies, n=100)[-1], "ms", 500.0),
        most_row("sessions that fell into jeopardy meanwhile", trouble, "sessions", 0),
    ]


def _stamps(
    master: subprocess.Popen[str], children: list[subprocess.Popen[str]], count: int, each: int
) -> tuple[list[float], int]:
    chance = random.Random(1)
    assert master.stdin is not None
    for _ in range(count):
        master.stdin.write(f"notify {chance.choice(CROWDS)}-{chance.randrange(each)}\n")
        master.stdin.flush()
        time.sleep(0.05)
    time.sleep(1.0)
    latencies: list[float] = []
    trouble = 0
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
        told = json.loads(_line(child))
        latencies += told["latencies_ms"]
        trouble += told["trouble"]
    if len(latencies) != count:
        raise SystemExit(f"{count - len(latencies)} of {count} commands did not reach their follower")
    return latencies, trouble


def _cpu_share(pid: int, seconds: float) -> float:
    started, used = time.monotonic(), _cpu_seconds(pid)
    time.sleep(seconds)
    return (_cpu_seconds(pid) - used) / (time.monotonic() - started)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def started(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([SOURCE, ROOT])},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise SystemExit("a process of the benchmark ended early; what it said is above")
    return line
