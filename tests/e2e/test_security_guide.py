"""The commands of the guide to security run as they stand there; only the ports are others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.processes import SOURCE
from tests.ports import free_ports

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "security.md"
BEGIN = "trap 'kill $(jobs -p); wait' EXIT\nset -e\n"
PORT = re.compile(r"127\.0\.0\.1:(\d+)")


@pytest.mark.timeout(300)
def test_two_tenants_with_tls_by_copy_and_paste(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    script = BEGIN + "".join(blocks)
    printed = sorted(set(PORT.findall(script)))
    assert (len(blocks), len(printed)) == (8, 5)
    others = dict(zip(printed, free_ports(len(printed)), strict=True))
    script = PORT.sub(lambda found: f"127.0.0.1:{others[found[1]]}", script)
    command = tmp_path / "bin" / "holdfast"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PYTHONPATH": SOURCE, "PATH": f"{command.parent}:{os.environ['PATH']}"},
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    # Before, with the new token, with the old one at least once, after its removal, after the failover.
    assert done.stdout.count("of blue\n") >= 5
    assert done.stdout.count("of red\n") == 1
    assert "a stranger was served" not in told
    assert "a token of blue-app was removed" in done.stdout
    # Once of the stranger, and once of the removed token, which ends the loop.
    assert done.stderr.count("the token is missing or wrong") >= 2, told
    assert "16 MiB" in done.stdout, "the guarantee is there after the failover"
    tokens = [*tmp_path.glob("*.token"), tmp_path / "blue-app.new"]
    assert len(tokens) == 3
    for token in tokens:
        assert token.read_text().strip() not in told
    for key in (tmp_path / "certificates").glob("*.key"):
        assert key.read_text().splitlines()[1] not in told
