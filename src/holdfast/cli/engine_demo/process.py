"""The demo's end of an engine: start it, ask it, kill it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from holdfast.cli.engine_demo.engine import Answer, Order, Ready, Request
from holdfast.cli.processes.fleet import LOOK_EVERY_S, how
from holdfast.cli.processes.run import PARENT
from holdfast.errors import Refused, TryAgain
from holdfast.instant import now_seconds

START_WITHIN_S = 180.0
ANSWER_WITHIN_S = 600.0
"""Long: a busy machine may compute a prompt for minutes."""
END_WITHIN_S = 10.0
CHUNK_BYTES = 64 << 10

Message = TypeVar("Message", bound=msgspec.Struct)


class EngineProcess:
    """One engine. `meanwhile` is called several times per second while it is waited for, and may raise."""

    def __init__(self, name: str, order: Order, variables: Mapping[str, str], meanwhile: Callable[[], None]) -> None:
        self.name = name
        self._meanwhile = meanwhile
        self._read = bytearray()
        # Threads that wait without spinning: a machine that is busy otherwise spends its time on their waiting.
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, **variables, PARENT: str(os.getpid())}
        # A session of its own: Ctrl-C in the terminal reaches the demo alone, which then ends everything in order.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli.engine_demo.engine"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._send(order)

    @property
    def pid(self) -> int:
        return self._process.pid

    def await_ready(self) -> Ready:
        return self._receive(Ready, START_WITHIN_S)

    def ask(self, request: Request) -> Answer:
        self._send(request)
        return self._receive(Answer, ANSWER_WITHIN_S)

    def kill(self) -> None:
        """With SIGKILL, as an engine that crashes; harmless for one that has ended."""
        self._process.kill()
        self._process.wait(END_WITHIN_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _send(self, message: msgspec.Struct) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def _receive(self, kind: type[Message], within_s: float) -> Message:
        assert self._process.stdout is not None
        give_up_at = now_seconds() + within_s
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._read:
            self._meanwhile()
            if now_seconds() > give_up_at:
                raise TryAgain(f"{self.name} did not answer within {within_s:g} s. Is the machine overloaded?")
            if select.select([pipe], [], [], LOOK_EVERY_S)[0]:
                chunk = os.read(pipe, CHUNK_BYTES)
                if not chunk:
                    raise self._ended()
                self._read += chunk
        line, _, self._read = self._read.partition(b"\n")
        return msgspec.json.decode(line, type=kind)

    def _ended(self) -> Refused:
        return Refused(f"{self.name} ended {how(self._process.wait(END_WITHIN_S))}; what it said is above")
