"""The two shells of a follower: a thread of its own, or a task in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections.abc import Callable

from holdfast.errors import HoldfastError, UnknownCommand
from holdfast.messages.hello import fresh_hello
from holdfast.operations.link import LinkOptions, PlainCaller
from holdfast.operations.masters import Masters
from holdfast.operations.tasks import TaskRunner
from holdfast.operations.threads import ThreadRunner
from holdfast.session.follower import Event, Follower, Perform
from holdfast.session.lease import Standing
from holdfast.supervisor import Supervisor

STOP_SECONDS = 5.0
CONNECT_SECONDS = 5.0
"""The longest wait for one master; longer than a client's, because all followers come to a new primary at once."""
PATIENT = LinkOptions(CONNECT_SECONDS, silence_seconds=math.inf)
"""A master may hold a keepalive for as long as its lease lasts."""
CLOSED_TEXT = "this follower was closed; nothing was sent"

log = logging.getLogger("holdfast.session")


def no_commands(name: str, body: bytes) -> None:
    raise UnknownCommand(f"this follower knows no command {name[:100]!r}; nothing was done")


class FollowerShell:
    """A follower of the master at `address`, and what its user may ask about it.

    `address` is one or several `host:port`, or a coordination URL, with `service=` for a name that is looked up once.
    `on_event` gets events and `perform` commands; both are called where the follower runs and must return soon: the
    next keepalive waits for them.
    """

    def __init__(
        self,
        address: str,
        name: str,
        perform: Perform = no_commands,
        on_event: Callable[[Event], None] = lambda event: None,
        token: str = "",
    ) -> None:
        self.failure: HoldfastError | None = None
        """Why it cannot go on, if so: the name is taken, the token wrong."""
        self._follower = Follower(name, perform, on_event)
        self._masters = Masters(address)
        self._caller = PlainCaller(fresh_hello(token, control=True))

    @property
    def standing(self) -> Standing:
        return self._follower.standing()

    @property
    def session(self) -> int:
        return self._follower.session

    def _cannot_follow(self, error: HoldfastError) -> None:
        log.error("%s cannot follow: %s", self._follower.name, error)
        self.failure = error

    def _unheard(self, error: HoldfastError) -> None:
        log.info("no master heard the goodbye of %s: %s", self._follower.name, error)


class SessionFollower(FollowerShell):
    """Follows from `start` until `stop`, in a thread of its own."""

    _runner: ThreadRunner | None = None
    _thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is not None:
            raise RuntimeError("this follower was started before; make another one")
        runner = self._runner = ThreadRunner(self._masters, self._caller, PATIENT)
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=Supervisor().keep_thread,
            args=(f"session of {self._follower.name}", lambda: self._run(runner), self._stopping.wait),
            name=f"session-{self._follower.name}",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        """Say goodbye, so that the master knows at once; then end the thread."""
        self._follower.stopping = True
        if self._runner is None or self._thread is None:
            return
        self._stopping.set()
        self._runner.rouse()
        try:
            self._runner.run(self._follower.farewell())
        except HoldfastError as error:
            self._unheard(error)
        self._runner.hang_up(CLOSED_TEXT)
        self._thread.join(STOP_SECONDS)

    def _run(self, runner: ThreadRunner) -> None:
        try:
            runner.run(self._follower.live())
        except HoldfastError as error:
            self._cannot_follow(error)


class AsyncSessionFollower(FollowerShell):
    """The same as a task of the running event loop: `await start()`, `await stop()`."""

    _runner: TaskRunner | None = None
    _task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns at once; `on_event` is called when the session is open."""
        runner = self._runner = TaskRunner(self._masters, self._caller, PATIENT)
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
            self._unheard(error)
        self._runner.hang_up(CLOSED_TEXT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._task

    async def _run(self, runner: TaskRunner) -> None:
        try:
            await runner.run(self._follower.live())
        except HoldfastError as error:
            self._cannot_follow(error)
