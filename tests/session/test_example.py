"""The example runs, and shows what the guide says that it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import holdfast

EXAMPLE = Path(__file__).parents[2] / "examples" / "sessions.py"


def test_the_example_of_the_guide_shows_a_failover_that_costs_nobody_the_session() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(Path(holdfast.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert "worker-1 does recover chunk 17" in said
    assert said.index("worker-1 does recover chunk 17") < said.index("worker-1 has confirmed")
    assert {f"worker-{n}: jeopardy" for n in range(3)} <= set(said)
    assert {f"worker-{n} does resume work" for n in range(3)} <= set(said)
    assert not [line for line in said if "expired" in line]
    assert "master: session of worker-0 goodbye" in said
    assert [line for line in said if line.startswith("worker-1 is safe")]
