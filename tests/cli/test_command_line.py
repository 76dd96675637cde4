"""Secrets on the command line are hidden from other users as soon as the process runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from holdfast.cli.command_line import SECRETS
from tests.cli.processes.test_up import environment
from tests.waiting import wait_until

PRINT = "from holdfast.cli.command_line import hide_secrets; print(hide_secrets(), open('/proc/self/cmdline').read())"


def shown(*arguments: str) -> tuple[str, str]:
    """How many were hidden, and the command line after that."""
    command = [sys.executable, "-c", PRINT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    count, _, after = done.stdout.partition(" ")
    return count, after


@pytest.mark.parametrize(
    "arguments",
    [
        ["--token", "planted"],
        ["--token=planted", "status"],
        ["--coordination", "etcd://h/c?user=me&password=planted&tls=on"],
        ["--address=etcd://h/c?password=planted"],
    ],
)
def test_a_secret_is_overwritten_where_the_kernel_shows_it(arguments: list[str]) -> None:
    count, after = shown("status", *arguments, "--name", "kept")
    assert count == "1"
    assert "planted" not in after
    assert "*******" in after
    assert "--name\0kept" in after


def test_without_a_secret_nothing_changes() -> None:
    count, after = shown("--token-file", "planted", "--tokens", "planted")
    assert count == "0"
    assert after.count("planted") == 2


def test_a_verb_hides_its_token_before_it_does_anything(tmp_path: Path) -> None:
    """As `ps` shows it while the verb waits for a master that never answers."""
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "node",
        "--token",
        "planted",
        "--size",
        "1MiB",
        "--listen",
        "127.0.0.1:0",
    ]
    command += ["--address", "etcd://127.0.0.1:1/c?user=me&password=planted"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment()) as it,
    ):
        try:
            wait_until(lambda: "planted" not in " ".join(psutil.Process(it.pid).cmdline()), 60, "the token is hidden")
            wait_until((tmp_path / "log").read_text, 60, "it complains")
        finally:
            it.kill()
    assert "planted" not in (tmp_path / "log").read_text()


def test_only_whole_flags_count() -> None:
    assert SECRETS.findall(b"holdfast\0put\0--token-file\0a\0x--token\0b\0") == []
