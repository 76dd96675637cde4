"""Suites: what is run with which engine, and what came of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from xml.etree import ElementTree as ET

from ecosystem.environments import variables

RUN_S = 1_800.0


@dataclass(slots=True)
class Outcome:
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    """A reason each."""
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Figures and remarks for the table."""

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
            self.notes + other.notes,
        )


Check: TypeAlias = Callable[[Path, Path], Outcome]
"""Given the interpreter of the engine's environment and an empty folder."""


@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    engine: str
    check: Check


SUITES: list[Suite] = []


def suite(name: str, engine: str) -> Callable[[Check], Check]:
    """Register a check. `engine` names its environment (requirements/ENGINE.txt)."""

    def register(check: Check) -> Check:
        SUITES.append(Suite(name, engine, check))
        return check

    return register


def program_outcome(
    command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None, within_s: float = RUN_S
) -> Outcome:
    """A program that passes by exiting with 0."""
    done = run(command, cwd, env, within_s)
    return Outcome(passed=1) if done.returncode == 0 else Outcome(failed=[f"exit {done.returncode}: {tail(done)}"])


def pytest_outcome(
    python: Path, arguments: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None, within_s: float = RUN_S
) -> Outcome:
    """The tests of a pytest run inside the environment, counted from its report."""
    report = cwd / "report.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", *arguments]
    done = run(command, cwd, env, within_s)
    if not report.exists():
        return Outcome(failed=[f"pytest made no report: {tail(done)}"])
    outcome = Outcome()
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        bad = next((found for kind in ("failure", "error") if (found := case.find(kind)) is not None), None)
        skipped = case.find("skipped")
        if bad is not None:
            outcome.failed.append(f"{name}: {(bad.get('message') or '').splitlines()[:1]}")
        elif skipped is not None:
            outcome.skipped.append(f"{name}: {skipped.get('message')}")
        else:
            outcome.passed += 1
    if not outcome.passed and not outcome.failed and not outcome.skipped:
        outcome.failed.append(f"pytest ran no test: {tail(done)}")
    return outcome


def run(
    command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None, within_s: float = RUN_S
) -> subprocess.CompletedProcess[str]:
    """Run it to its end; what it prints is kept beside what it made."""
    environment = variables() if env is None else env
    done = subprocess.run(
        [*command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=within_s, check=False
    )
    with (cwd / "output.log").open("a") as log:
        log.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}\n")
    return done


def tail(done: subprocess.CompletedProcess[str], characters: int = 600) -> str:
    return (done.stdout + done.stderr).strip()[-characters:]
