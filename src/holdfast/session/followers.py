"""The two shells of a follower: a thread of its own, or a task in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections.abc import Callable

from holdfast.entropy import fresh_id
from holdfast.errors import HoldfastError, UnknownCommand
from holdfast.messages.requests import Hello
from holdfast.operations.link import PlainCaller
from holdfast.operations.masters import Masters
from holdfast.operations.tasks import TaskRunner
from holdfast.operations.threads import ThreadRunner
from holdfast.session.follower import Event, Follower, Perform
from holdfast.session.lease import Standing
from holdfast.supervisor import Supervisor

STOP_SECONDS = 5.0
CONNECT_SECONDS = 5.0
"""The longest wait for one master; longer than a client's, because all followers come to a new primary at once."""
CLOSED_TEXT = "this follower was closed; nothing was sent"

log = logging.getLogger("holdfast.session")


def no_commands(name: str, body: bytes) -> None:
    raise UnknownCommand(f"this follower knows no command {name[:100]!r}; nothing was done")


class SessionFollower:
    """Follows the master at `address` from `start` until `stop`, in a thread of its own.

    `address` is one or several `host:port`, or a coordination URL, with `service=` for a name that is looked up once.
    `heed` gets events and `perform` commands; both are called in that thread and must return soon: the next keepalive
    waits for them.
    """

    def __init__(
        self,
        address: str,
        name: str,
        perform: Perform = no_commands,
        heed: Callable[[Event], None] = lambda event: None,
        token: str = "",
    ) -> None:
        self.failure: HoldfastError | None = None
        """Why it cannot go on, if so: the name is taken, the token wrong."""
        self._follower = Follower(name, perform, heed)
        caller = PlainCaller(Hello(fresh_id(), token, control=True))
        self._runner = ThreadRunner(Masters(address), caller, CONNECT_SECONDS, math.inf)
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=Supervisor().keep_thread,
            args=(f"session of {name}", self._run, self._stopping.wait),
            name=f"session-{name}",
            daemon=True,
        )

    @property
    def standing(self) -> Standing:
        return self._follower.standing()

    @property
    def session(self) -> int:
        return self._follower.session

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Say goodbye, so that the master knows at once; then end the thread."""
        self._stopping.set()
        self._follower.stopping = True
        self._runner.rouse()
        try:
            self._runner.run(self._follower.farewell())
        except HoldfastError as error:
            log.info("no master heard the goodbye of %s: %s", self._follower.name, error)
        self._runner.hang_up(CLOSED_TEXT)
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        try:
            self._runner.run(self._follower.live())
        except HoldfastError as error:
            log.error("%s cannot follow: %s", self._follower.name, error)
            self.failure = error


class AsyncSessionFollower:
    """The same as a task of the running event loop: `await start()`, `await stop()`."""

    def __init__(
        self,
        address: str,
        name: str,
        perform: Perform = no_commands,
        heed: Callable[[Event], None] = lambda event: None,
        token: str = "",
    ) -> None:
        self.failure: HoldfastError | None = None
        self._follower = Follower(name, perform, heed)
        self._masters = Masters(address)
        self._hello = Hello(fresh_id(), token, control=True)
        self._runner: TaskRunner | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def standing(self) -> Standing:
        return self._follower.standing()

    @property
    def session(self) -> int:
        return self._follower.session

    async def start(self) -> None:
        """Returns at once; `heed` is called when the session is open."""
        runner = self._runner = TaskRunner(self._masters, PlainCaller(self._hello), CONNECT_SECONDS, math.inf)
        self._task = asyncio.create_task(
            Supervisor().keep(f"session of {self._follower.name}", lambda: self._run(runner))
        )

    async def stop(self) -> None:
        self._follower.stopping = True
        if self._runner is None or self._task is None:
            return
        self._runner.rouse()
        try:
            await self._runner.run(self._follower.farewell())
        except HoldfastError as error:
            log.info("no master heard the goodbye of %s: %s", self._follower.name, error)
        self._runner.hang_up(CLOSED_TEXT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._task, STOP_SECONDS)

    async def _run(self, runner: TaskRunner) -> None:
        try:
            await runner.run(self._follower.live())
        except HoldfastError as error:
            log.error("%s cannot follow: %s", self._follower.name, error)
            self.failure = error
