"""The threads of a node's session: one follows the primary, one reports to it, over one connection."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from holdfast.errors import HoldfastError
from holdfast.node.session.life import NodeLife
from holdfast.operations.effects import Operation
from holdfast.operations.threads import ThreadRunner
from holdfast.session.followers import CLOSED_TEXT
from holdfast.supervisor import Supervisor

STOP_SECONDS = 5.0

log = structlog.get_logger("holdfast.node")


class SessionThreads:
    """They run the node's life from `start` until `stop` or a `failure`."""

    def __init__(self, life: NodeLife, runner: ThreadRunner, supervisor: Supervisor) -> None:
        self.failure: HoldfastError | None = None
        """Why the node cannot go on; None while it can."""
        self._life = life
        self._supervisor = supervisor
        self._stopping = threading.Event()
        self._runner = runner
        self._threads = [
            threading.Thread(target=self._run, args=("session", life.belong), name="session", daemon=True),
            threading.Thread(target=self._run, args=("reports", life.tell), name="reports", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads, and say goodbye to the master if it can be reached."""
        self._stopping.set()
        self._life.stop()
        self._runner.rouse()
        try:
            self._runner.run(self._life.farewell())
        except HoldfastError as error:
            log.info("no master heard the goodbye", reason=str(error))
        self._runner.hang_up(CLOSED_TEXT)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(STOP_SECONDS)

    def _run(self, name: str, operation: Callable[[], Operation[None]]) -> None:
        try:
            self._supervisor.keep_thread(name, lambda: self._carry_out(operation()), self._stops)
        finally:
            self._life.stop()
            self._runner.rouse()

    def _stops(self, seconds: float) -> bool:
        return self._stopping.wait(seconds) or self._life.is_stopping()

    def _carry_out(self, operation: Operation[None]) -> None:
        try:
            self._runner.run(operation)
        except HoldfastError as error:
            if not self._life.is_stopping():
                log.error("the node cannot go on", reason=str(error), code=error.code)
            self.failure = error
        except Exception as error:
            if self._life.has_been_member:
                raise  # Its memory is in use: the supervisor tries again.
            log.exception("the node cannot begin")
            self.failure = HoldfastError(f"the node cannot begin ({error!r}); no memory is lent")
