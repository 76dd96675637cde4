"""A reader's shell: a directory, variables, and commands that end, or are ended by Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.waiting import wait_until


class Shell:
    def __init__(self, place: Path, output: Path, **environment: str) -> None:
        """`output`: where commands that do not end print to."""
        self._place = place
        self._output = output
        self._environment = {**os.environ, **environment}
        # Where the gate is a make itself, make would say first which directory it enters.
        self._environment.pop("MAKELEVEL", None)

    def _start(self, text: str, **streams: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", text],
            cwd=self._place,
            text=True,
            start_new_session=True,
            env=self._environment,
            **streams,
        )

    def run(self, text: str, within_s: float = 100.0) -> str:
        """What it prints, and nothing about an error."""
        with self._start(text, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                printed, told = process.communicate(timeout=within_s)
            finally:
                _end(process)
        assert process.returncode == 0, f"{text}\n{printed}\n{told}"
        assert "error" not in told.lower(), told
        return printed

    def look_at(self, text: str) -> str:
        """What it prints, until it has printed something; then Ctrl-C ends it, in order."""
        with self._output.open("w") as output, self._start(text, stdout=output, stderr=output) as process:
            try:
                wait_until(lambda: self._output.stat().st_size > 0 or process.poll() is not None, 90, f"{text} prints")
                assert process.poll() is None, self._output.read_text()
                os.killpg(process.pid, signal.SIGINT)
                code = process.wait(60)
            finally:
                _end(process)
        printed = self._output.read_text()
        assert code in (0, -signal.SIGINT, 128 + signal.SIGINT), f"it ended with {code}: {printed}"
        assert "Traceback" not in printed, printed
        return printed


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
