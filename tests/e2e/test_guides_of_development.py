"""Commands of the guides for developers, as they stand there: only seeds are fewer and seconds less."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from chaos.namespaces import why_not
from tests.e2e.guide_pages import ROOT, Script
from tests.e2e.guide_shell import Shell
from tests.failover.cluster import SOURCE

CHAOS = "docs/guides/chaos.md"
SIMULATION = "docs/guides/simulation.md"
FEWER = {
    "--seeds 300": "--seeds 2",
    "run --scene": "run --seeds 1 --scene",
    "exhaust put": "exhaust --every 200 put",
    "SECONDS=120": "SECONDS=1",
    "--seconds 60": "--seconds 1",
}
BY_CTRL_C = ("make chaos   ", "make chaos MIX", "python -m chaos --json")
"""They take minutes; Ctrl-C ends them here, once they have said that they begin."""
REASON = why_not()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """In this checkout, with the environment that the tests run in."""
    path = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return Shell(ROOT, tmp_path / "printed", PYTHONPATH=SOURCE, PATH=path, MAKEFLAGS=f"VENV={sys.prefix}")


def shorter(text: str) -> str:
    for long, short in FEWER.items():
        text = text.replace(long, short)
    return text


@pytest.fixture(scope="module")
def script() -> Script:
    return Script("development")


def test_the_commands_about_simulation_run_as_written(shell: Shell, script: Script) -> None:
    for text in script.take_all(SIMULATION):
        shell.run(shorter(text))


@pytest.mark.skipif(bool(REASON), reason=REASON)
@pytest.mark.timeout(300)
def test_the_commands_about_chaos_run_as_written(shell: Shell, script: Script) -> None:
    for text in script.take_all(CHAOS):
        if text.startswith(BY_CTRL_C):
            assert "Ctrl-C" in shell.look_at(text)
        else:
            assert " 0 lost, 0 wrong" in shell.run(shorter(text))


def test_the_benchmark_that_the_tuning_guide_names_runs_as_written(shell: Shell, script: Script) -> None:
    assert "GB/s" in shell.run(script.take("docs/guides/tuning.md", "python -m benchmarks"))


def test_every_command_of_development_was_run(script: Script) -> None:
    script.check_all_were_run()
