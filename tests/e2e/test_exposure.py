"""Processes that other machines could reach: refused without protection, and loud where the operator insists."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.processes import SOURCE

ROOT = Path(__file__).parents[2]
ALONE = ("unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")), "--net")
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"}
LOCAL = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")


def may_be_alone() -> bool:
    try:
        return subprocess.run([*ALONE, "ip", "link"], capture_output=True, timeout=20).returncode == 0
    except OSError:
        return False


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments], capture_output=True, text=True, timeout=60, env=ENVIRONMENT
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("master", *LOCAL, "--listen", "0.0.0.0:0"),
        ("master", *LOCAL, "--listen", "[::]:0"),
        ("master", *LOCAL, "--http", "0.0.0.0:0"),
        ("master", *LOCAL, "--mooncake-http", "0.0.0.0:0"),
        ("master", *LOCAL, "--events", "0.0.0.0:0"),
        ("master", *LOCAL, "--events", "127.0.0.1:0", "--events-replay", "0.0.0.0:0"),
        ("node", "--listen", "0.0.0.0:0", "--size", "1MiB"),
    ],
    ids=lambda arguments: " ".join(arguments[-2:]) if arguments[0] == "master" else "node",
)
def test_a_listener_that_others_reach_is_refused_without_protection(arguments: tuple[str, ...]) -> None:
    result = started(*arguments)
    assert result.returncode != 0
    for word in ("anybody may connect", "nothing is encrypted", "--tls-cert", "--insecure", "docs/guides/security.md"):
        assert word in result.stderr
    assert "Traceback" not in result.stderr


def test_a_token_without_encryption_is_not_enough_nor_is_encryption_alone(tmp_path: Path) -> None:
    certificate = tmp_path / "made.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x"),
            *("-keyout", str(certificate), "-out", str(tmp_path / "half.pem")),
        ],
        check=True,
        capture_output=True,
    )
    certificate.write_text(certificate.read_text() + (tmp_path / "half.pem").read_text())
    with_token = subprocess.run(
        [sys.executable, "-m", "holdfast", "master", *LOCAL, "--listen", "0.0.0.0:0"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**ENVIRONMENT, "HOLDFAST_TOKEN": "a token of some length, for this test"},
    )
    assert with_token.returncode != 0
    assert "nothing is encrypted" in with_token.stderr
    assert "anybody" not in with_token.stderr
    with_tls = started("master", *LOCAL, "--listen", "0.0.0.0:0", "--tls-cert", str(certificate))
    assert with_tls.returncode != 0
    assert "anybody may connect" in with_tls.stderr
    assert "encrypted" not in with_tls.stderr.partition("Nothing was started")[0]


@pytest.fixture(scope="module")
def insisted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if not may_be_alone():
        pytest.skip("network namespaces are not allowed here")
    folder = tmp_path_factory.mktemp("exposed")
    script = str(Path(__file__).parent / "scripts" / "exposed.py")
    command = [*ALONE, sys.executable, script, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=ROOT, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_a_cluster_that_insists_says_so_in_status_metrics_and_logs(insisted: dict[str, Any]) -> None:
    assert insisted["metrics"] == [
        'holdfast_insecure{process="master-1"} 2.0',
        'holdfast_insecure{process="node-1"} 1.0',
    ]
    flags = [text.partition(" ")[0] for text in insisted["status"]["insecure"]]
    assert flags == ["--listen", "--http"]
    assert insisted["shown"].count("INSECURE") == 2
    for process in ("master", "node"):
        assert "open to strangers, as --insecure insists" in insisted[process]
