"""Every command of the README, of the first five minutes and of the guides: run as it stands there, or excused.

A command is a line of an indented block that begins with one of `PROGRAMS`, or Python in a fenced block. It runs in a
shell against a cluster of its own; only addresses and sizes are others (`at_this_cluster`). One that cannot run here
has a line in `EXCUSED` with the reason; a line of the user's own (`...`) is no command yet. The shell blocks of
security.md run in one piece (`test_security_guide.py`), the Python of README, start and clients in `test_readme.py`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.processes import SOURCE
from holdfast.messages.requests import ChangeMode
from tests.failover.cluster import Cluster
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "docs/start.md",
    *sorted(f"docs/guides/{one.name}" for one in (ROOT / "docs/guides").glob("*.md")),
]
PROGRAMS = ("holdfast", ".venv/bin/holdfast", "curl", "make", "python", "pip", "uvx", "kill", "export", "chmod")
ENDLESS = ("holdfast status --watch", "holdfast events --follow", "curl -N")
"""They run until somebody ends them: here by Ctrl-C, once they have printed something."""
DEVELOPMENT = "of development: it builds or tests for minutes, and CI runs it"
OTHER_MACHINES = "names machines and stores of the reader's; tests/failover and tests/e2e/test_tls.py do the same here"
IDENTITIES = "needs identities: tests/e2e/test_security_guide.py runs a cluster with them"
RESTORE = "ends a history: tests/failover/test_restore.py"
EXCUSED = {
    ("README.md", "pip install . && vllm"): "needs a GPU",
    ("README.md", "make "): DEVELOPMENT,
    ("README.md", ".venv/bin/holdfast demo"): "tests/cli/demo/test_command.py kills a primary with it",
    ("docs/start.md", "make up"): "installs into .venv; the commands below run on the cluster of this test",
    ("docs/start.md", "uvx"): "needs a package index",
    ("docs/start.md", "kill -9 PID"): "the killed primary is a story of many tests",
    ("docs/guides/chaos.md", ""): DEVELOPMENT,
    ("docs/guides/simulation.md", ""): DEVELOPMENT,
    ("docs/guides/events.md", ""): "tests/failover/test_object_events.py runs the same processes and the example",
    ("docs/guides/failover.md", "holdfast demo"): "tests/cli/demo/test_command.py",
    ("docs/guides/nodes.md", "holdfast nodes resize node-7 96GiB"): "needs a machine of that size",
    ("docs/guides/operating.md", "export HOLDFAST_TOKEN"): OTHER_MACHINES,
    ("docs/guides/operating.md", "holdfast master --listen"): OTHER_MACHINES,
    ("docs/guides/operating.md", "holdfast node --address etcd"): OTHER_MACHINES,
    ("docs/guides/operating.md", "holdfast config check"): "tests/cli/processes/test_config_file.py",
    ("docs/guides/operating.md", "curl -H"): OTHER_MACHINES,
    (
        "docs/guides/operating.md",
        "holdfast clients revoke",
    ): "tests/master/status/test_clients.py; the handle is one's own",
    ("docs/guides/operating.md", "holdfast status --token-file"): IDENTITIES,
    ("docs/guides/recovery.md", "holdfast restore"): RESTORE,
    ("docs/guides/tenants.md", "curl"): OTHER_MACHINES,
    ("docs/guides/tls.md", "holdfast master"): OTHER_MACHINES,
    ("docs/guides/tls.md", "holdfast node"): OTHER_MACHINES,
    ("docs/guides/tuning.md", "python -m benchmarks"): "measures for a minute; `make bench` runs it",
}
PYTHON = {"docs/guides/tensors.md", "docs/guides/tuning.md"}
"""Pages whose fenced Python is whole programs, which run here."""


class Command(NamedTuple):
    page: str
    text: str

    @property
    def reason(self) -> str:
        """Why it cannot run here; empty if it can."""
        return next(
            (why for (page, start), why in EXCUSED.items() if self.page == page and self.text.startswith(start)), ""
        )


def commands_of(page: str) -> Iterator[Command]:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    for found in re.finditer(r"^ {4}(\S(?:.*\\\n)*.*)$", text, re.MULTILINE):
        line = re.sub(r"\s*\\\n\s*", " ", found[1])
        if line.split()[0] in PROGRAMS and " ..." not in line:
            yield Command(page, line)


COMMANDS = [command for page in PAGES for command in commands_of(page)]
TO_RUN = [command for command in COMMANDS if not command.reason]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("guides")
    url = f"sqlite://{folder}/coordination.db?cluster=guides"
    with Cluster(folder, url, nodes=0, size="64MiB") as found:
        for name in ("node-1", "node-7"):
            found.add_node(name)
        found.standby()
        yield found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as a checkout looks, with `holdfast` on the path."""
    place = tmp_path_factory.mktemp("place")
    for name in ("bin", ".venv/bin"):
        (place / name).mkdir(parents=True)
        (place / name / "holdfast").write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
        (place / name / "holdfast").chmod(0o755)
    (place / "README.md").write_bytes((ROOT / "README.md").read_bytes())
    return place


def at_this_cluster(text: str, cluster: Cluster) -> str:
    """With the addresses of this cluster in the place of those on the page."""
    text = text.replace("host1:7070,host2:7070", cluster.address)
    text = text.replace("127.0.0.1:7080", cluster.primary().http)
    text = text.replace("10GiB", "10MiB").replace("40GiB", "40MiB")
    return text.replace("127.0.0.1:7070", cluster.address)


def started(text: str, cluster: Cluster, place: Path, **streams: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", at_this_cluster(text, cluster)],
        cwd=place,
        text=True,
        start_new_session=True,
        env={
            **os.environ,
            "PYTHONPATH": SOURCE,
            "PATH": f"{place / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOLDFAST_ADDRESS": cluster.address,
            "HOLDFAST_TIMEOUT": "60",
        },
        **streams,
    )


def run(text: str, cluster: Cluster, place: Path) -> str:
    """What it prints, and nothing about an error."""
    with started(text, cluster, place, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            printed, told = process.communicate(timeout=100)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, f"{text}\n{printed}\n{told}"
    assert "error" not in told.lower(), told
    return printed


def look_at(text: str, cluster: Cluster, place: Path) -> None:
    """Until it has printed something; then Ctrl-C ends it."""
    printed = place / "printed"
    with printed.open("w") as output, started(text, cluster, place, stdout=output, stderr=output) as process:
        try:
            wait_until(lambda: printed.stat().st_size > 0 or process.poll() is not None, 90, f"{text} prints")
            assert process.poll() is None, printed.read_text()
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(60) in (0, -signal.SIGINT, 128 + signal.SIGINT), printed.read_text()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def knows_its_successor(cluster: Cluster) -> bool:
    """Masters tell each other every few seconds how they stand; without that a primary hands over to nobody."""
    with urllib.request.urlopen(f"http://{cluster.primary().http}/api/v1/overview", timeout=10) as answer:
        masters = json.load(answer)["masters"]
    return any(one["role"] == "standby" and one["promotable"] for one in masters)


def open_nodes(cluster: Cluster) -> None:
    """Whatever the page before has done to them."""
    with cluster.connect() as cache:
        for name in ("node-1", "node-7"):
            cache.operate(ChangeMode(name, "open"))


def test_every_command_is_run_or_excused_for_a_reason() -> None:
    assert len(COMMANDS) > 60
    assert len(TO_RUN) > 30
    stale = [
        (page, start)
        for page, start in EXCUSED
        if not any(one.page == page and one.text.startswith(start) for one in COMMANDS)
    ]
    assert stale == [], "the page has no such command any more"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", sorted({command.page for command in TO_RUN}))
def test_the_commands_of_a_page_run_as_written(page: str, cluster: Cluster, place: Path) -> None:
    open_nodes(cluster)
    wait_until(lambda: knows_its_successor(cluster), 60, "the primary knows that the standby could take over")
    for command in [one for one in TO_RUN if one.page == page]:
        if command.text.startswith(ENDLESS):
            look_at(command.text, cluster, place)
            continue
        printed = run(command.text.replace("head -3", "sed -n 1,3p"), cluster, place)  # `head` closes the pipe early.
        if command.text.startswith("curl"):
            assert '"detail"' not in printed, printed
        if "failover" in command.text:
            wait_until(cluster.standby, 60, "the masters agree again")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("page", sorted(PYTHON))
def test_the_programs_of_a_page_run_as_pasted(page: str, cluster: Cluster, place: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    program = place / "program.py"
    for block in blocks:
        program.write_text(block.replace("127.0.0.1:7070", cluster.address))
        run(f"{sys.executable} -W error {program.name}", cluster, place)


def test_the_shell_blocks_of_security_have_a_test_of_their_own() -> None:
    pages = [page for page in PAGES if re.search(r"^```(?:sh|bash|console)", (ROOT / page).read_text(), re.MULTILINE)]
    assert pages == ["docs/guides/security.md"], "write commands as indented blocks, which this test runs"
