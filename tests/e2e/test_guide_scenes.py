"""Commands of the guides that need machines, ports or an installation of their own, as they stand there.

Each scene runs in namespaces (`scripts/guide_scenes.py`), with the very addresses of the page. Where those are not
allowed it is skipped, and says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.namespaces import why_not
from tests.e2e.guide_pages import ROOT, Script, make_reader
from tests.failover.cluster import SOURCE

SCENES = Path(__file__).parent / "scripts" / "guide_scenes.py"
REASON = why_not()
pytestmark = [pytest.mark.skipif(bool(REASON), reason=REASON), pytest.mark.timeout(400)]
LEFT_BEHIND = (".git", ".venv*", ".ecosystem", ".holdfast", ".*_cache", ".hypothesis", "__pycache__", "build", "dist")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_reader(tmp_path / "reader")
    return tmp_path


def play(scene: str, folder: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(SCENES), scene, str(folder)],
        capture_output=True,
        text=True,
        timeout=390,
        env={
            **os.environ,
            "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}",
            "PATH": f"{folder / 'reader' / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "HOLDFAST_TIMEOUT": "60",
        },
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"


def test_the_commands_for_several_machines_run_as_written_and_a_lost_store_is_restored(folder: Path) -> None:
    play("several machines", folder)


def test_the_commands_about_identities_run_as_written(folder: Path) -> None:
    play("identities", folder)


def test_the_commands_about_events_run_as_written(folder: Path) -> None:
    play("events", folder)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fresh checkout with an environment that `make up` has made, before it starts anything."""
    place = tmp_path_factory.mktemp("user") / "checkout"
    shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
    run(["make", ".venv/.server-installed"], place)
    yield place
    shutil.rmtree(place)


def run(command: list[str], place: Path) -> str:
    """In a shell in which the environment of the checkout is active."""
    path = f"{place / '.venv' / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=place, capture_output=True, text=True, timeout=300, env={**os.environ, "PATH": path}
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_new_user_comes_from_make_up_to_a_killed_primary_by_copy_and_paste(folder: Path, checkout: Path) -> None:
    (folder / "checkout").symlink_to(checkout)
    play("new user", folder)


def test_what_is_installed_as_written_runs(checkout: Path) -> None:
    script = Script("installation")
    run(["bash", "-ec", script.take("docs/guides/events.md", "pip install")], checkout)
    run([".venv/bin/python", "-c", "import zmq, holdfast.master.process"], checkout)
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(checkout)], checkout)
    [wheel] = checkout.glob("*.whl")
    text = script.take("docs/start.md", "uvx").replace("/path/to/holdfast-0.2.0-py3-none-any.whl", str(wheel))
    assert wheel.name in text, "the page names another release"
    assert "0 lost" in run(["bash", "-ec", text], checkout)
    script.check_all_were_run()
