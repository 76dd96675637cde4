"""A log whose reader is slow, stopped or gone holds up nobody."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.processes.log_stream import BACKLOG_BYTES, LogStream
from tests.failover.cluster import SOURCE
from tests.waiting import wait_until

LINE = "a line that nobody reads yet, number {:08}\n"
LINE_BYTES = len(LINE.format(0))
ONE_PAGE = 4096


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Its two ends, with room for one page."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, ONE_PAGE)
    yield reading, writing
    for end in (reading, writing):
        os.close(end)


def read_until(reading: int, last: bytes) -> list[str]:
    """The lines up to this one."""
    found = b""
    while last not in found:
        found += os.read(reading, ONE_PAGE)
    return found[: found.index(last) + len(last)].decode().splitlines(keepends=True)


@pytest.mark.timeout(60)
def test_lines_wait_for_a_reader_that_is_slow_and_come_whole_and_in_order(pipe: tuple[int, int]) -> None:
    """I10."""
    stream = LogStream(pipe[1])
    lines = [LINE.format(number) for number in range(2_000)]
    for line in lines:
        stream.write(line)
    assert read_until(pipe[0], lines[-1].encode()) == lines
    stream.write("at once again\n")
    assert read_until(pipe[0], b"again\n") == ["at once again\n"]


@pytest.mark.timeout(60)
def test_a_log_that_nobody_reads_is_bounded_and_the_end_of_the_process_waits_for_nobody(pipe: tuple[int, int]) -> None:
    """I17."""
    stream = LogStream(pipe[1])
    for number in range(3 * BACKLOG_BYTES // LINE_BYTES):
        stream.write(LINE.format(number))
    stream.wait(0.01)
    told = read_until(pipe[0], LINE.format(BACKLOG_BYTES // LINE_BYTES).encode())
    assert told == [LINE.format(number) for number in range(len(told))]


def test_a_reader_that_has_gone_is_no_error(pipe: tuple[int, int]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    LogStream(writing).write("to nobody\n")
    os.close(writing)


DROPPING = """
import logging, sys
from holdfast.cli.processes.logs import configure_logs
configure_logs("info", "json", "m", "c")
for number in range(20_000):
    logging.getLogger("holdfast").info("line %d %s", number, "x" * 100)
print("all were logged", flush=True)
sys.stdin.read()
"""


def test_dropped_lines_are_counted_in_a_line_of_their_own() -> None:
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, "-c", DROPPING], text=True, env={**os.environ, "PYTHONPATH": SOURCE}, **streams
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "all were logged\n"
        found = []
        while "were dropped" not in (line := json.loads(process.stderr.readline()))["event"]:
            found.append(line["event"])
        process.stdin.close()
    assert [event.split()[1] for event in found] == [str(number) for number in range(len(found))]
    assert int(line["event"].split(": ")[1].split()[0]) == 20_000 - len(found)


def test_a_master_whose_log_nobody_reads_serves_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """I10: its loop writes the log, and a full pipe once stopped it for good."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, ONE_PAGE)
    os.write(writing, b"x" * ONE_PAGE)
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "holdfast", "master", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    command += ["--name", "unheard", "--ready-file", str(ready), "--data-dir", str(tmp_path / "data")]
    with subprocess.Popen(command, stderr=writing, env={**os.environ, "PYTHONPATH": SOURCE}) as process:
        try:
            wait_until(ready.exists, 60, "the master is ready")
            http = json.loads(ready.read_text())["http"]
            with urllib.request.urlopen(f"http://{http}/healthz", timeout=30) as answer:
                assert answer.status == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            os.close(reading)
            os.close(writing)
