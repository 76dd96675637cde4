"""A simulated process: an event loop of its own on the shared scheduler, with its own clock, chance and life.

For production code the loop is a real `asyncio` loop: it has tasks, timers, servers, connections and threads' work;
only time and the network are the world's. A clock has a rate and an offset; a process can be stopped and continued
(SIGSTOP), and can die between two of its steps (kill -9), after which none of its code runs.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from asyncio import events
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast import entropy, instant, witness
from holdfast.ids import ProcessName
from holdfast.simulation.kernel.machines import Machine
from holdfast.simulation.kernel.scheduler import SECOND, Event, Scheduler
from holdfast.witness import Seen

if TYPE_CHECKING:
    from holdfast.simulation.kernel.network import Network

FASTEST_WORK_NS = 20_000
SLOWEST_WORK_NS = 2_000_000


@dataclass(eq=False, repr=False)
class ProcessLoop(asyncio.AbstractEventLoop):
    scheduler: Scheduler
    network: Network
    name: str
    chance: random.Random
    _rate: float
    _offset_ns: int
    machine: Machine
    number: int
    life: int
    """The number of this life among all lives in the world."""
    dead: bool = False
    paused: bool = False
    postponed: list[Event] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Errors that no code of the process handled."""
    longest_work_ns: int = SLOWEST_WORK_NS
    _kept: list[object] = field(default_factory=list)

    def enter(self) -> None:
        events._set_running_loop(self)
        instant.read_from(self.now_ns)
        entropy.draw_from(self.chance.randbytes)
        witness.see_through(self)

    def this_process(self) -> ProcessName:
        return self.machine.name_of(self)

    def see(self, pid: int) -> Seen | None:
        return self.machine.see(pid)

    def now_ns(self) -> int:
        return self._offset_ns + int(self.scheduler.now_ns * self._rate)

    @property
    def began_ms(self) -> int:
        """The time on its clock when the world began."""
        return self._offset_ns // 1_000_000

    @property
    def tasks_under_way(self) -> int:
        return sum(isinstance(kept, asyncio.Task) and not kept.done() for kept in self._kept)

    def world_ns(self, local_seconds: float) -> int:
        """This duration by the world's clock."""
        return int(local_seconds * SECOND / self._rate) + 1

    # Life.

    def spawn(self, main: Callable[[], Any]) -> None:
        """Begin to run this coroutine function."""
        self.scheduler.after(0, lambda: self.create_task(main()).add_done_callback(self._main_ended), self)

    def _main_ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            trace = "".join(traceback.format_exception(error)[-3:])
            self.failures.append(f"{self.name} ended by {error!r}\n{trace}")

    def die(self) -> None:
        """End the process: none of its code runs from here on. Its objects are kept, so that no finalizer runs at a
        random moment."""
        self.dead = True
        self.network.process_died(self)

    def stop(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        self.paused = False
        self.scheduler.resume(self)

    # The interface that asyncio needs of a loop.

    def time(self) -> float:
        return self.now_ns() / SECOND

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead:
            error = context.get("exception")
            self.failures.append(f"{self.name}: {context.get('message')}: {error!r}")

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self.scheduler.after(0, handle._run, self, handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, list(args), self, context)
        delay_ns = self.world_ns(max(0.0, when - self.time()))
        self.scheduler.after(delay_ns, timer._run, self, timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Does nothing: the scheduler asks the handle itself."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._kept.append(task)
        return task

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run a thread's work: done in one step after a delay, and its result known after another."""
        done: asyncio.Future[Any] = self.create_future()
        wait_ns = self.chance.randint(FASTEST_WORK_NS, self.longest_work_ns)

        def work() -> None:
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001 - The waiting task gets it, as from a thread.
                tell: Callable[[], None] = partial(_fail, done, error)
            else:
                tell = partial(_fulfil, done, result)
            lasts_ns = self.chance.randint(FASTEST_WORK_NS, self.longest_work_ns)
            self.scheduler.after(lasts_ns + self.network.take_stall_ns(), tell, self)

        self.scheduler.after(wait_ns, work, self)
        return done

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self.network.listen(self, host, port, protocol_factory)

    async def create_unix_server(self, protocol_factory: Any, path: Any = None, **_: Any) -> Any:
        return self.network.listen(self, str(path), 0, protocol_factory)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.network.connect(self, host, port, protocol_factory)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)


def _fail(done: asyncio.Future[Any], error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)


def _fulfil(done: asyncio.Future[Any], result: object) -> None:
    if not done.done():
        done.set_result(result)
