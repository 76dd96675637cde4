"""The threads that carry out a node's longer orders: copies, files, memory to be mounted.

A worker carries out one order after the other. Orders are operations (generators of effects); their requests to the
primary are retried (`primary_requests`) and go over a connection of the worker's own, so that a keepalive never waits
behind a copy. The queue is bounded (I17): an order that finds it full is dropped, and the primary plans it again when
its grant has ended.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import structlog

from holdfast.errors import HoldfastError, Stopping
from holdfast.ids import SLOWEST_BYTES_PER_SECOND, SegmentName
from holdfast.instant import now_seconds
from holdfast.messages.hello import fresh_hello
from holdfast.messages.shapes import Ticket
from holdfast.node.commands.copier import Copier, Gate, Pace
from holdfast.node.commands.handlers import DiskLane, Lane
from holdfast.node.disk import files
from holdfast.node.disk.scrub import Scrub
from holdfast.node.memory.lent_memory import Lending
from holdfast.operations.effects import Operation
from holdfast.operations.link import LinkOptions, PlainCaller
from holdfast.operations.masters import Masters
from holdfast.operations.threads import ThreadRunner
from holdfast.supervisor import Supervisor
from holdfast.transport.data_tcp import DataConnection, WantedRange

CONNECT_SECONDS = 2.0
STALLED_SECONDS = 5.0
MOST_CONNECTIONS = 64


class PeerBytes:
    """The connections to other nodes, for one thread."""

    def __init__(self, lending: Lending) -> None:
        self._lending = lending
        self._connections: dict[str, DataConnection] = {}

    def lends(self, name: SegmentName) -> bool:
        return self._lending.lends(name)

    def range_of(self, name: SegmentName, offset: int, length: int) -> memoryview:
        return self._lending.range_of(name, offset, length)

    def fetch(self, address: str, ranges: Sequence[WantedRange]) -> None:
        size = sum(len(each.target) for each in ranges)
        deadline = now_seconds() + STALLED_SECONDS + size / SLOWEST_BYTES_PER_SECOND
        connection = self._connections.pop(address, None)
        if connection is None or connection.closed:
            connection = DataConnection.open(address, min(deadline, now_seconds() + CONNECT_SECONDS))
        try:
            connection.read_many(ranges, deadline)
        finally:
            if not connection.closed:
                self._keep(address, connection)

    def check_file(self, address: str, name: SegmentName, ticket: Ticket, offset: int) -> None:
        """Have another node check a file of its disk, from which wrong bytes came."""
        deadline = now_seconds() + STALLED_SECONDS
        with contextlib.suppress(HoldfastError):  # That node reports damage itself; nothing here depends on it.
            connection = DataConnection.open(address, min(deadline, now_seconds() + CONNECT_SECONDS))
            with contextlib.closing(connection):
                connection.check_file(name, ticket, offset, deadline)

    def _keep(self, address: str, connection: DataConnection) -> None:
        self._connections[address] = connection
        while len(self._connections) > MOST_CONNECTIONS:
            oldest = next(iter(self._connections))
            self._connections.pop(oldest).close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


MOST_WAITING = 1_024
STOP_SECONDS = 5.0
STOPPING_TEXT = "the node is stopping"

log = structlog.get_logger("holdfast.node")


class CommandWorker:
    def __init__(self, name: str, address: str, token: str, supervisor: Supervisor) -> None:
        self._stopping = threading.Event()
        self._caller = PlainCaller(fresh_hello(token), Stopping)
        self._runner = ThreadRunner(Masters(address), self._caller, LinkOptions(CONNECT_SECONDS))
        self._orders: queue.Queue[tuple[str, Operation[Any]] | None] = queue.Queue(MOST_WAITING)
        self.name = name
        self._thread = threading.Thread(
            target=supervisor.keep_thread, args=(name, self._run, self._stopping.wait), name=name, daemon=True
        )
        self.done = 0
        self.failed = 0
        self.dropped = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        # An order that waits ends at once, one that works or is being answered has a moment more.
        self._caller.closed = STOPPING_TEXT
        self._runner.rouse()
        try:
            self._orders.put_nowait(None)
        except queue.Full:
            pass  # The thread checks the flag after each order.
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)
        self._runner.hang_up(STOPPING_TEXT)

    @property
    def waiting(self) -> int:
        return self._orders.qsize()

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
                self._runner.run(order)
                self.done += 1
            except HoldfastError as error:
                if self._stopping.is_set():
                    return
                self.failed += 1
                log.warning("an order was not carried out", order=what, reason=str(error))
            except Exception:  # A defect fails this order only; the thread goes on.
                self.failed += 1
                log.exception("an order failed unexpectedly", order=what)


class CommandWorkers:
    """The workers of a node from `start` until `stop`: one for its memory and, if it has a disk, those for that."""

    def __init__(
        self, node: str, address: str, token: str, lending: Lending, gate: Gate, supervisor: Supervisor
    ) -> None:
        self._peers: list[PeerBytes] = []
        self._threads: list[CommandWorker | Scrub] = []
        self.queues: list[CommandWorker] = []
        pace = Pace()

        def worker(name: str) -> CommandWorker:
            made = CommandWorker(name, address, token, supervisor)
            self._threads.append(made)
            self.queues.append(made)
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
