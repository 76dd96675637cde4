"""Every face while links are cut and coordination stops: misses and slower answers, no exception, no other bytes.

One run for all tests: a real cluster with real etcd in network namespaces, and engines on a machine of their own with
traffic through all faces at once. Where network namespaces are not allowed it is skipped, and says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chaos.namespaces import why_not
from tests.failover.cluster import SOURCE
from tests.integrations.scripts.cut_off import CALLS_IN_OUTAGE, TIMEOUT_S
from tests.integrations.scripts.engines import FACES

ROOT = Path(__file__).resolve().parents[2]
SLACK_S = 15.0
"""What a busy machine may add to a call."""
REASON = why_not()
pytestmark = [pytest.mark.skipif(bool(REASON), reason=REASON), pytest.mark.timeout(400)]
Call = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    calls: list[Call]
    faults: list[dict[str, Any]]
    code: int
    tracebacks: list[str]
    log: str


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run fails if a face ends no calls during a fault, if nothing felt the fault, or if a face does not put and
    read again after it."""
    folder = tmp_path_factory.mktemp("cut-off")
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "scripts" / "cut_off.py"), str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"},
        timeout=380,
    )
    assert ran.returncode == 0, ran.stderr[-5000:]
    calls = [json.loads(line) for line in (folder / "calls").read_text().splitlines()]
    told = json.loads((folder / "faults.json").read_text())
    return Run(calls=calls, log=(folder / "engines.log").read_text(), **told)


@pytest.mark.parametrize("face", FACES)
def test_no_call_raises_or_gives_other_bytes(run: Run, face: str) -> None:
    calls = [call for call in run.calls if call["face"] == face]
    assert len(calls) > 30
    assert len(run.faults) == 7
    assert [call for call in calls if call["outcome"] in ("raised", "wrong")] == []


@pytest.mark.parametrize("face", FACES)
def test_no_call_takes_longer_than_its_timeout(run: Run, face: str) -> None:
    calls = [call for call in run.calls if call["face"] == face]
    assert [call for call in calls if call["ended"] - call["began"] > TIMEOUT_S + SLACK_S] == []


@pytest.mark.parametrize("face", FACES)
def test_an_outage_is_paid_for_by_few_calls(run: Run, face: str) -> None:
    """A face asks one call at a time: the one that finds the outage waits, and those after it answer at once. Some more
    are allowed for what a master in trouble answers first."""
    for fault in (one for one in run.faults if one["is_outage"]):
        during = [
            call
            for call in run.calls
            if call["face"] == face and fault["began"] <= call["began"] and call["ended"] <= fault["felt"]
        ]
        assert len(during) >= CALLS_IN_OUTAGE
        waited = [call for call in during if call["ended"] - call["began"] >= 0.9 * TIMEOUT_S]
        assert len(waited) <= CALLS_IN_OUTAGE // 4, (fault["name"], waited)


def test_nothing_fails_by_a_defect_in_the_background(run: Run) -> None:
    """Errors that are foreseen are logged without tracebacks."""
    assert run.tracebacks == []
    assert "Traceback" not in run.log, run.log[-5000:]
    assert run.code == 0
