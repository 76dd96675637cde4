"""The README's Python runs as it stands there, against a real cluster; only the address is another one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.processes import SOURCE
from tests.e2e.rig import Rig

ROOT = Path(__file__).parents[2]


def blocks_of(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


BLOCKS = blocks_of("README.md")
PRINTED_ADDRESS = "127.0.0.1:7070"


def test_the_readme_has_a_program() -> None:
    assert BLOCKS
    assert all(PRINTED_ADDRESS in block for block in BLOCKS)


@pytest.mark.parametrize("block", BLOCKS)
def test_the_programs_of_the_readme_run_as_pasted_and_again(block: str) -> None:
    with Rig("16MiB") as rig:
        for _ in range(2):
            assert "bytes, not one of them copied" in printed_by(block, rig)


def test_the_program_of_the_guide_for_clients_runs_as_pasted_and_again() -> None:
    [block] = blocks_of("docs/guides/clients.md")
    with Rig("16MiB") as rig:
        for _ in range(2):
            lines = printed_by(block, rig).splitlines()
            assert lines == ["[True, True, True, True]", "[4096, 4096, 4096, 4096, 0]", "4096"]


def test_the_program_of_the_first_five_minutes_runs_as_pasted_and_again() -> None:
    [block] = blocks_of("docs/start.md")
    with Rig("16MiB") as rig:
        for _ in range(2):
            assert printed_by(block, rig) == "1000000 bytes\n"


def printed_by(block: str, rig: Rig) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block.replace(PRINTED_ADDRESS, rig.address)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
