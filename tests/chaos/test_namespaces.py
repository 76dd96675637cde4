"""The network of a chaos run: a cut has a direction, and a machine that allows no namespaces is told so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.namespaces import SKIPPED, why_not
from tests.failover.cluster import SOURCE

ROOT = Path(__file__).resolve().parents[2]
REASON = why_not()


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}", **environment},
        timeout=100,
    )


@pytest.mark.skipif(bool(REASON), reason=REASON)
def test_a_cut_drops_one_direction_and_mending_brings_it_back() -> None:
    ran = run(str(Path(__file__).parent / "scripts" / "cuts.py"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "one heard ['the other way', 'mended']",
        "two heard ['whole', 'mended']",
    ]


def test_where_it_cannot_run_it_says_why_and_counts_as_skipped() -> None:
    ran = run("-m", "chaos", "--seconds", "1", PATH="/nowhere")
    assert ran.returncode == SKIPPED
    assert "skipped: ip, " in ran.stderr
