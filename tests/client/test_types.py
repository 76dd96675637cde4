"""Types refuse what would fail at run time: text for bytes, unknown options, a client not awaited."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CALLS = Path(__file__).with_name("typed_calls.py")
REFUSED = re.compile(r"# refused: ([\w-]+)$")


def test_mypy_refuses_the_wrong_calls_and_no_others(tmp_path: Path) -> None:
    """With a cache of its own: the project's may be in use by another mypy at the moment."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [
            *command,
            "--cache-dir",
            str(tmp_path),
            "--no-pretty",
            "--no-error-summary",
            "--hide-error-context",
            str(CALLS),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    found = {
        (int(line), kind)
        for line, kind in re.findall(r"typed_calls\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    }
    lines = CALLS.read_text().splitlines()
    wanted = {(number, match[1]) for number, line in enumerate(lines, 1) if (match := REFUSED.search(line)) is not None}
    assert found == wanted, done.stdout + done.stderr
