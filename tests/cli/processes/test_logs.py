"""Every line of a JSON log is JSON with the name and the cluster of its process, whoever wrote it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.failover.cluster import Cluster, Process
from tests.waiting import wait_until

SOURCE = str(Path(holdfast.__file__).parents[1])
NOISY = """
import asyncio, gc, logging, threading, warnings
from holdfast.cli.processes.logs import configure_logs
assert configure_logs("info", "auto", "master-1", "prod")
import structlog
structlog.get_logger("holdfast.master").info("ours", bytes=7)
structlog.get_logger("holdfast.master").info("with %s", "arguments")
structlog.get_logger("holdfast.master").info("another name", name="of something else")
logging.getLogger("kazoo").error("two\\nlines of %s", "a library")
logging.getLogger("uvicorn.error").error("of the HTTP server")
warnings.warn("careful", ResourceWarning)
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("grpc").exception("with a traceback")
thread = threading.Thread(target=lambda: {}["missing"], name="reports")
thread.start()
thread.join()

class Unraisable:
    def __del__(self):
        raise ValueError("in a finalizer")

Unraisable()

async def forgotten():
    async def fails():
        raise KeyError("nobody awaits this")
    asyncio.create_task(fails())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gc.collect()

asyncio.run(forgotten())
raise RuntimeError("the end")
"""


def lines_of(text: str) -> list[dict[str, Any]]:
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            raise AssertionError(f"a line that is no JSON: {line!r}") from None
    return found


def test_whoever_writes_a_line_it_is_json_with_name_and_cluster() -> None:
    environment = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONWARNINGS": "default"}
    ran = subprocess.run([sys.executable, "-c", NOISY], capture_output=True, text=True, env=environment, timeout=60)
    assert ran.returncode == 1
    assert not ran.stdout
    lines = lines_of(ran.stderr)
    assert {(line["name"], line["cluster"]) for line in lines} == {("master-1", "prod")}
    said = [line["event"] for line in lines]
    assert said[:2] == ["ours", "with arguments"]
    for part in ("lines of a library", "careful", "with a traceback", "'missing'", "in a finalizer", "the end"):
        assert sum(part in event for event in said) == 1, part
    assert any("nobody awaits this" in line.get("exception", "") for line in lines)
    assert all("level" in line and "timestamp" in line for line in lines)


FORGING = """
import logging
from holdfast.cli.processes.logs import configure_logs
configure_logs("info", STYLE, "master-1", "prod")
import structlog
name = "node\\n2026-11-18T00:00:00Z [info] forged\\x1b[2J"
structlog.get_logger("holdfast.master").info("a node left: %s" % name, node=name)
logging.getLogger("holdfast.client").warning("no such key: %s", name)
try:
    raise KeyError(name) from ValueError("of\\n2026-11-18T00:00:00Z [info] forged too\\x1b[2J")
except KeyError:
    structlog.get_logger("holdfast.master").exception("a request failed", key=name)
"""


@pytest.mark.parametrize("style", ["console", "json"])
def test_no_name_forges_a_line_of_the_log(style: str) -> None:
    environment = {**os.environ, "PYTHONPATH": SOURCE, "NO_COLOR": "1"}
    script = FORGING.replace("STYLE", repr(style))
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert "forged" in ran.stderr
    for line in re.sub("\x1b\\[[0-9;]*m", "", ran.stderr).split("\n"):
        assert not line.startswith("2026-11-18T00:00:00Z")
        assert line.isprintable(), line


def test_a_cluster_through_an_outage_and_a_failover_logs_json_only(tmp_path: Path) -> None:
    with Cluster(tmp_path, f"sqlite://{tmp_path}/coordination.db", cluster="spoken") as cluster:
        cluster.standby()
        with cluster.connect() as cache:
            cache.put("key", b"x" * 1_000)
            cluster.primary().kill()
            cluster.primary()
            assert cache.get("key") == b"x" * 1_000
        # One that cannot even start, on a port that is taken.
        late = cluster.new_master("master-3")
        late.address = cluster.primary().address
        late.start()
        wait_until(lambda: not late.alive, 60, "it gives up")
        processes: list[Process] = [*cluster.masters, *cluster.nodes, late]
    for process in processes:
        lines = lines_of(process.said())
        assert lines, process.folder.name
        assert {line["name"] for line in lines} == {process.folder.name}
        assert all("cluster" in line for line in lines)
    assert any("cannot listen on" in line["event"] for line in lines_of(late.said()))
    assert {line["cluster"] for line in lines_of(cluster.masters[0].said())} == {"spoken"}
