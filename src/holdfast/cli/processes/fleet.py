"""The processes of `holdfast up`: started, watched, started again when they die, ended together.

A child says that it serves by writing its ready file. One that dies is started again after a pause that doubles
while it keeps dying, with the ports that it had, so that clients and nodes find it where it was. Time is an
argument wherever something is decided, and every wait has a deadline.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from holdfast.cli.processes.run import PARENT
from holdfast.errors import Refused, TryAgain
from holdfast.instant import now_seconds

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
STEADY_AFTER_S = 30.0
"""A child that lived this long is trusted again: its next restart comes without a long pause."""
STOP_WITHIN_S = 10.0
LOOK_EVERY_S = 0.1


@dataclass(slots=True)
class Child:
    """One process, across its restarts."""

    name: str
    arguments: list[str]
    ready_file: Path
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Passed in the environment, where `ps` does not show them."""
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    pause_s: float = FIRST_PAUSE_S
    start_at: float | None = None
    """When the next try is due, while the child is down."""

    def start(self, now: float) -> None:
        self.ready_file.unlink(missing_ok=True)
        environment = {**os.environ, **self.secrets, PARENT: str(os.getpid())}
        # A session of its own: Ctrl-C in the terminal reaches `up` alone, which then ends the children in order.
        self.process = subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        self.started_at = now
        self.start_at = None

    def command(self) -> list[str]:
        return [sys.executable, "-m", "holdfast", *self.arguments, "--ready-file", str(self.ready_file)]

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    def ended(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self.process.poll() if self.process is not None else None

    def ready(self) -> dict[str, Any] | None:
        """The contents of its ready file; None until it serves."""
        try:
            facts = json.loads(self.ready_file.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            # Not there, or not whole yet.
            return None
        return facts if isinstance(facts, dict) else None

    def next_pause(self, now: float) -> float:
        """How long to wait before starting it again; twice as long each time, unless it had been steady."""
        if now - self.started_at >= STEADY_AFTER_S:
            self.pause_s = FIRST_PAUSE_S
        pause = self.pause_s
        self.pause_s = min(self.pause_s * 2, LONGEST_PAUSE_S)
        return pause


class Fleet:
    """All children. `stop` ends every wait."""

    def __init__(self, stop: Event, say: Callable[[str], None]) -> None:
        self.waves: list[tuple[Child, ...]] = []
        self._stop = stop
        self._say = say

    def launch(self, *children: Child, within_s: float = 60.0) -> list[dict[str, Any]]:
        """Start children and wait until each serves; what they wrote. An early death is not tried again."""
        deadline = now_seconds() + within_s
        self.waves.append(children)
        for child in children:
            child.start(now_seconds())
        return [self._await(child, deadline) for child in children]

    def _await(self, child: Child, deadline: float) -> dict[str, Any]:
        while True:
            facts = child.ready()
            if facts is not None:
                return facts
            code = child.ended()
            if code is not None:
                raise Refused(f"{child.name} ended {how(code)} before it served; what it said is above")
            if now_seconds() > deadline:
                raise TryAgain(
                    f"{child.name} did not serve in time; everything was stopped. Is the machine overloaded?"
                )
            if self._stop.wait(LOOK_EVERY_S):
                raise KeyboardInterrupt

    def watch(self) -> None:
        """Until `stop`: start again what dies."""
        while not self._stop.wait(LOOK_EVERY_S):
            for child in itertools.chain(*self.waves):
                self.look_after(child, now_seconds())

    def look_after(self, child: Child, now: float) -> None:
        if child.start_at is not None:
            if now >= child.start_at:
                child.start(now)
                self._say(f"{child.name} was started again (process {child.pid})")
            return
        code = child.ended()
        if code is not None:
            pause = child.next_pause(now)
            child.start_at = now + pause
            self._say(f"{child.name} ended {how(code)}; it is started again in {pause:g} s")

    def end(self) -> list[str]:
        """End the children, the last launched first, and name those that had to be killed."""
        killed = []
        for wave in reversed(self.waves):
            running = [child for child in wave if child.process is not None and child.ended() is None]
            for child in running:
                _signal(child, signal.SIGTERM)
            deadline = now_seconds() + STOP_WITHIN_S
            for child in running:
                if not _wait(child, deadline):
                    killed.append(child.name)
                    _signal(child, signal.SIGKILL)
                    _wait(child, now_seconds() + STOP_WITHIN_S)
        return killed


def _signal(child: Child, number: signal.Signals) -> None:
    assert child.process is not None
    child.process.send_signal(number)


def _wait(child: Child, deadline: float) -> bool:
    assert child.process is not None
    try:
        child.process.wait(max(0.0, deadline - now_seconds()))
    except subprocess.TimeoutExpired:
        return False
    return True


def how(code: int) -> str:
    """`with code 1`, or by which signal."""
    if code >= 0:
        return f"with code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"
