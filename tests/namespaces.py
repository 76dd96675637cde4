"""Processes that nobody else on the machine can see, as those of another machine or container."""

from __future__ import annotations

import subprocess

import pytest

from holdfast.cli.processes.run import PARENT

APART = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("env", f"{PARENT}=0"),  # As it looks from inside.
)
"""Before a command: it runs in a process namespace of its own, dies with the process that was started (which does not
hand on SIGTERM), and that one dies with the test."""


def may_be_apart() -> bool:
    try:
        return subprocess.run([*APART, "true"], capture_output=True, timeout=20).returncode == 0
    except OSError:
        return False


needs_namespaces = pytest.mark.skipif(not may_be_apart(), reason="process namespaces are not allowed here")
