"""Suites of SGLang: its storage level. A server needs a GPU or kernels that are built for one."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ecosystem.cluster import cluster, kill_primary
from ecosystem.environments import ROOT, variables
from ecosystem.suites import Outcome, program_outcome, pytest_outcome, run, suite, tail

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


@suite("sglang: its own test of the Mooncake backend, on the drop-in", engine="sglang")
def check_mooncake_backend(python: Path, folder: Path) -> Outcome:
    outcome = Outcome()
    with cluster(folder) as running:
        for _ in range(2):
            env = variables(MOONCAKE_MASTER=running.address, MOONCAKE_PROTOCOL="tcp", MOONCAKE_GLOBAL_SEGMENT_SIZE="0")
            done = run([str(python), str(PROGRAMS / "sglang_mooncake.py")], folder, env)
            cases = len(re.findall(r"^Testing ", done.stdout, re.MULTILINE))
            if done.returncode == 0 and cases:
                outcome += Outcome(passed=cases)
            else:
                outcome += Outcome(failed=[f"exit {done.returncode}: {tail(done)}"])
            kill_primary(running)
    return outcome


@suite("sglang: examples/sglang_pages.py, run again after kill -9 of the primary", engine="sglang")
def check_example(python: Path, folder: Path) -> Outcome:
    program = [str(python), str(PROGRAMS / "sglang_example.py")]
    with cluster(folder) as running:
        env = variables(HOLDFAST_ADDRESS=running.address)
        first = program_outcome(program, folder, env)
        kill_primary(running)
        return first + program_outcome(program, folder, env)
