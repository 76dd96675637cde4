"""The threads that carry out a node's longer orders: copies, files, memory to be mounted.

A worker carries out one order after the other. Orders are operations (generators of effects); their messages to the
master go over a connection of the worker's own, so that a keepalive never waits behind a copy; a message is retried
until it is answered, refused or times out. The queue is bounded (I17): an order that finds it full is dropped, and the
primary plans it again when its grant has ended.
"""

from __future__ import annotations

import queue
import threading
from functools import partial
from typing import Any

import structlog

from holdfast.entropy import fresh_id
from holdfast.errors import DeadlineExceeded, HoldfastError, Stopping, TryAgain, Uncertain
from holdfast.instant import now_seconds
from holdfast.messages.requests import Failed, Hello
from holdfast.messages.shapes import Message
from holdfast.node.commands.copier import Copier, Gate, Pace
from holdfast.node.commands.handlers import DiskLane, Lane
from holdfast.node.commands.peers import PeerBytes
from holdfast.node.disk import files
from holdfast.node.disk.scrub import Scrub
from holdfast.node.memory.lent_memory import Lending
from holdfast.operations.effects import Effect, Operation, Sleep, Work
from holdfast.operations.masters import Masters
from holdfast.supervisor import Supervisor
from holdfast.transport.channel import Channel
from holdfast.wire.codec import raised

MOST_WAITING = 1_024
SAY_SECONDS = 60.0
CALL_SECONDS = 10.0
CONNECT_SECONDS = 2.0
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0
STOP_SECONDS = 5.0

log = structlog.get_logger("holdfast.node")


class MasterLink:
    """A connection to the primary, wherever that is now. For one thread."""

    def __init__(self, address: str, token: str, stopping: threading.Event) -> None:
        self._masters = Masters(address)
        self._hello = Hello(fresh_id(), token)
        self._stopping = stopping
        self._channel: Channel | None = None

    def say(self, message: Message) -> Message:
        """Send a message and return the reply. Every message sent here may be sent twice."""
        deadline = now_seconds() + SAY_SECONDS
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                reply = self._call(message, deadline)
                if not isinstance(reply, Failed):
                    return reply
                error = raised(reply)
                if not isinstance(error, TryAgain):
                    raise error
                self._masters.hinted(error.hint)
            except (TryAgain, Uncertain) as lost:
                error = lost
                self._masters.failed()
                self._masters.hinted(error.hint)
            self.close()
            if self._stopping.wait(pause):
                raise Stopping("the node is stopping")
            if now_seconds() + pause >= deadline:
                raise DeadlineExceeded(f"no master answered for {SAY_SECONDS:g} s ({error})")
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _call(self, message: Message, deadline: float) -> Message:
        if self._channel is None:
            until = min(deadline, now_seconds() + CONNECT_SECONDS)
            self._channel = Channel.open(self._masters.candidates()[0], self._hello, until)
        return self._channel.call(message, min(deadline, now_seconds() + CALL_SECONDS))

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


class CommandWorker:
    def __init__(self, name: str, address: str, token: str, supervisor: Supervisor) -> None:
        self._stopping = threading.Event()
        self._link = MasterLink(address, token, self._stopping)
        self._orders: queue.Queue[tuple[str, Operation[Any]] | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(
            target=supervisor.keep_thread, args=(name, self._run, self._stopping.wait), name=name, daemon=True
        )
        self.done = 0
        self.dropped = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        try:
            self._orders.put_nowait(None)
        except queue.Full:
            pass  # The thread checks the flag after each order.
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)
        self._link.close()

    def add(self, what: str, order: Operation[Any]) -> bool:
        try:
            self._orders.put_nowait((what, order))
        except queue.Full:
            self.dropped += 1
            log.warning("too many orders wait, one was dropped", order=what)
            return False
        return True

    def _run(self) -> None:
        while not self._stopping.is_set():
            taken = self._orders.get()
            if taken is None:
                return
            what, order = taken
            try:
                self._carry_out(order)
                self.done += 1
            except Stopping:
                return
            except HoldfastError as error:
                log.warning("an order was not carried out", order=what, reason=str(error))
            except Exception:  # A defect fails this order only; the thread goes on.
                log.exception("an order failed unexpectedly", order=what)

    def _carry_out(self, order: Operation[Any]) -> None:
        result: Any = None
        error: HoldfastError | None = None
        try:
            while True:
                effect = order.send(result) if error is None else order.throw(error)
                result, error = None, None
                try:
                    result = self._effect(effect)
                except Stopping:
                    order.close()
                    raise
                except HoldfastError as raised_:
                    error = raised_
        except StopIteration:
            return

    def _effect(self, effect: Effect) -> Any:
        if isinstance(effect, Message):
            return self._link.say(effect)
        if isinstance(effect, Work):
            return effect.run()
        assert isinstance(effect, Sleep), "an order works, waits and says"
        if self._stopping.wait(effect.seconds):
            raise Stopping("the node is stopping")
        return None


class CommandWorkers:
    """The workers of a node from `start` until `stop`: one for its memory and, if it has a disk, those for that."""

    def __init__(
        self, node: str, address: str, token: str, lending: Lending, gate: Gate, supervisor: Supervisor
    ) -> None:
        self._peers: list[PeerBytes] = []
        self._threads: list[CommandWorker | Scrub] = []
        pace = Pace()

        def worker(name: str) -> CommandWorker:
            self._threads.append(made := CommandWorker(name, address, token, supervisor))
            return made

        def copier() -> Copier:
            self._peers.append(peers := PeerBytes(lending))
            return Copier(node, peers, gate, lending.disk, pace, now_seconds)

        self.memory = Lane(worker("copies"), copier())
        self.disk: DiskLane | None = None
        if lending.disk is not None:
            self.disk = DiskLane(worker("disk"), copier(), worker("disk verification"), lending.disk)
            lending.disk.on_trouble = partial(self._say_trouble, self.disk)
            self._threads.append(Scrub(lending.disk, supervisor))

    def _say_trouble(self, lane: DiskLane) -> None:
        lane.orders.add("disk trouble", files.say_trouble(lane.disk))

    @property
    def copied_bytes(self) -> int:
        return sum(lane.copier.copied_bytes for lane in (self.memory, self.disk) if lane is not None)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        for thread in self._threads:
            thread.stop()
        for peers in self._peers:
            peers.close()
