"""The commands of the guide to security run as they stand there; only the ports are others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.processes import SOURCE
from tests.ports import free_ports

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "security.md"
BEGIN = "trap 'kill $(jobs -p); wait' EXIT\nset -e\n"


def test_two_tenants_with_tls_by_copy_and_paste(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    script = BEGIN + "".join(blocks)
    command = tmp_path / "bin" / "holdfast"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    command.chmod(0o755)
    for printed, port in zip(("7070", "7071", "7080"), free_ports(3), strict=True):
        script = script.replace(f"127.0.0.1:{printed}", f"127.0.0.1:{port}")
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "PYTHONPATH": SOURCE, "PATH": f"{command.parent}:{os.environ['PATH']}"},
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert "of blue\n" in done.stdout
    assert "of red\n" in done.stdout
    assert "a stranger was served" not in told
    for token in tmp_path.glob("*.token"):
        assert token.read_text().strip() not in told
