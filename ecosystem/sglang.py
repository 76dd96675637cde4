"""Suites of SGLang: its storage level. A server needs a GPU or kernels that are built for one."""

from __future__ import annotations

import os
from pathlib import Path

from ecosystem.cluster import cluster, kill_primary
from ecosystem.environments import ROOT, variables
from ecosystem.suites import Outcome, pytest_outcome, suite

PROGRAMS = ROOT / "ecosystem" / "programs"
APART = ["-c", os.devnull, "--rootdir", str(PROGRAMS)]
"""The settings of the project's own tests are not for these."""


@suite("sglang: dynamic backend, real host pools in four layouts, v1, v2, generic", engine="sglang")
def check_dynamic_backend(python: Path, folder: Path) -> Outcome:
    with cluster(folder) as running:
        before = _backend_tests(python, folder, running.address)
        kill_primary(running)
        return before + _backend_tests(python, folder, running.address)


def _backend_tests(python: Path, folder: Path, address: str) -> Outcome:
    return pytest_outcome(
        python, [*APART, str(PROGRAMS / "sglang_backend.py")], folder, variables(HOLDFAST_ADDRESS=address)
    )
