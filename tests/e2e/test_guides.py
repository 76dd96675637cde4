"""Every command of the README, of the first five minutes and of the guides is run as it stands there, by some test.

`guide_pages.py` says which test runs which; here run those that need no more than a cluster, in a shell. Only addresses
and sizes are others (`at_this_cluster`). The shell blocks of security.md run in one piece (`test_security_guide.py`),
the Python of README, start and clients in `test_readme.py`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.processes import SOURCE
from holdfast.messages.requests import ChangeMode
from tests.e2e.guide_pages import CLUSTER, COMMANDS, EXCUSED, PAGES, PLACES, ROOT, commands_at, make_reader
from tests.e2e.guide_shell import Shell
from tests.e2e.scripts.guide_scenes import SCENES
from tests.failover.cluster import Cluster
from tests.waiting import wait_until

ENDLESS = ("holdfast status --watch", "holdfast events --follow", "curl -N")
"""They run until somebody ends them: here by Ctrl-C, once they have printed something."""
PYTHON = {"docs/guides/tensors.md", "docs/guides/tuning.md"}
"""Pages whose fenced Python is whole programs, which run here."""
TO_RUN = commands_at(CLUSTER)


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
    """A directory as a checkout looks, with `holdfast` in its `bin`."""
    place = tmp_path_factory.mktemp("place")
    make_reader(place)
    return place


@pytest.fixture(scope="module")
def shell(cluster: Cluster, place: Path) -> Shell:
    return Shell(
        place,
        place / "printed",
        PYTHONPATH=SOURCE,
        PATH=f"{place / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        HOLDFAST_ADDRESS=cluster.address,
        HOLDFAST_TIMEOUT="60",
    )


def at_this_cluster(text: str, cluster: Cluster) -> str:
    """With the addresses of this cluster in the place of those on the page."""
    text = text.replace("host1:7070,host2:7070", cluster.address)
    text = text.replace("127.0.0.1:7080", cluster.primary().http)
    for size in ("10GiB", "40GiB", "96GiB"):
        text = text.replace(size, size.replace("GiB", "MiB"))
    return text.replace("127.0.0.1:7070", cluster.address)


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
    assert len(COMMANDS) > 90
    assert len([one for one in COMMANDS if one.reason]) == len(EXCUSED) <= 3
    stale = [key for table in (EXCUSED, PLACES) for key in table if not any(one.matches(*key) for one in COMMANDS)]
    assert stale == [], "the page has no such command any more"
    assert set(PLACES.values()) == {*SCENES, "installation", "development"}, "no test runs the others"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", sorted({command.page for command in TO_RUN}))
def test_the_commands_of_a_page_run_as_written(page: str, cluster: Cluster, shell: Shell) -> None:
    open_nodes(cluster)
    wait_until(lambda: knows_its_successor(cluster), 60, "the primary knows that the standby could take over")
    for command in [one for one in TO_RUN if one.page == page]:
        text = at_this_cluster(command.text, cluster)
        if text.startswith(ENDLESS):
            shell.look_at(text)
            continue
        printed = shell.run(text)
        if text.startswith("curl"):
            assert '"detail"' not in printed, printed
        if "failover" in text:
            wait_until(cluster.standby, 60, "the masters agree again")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("page", sorted(PYTHON))
def test_the_programs_of_a_page_run_as_pasted(page: str, cluster: Cluster, place: Path, shell: Shell) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    program = place / "program.py"
    for block in blocks:
        program.write_text(block.replace("127.0.0.1:7070", cluster.address))
        shell.run(f"{sys.executable} -W error {program.name}")


def test_the_shell_blocks_of_security_have_a_test_of_their_own() -> None:
    pages = [page for page in PAGES if re.search(r"^```(?:sh|bash|console)", (ROOT / page).read_text(), re.MULTILINE)]
    assert pages == ["docs/guides/security.md"], "write commands as indented blocks, which this test runs"
