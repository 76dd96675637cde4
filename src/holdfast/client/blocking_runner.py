"""Runs operations on the calling thread: sends their messages over one channel, and dials again when it breaks."""

from __future__ import annotations

import math
import os
import ssl
import threading
import time
import weakref
from typing import TypeVar

from holdfast.client.background import ROUND_SECONDS, SHORTEST_PAUSE, keep_once, next_due, pause_until, return_grants
from holdfast.client.operations.reservations import abandon_all
from holdfast.client.operations.views import abandon_views
from holdfast.client.state.client import Core
from holdfast.errors import ClientClosed, HoldfastError, ReplyLost, TryAgain, Unreachable
from holdfast.messages.shapes import Message
from holdfast.operations.effects import Ahead, Checked, Effect, LeaveMaster, Operation, Reply, Sleep, Work
from holdfast.operations.masters import Masters
from holdfast.supervisor import Supervisor
from holdfast.transport.channel import Channel, PendingCall
from holdfast.transport.key_table import shown_by

T = TypeVar("T")
_SENT = (Message, Checked)

CLOSING_SECONDS = 1.0
CLOSED_TEXT = "the client was closed; connect again"


class Runner:
    """The connection of one client, and the thread that keeps its leases and grants alive."""

    def __init__(self, core: Core, masters: Masters, tls: ssl.SSLContext | None = None) -> None:
        self._core = core
        self._masters = masters
        self._tls = tls
        self._channel: Channel | None = None
        self._address = ""
        """The address of the master that welcomed us last."""
        self._dialing = threading.Lock()
        self._closing = threading.Lock()
        self._keeper = Keeper(core, self)
        core.keep = self._keeper.rouse
        _runners.add(self)

    def run(self, operation: Operation[T], deadline: float) -> T:
        channel: Channel | None = None
        try:
            effect = next(operation)
            while True:
                try:
                    result: object = None
                    if isinstance(effect, _SENT):
                        channel = self._channel
                        if channel is None or channel.closed:
                            channel = self._dial(deadline)
                        due = deadline
                        if isinstance(effect, Checked):
                            effect.check()
                            due = min(deadline, effect.deadline)
                            effect = effect.message
                        result = channel.call(effect, due)
                    elif isinstance(effect, Ahead):
                        channel = self._channel
                        if channel is None or channel.closed:
                            channel = self._dial(deadline)
                        result = channel.begin(effect.message, deadline)
                    elif isinstance(effect, Reply):
                        assert isinstance(effect.begun, PendingCall), "it was begun here"
                        result = effect.begun.reply()
                    elif isinstance(effect, LeaveMaster):
                        self._leave(channel, effect.hint)
                    else:
                        result = self._do(effect)
                except HoldfastError as error:
                    effect = operation.throw(error)
                else:
                    effect = operation.send(result)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except BaseException:
            # An interrupt: copying stopped with this thread, so the operation may give its grants back.
            operation.close()
            raise

    def at_once(self, message: Message, deadline: float) -> Message | None:
        """Try once over the open connection; None if no reply came, and then the whole operation must run. For requests
        that are quick and may be sent twice."""
        channel = self._channel
        if channel is None or channel.closed:
            return None
        try:
            return channel.call(message, deadline)
        except (Unreachable, ReplyLost):
            return None

    def _do(self, effect: Effect) -> object:
        if isinstance(effect, Work):
            return effect.run()
        if isinstance(effect, Sleep):
            time.sleep(effect.seconds)
        return None

    def _leave(self, used: Channel | None, hint: str) -> None:
        """Close the connection, but only the one that the operation itself used: others may have found the next master
        already."""
        if used is self._channel:
            self._masters.failed()
            self._masters.hinted(hint)
        if used is not None:
            used.close()

    def _dial(self, deadline: float) -> Channel:
        left = deadline - self._core.clock()
        if left <= 0 or not self._dialing.acquire(timeout=left):
            raise Unreachable("no master could be reached before the deadline; nothing was sent")
        try:
            self._core.check_open()
            if self._channel is not None:
                if not self._channel.closed:
                    return self._channel
                self._channel.close()
                self._masters.lost(self._address)
            last = Unreachable("the deadline passed before a master could be reached; nothing was sent")
            for address in self._masters.candidates(deadline - self._core.clock()):
                try:
                    until = min(deadline, self._core.clock() + self._masters.patience(address))
                    channel = self._nearer(Channel.open(address, self._core.hello(), until, tls=self._tls), until)
                except TryAgain as error:
                    last = Unreachable(str(error))
                    self._masters.failed()
                    self._masters.hinted(error.hint)
                    continue
                self._masters.found()
                self._core.welcomed(channel.welcome)
                self._channel, self._address = channel, address
                self._core.shown = shown_by(channel)
                if self._core.closed:  # It was closed meanwhile, by a call that did not see this connection.
                    channel.close()
                self._core.check_open()
                return channel
            raise last
        finally:
            self._dialing.release()

    def _nearer(self, channel: Channel, deadline: float) -> Channel:
        """A connection to the same master through its Unix socket, if it is on this machine."""
        near = self._core.nearer(channel.welcome)
        if not near:
            return channel
        try:
            nearer = Channel.open(near, self._core.hello(), deadline)
        except Unreachable:
            # Perhaps another network namespace: keep the TCP connection.
            return channel
        except BaseException:
            channel.close()
            raise
        channel.close()
        return nearer

    def close(self) -> None:
        core = self._core
        with self._closing:
            if core.closed:
                return
            self._keeper.stop()
            now = core.clock()
            abandon_all(core)
            core.grants.retire_all(now)
            try:
                if self._channel is not None and not self._channel.closed:
                    deadline = now + CLOSING_SECONDS
                    self.run(return_grants(core, deadline), deadline)
            except HoldfastError:
                # The master is away or refuses. The nodes tell it that this writer is gone.
                pass
            finally:
                core.closed = CLOSED_TEXT
                abandon_views(core)
                core.held_leases.clear()
                core.leases.clear()
                core.bytes.close()
                core.shown = None
                if self._channel is not None:
                    self._channel.close()

    def leave_to_parent(self) -> None:
        self._core.leave_to_parent()


class Keeper:
    """One daemon thread, which runs only while the client holds something that must be kept alive."""

    def __init__(self, core: Core, runner: Runner) -> None:
        self._core = core
        self._runner = weakref.ref(runner)
        self._lock = threading.Lock()
        self._roused = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._supervisor = Supervisor()
        self._wakes_at = math.inf

    def rouse(self, due: float) -> None:
        """Wake the thread in time for something that is due then."""
        with self._lock:
            if self._thread is not None:
                if due < self._wakes_at:
                    self._roused.set()
            elif not self._stopping.is_set():
                self._thread = threading.Thread(
                    target=self._supervisor.keep_thread,
                    args=("keeper of leases and grants", self._loop, self._stopping.wait),
                    name="holdfast-keeper",
                    daemon=True,
                )
                self._thread.start()

    def stop(self) -> None:
        with self._lock:
            self._stopping.set()
            thread = self._thread
        self._roused.set()
        if thread is not None:
            thread.join(ROUND_SECONDS)

    def _loop(self) -> None:
        while not self._stopping.is_set():
            # Until this thread knows when it will wake, every caller wakes it.
            self._wakes_at = math.inf
            now = self._core.clock()
            due = next_due(self._core, now)
            if due is not None and due <= now:
                if not self._keep(now):
                    return
                pause = SHORTEST_PAUSE
            else:
                pause = pause_until(due, now)
            self._wakes_at = now + pause
            roused = self._roused.wait(pause)
            self._roused.clear()
            if due is None and not roused and self._ended():
                return

    def _keep(self, now: float) -> bool:
        runner = self._runner()
        if runner is None:
            return False
        try:
            runner.run(keep_once(self._core), now + ROUND_SECONDS)
        except ClientClosed:
            return False
        return True

    def _ended(self) -> bool:
        with self._lock:
            if next_due(self._core, self._core.clock()) is not None:
                return False
            self._thread = None
            return True


_runners: weakref.WeakSet[Runner] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for runner in list(_runners):
        runner.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
