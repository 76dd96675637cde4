"""The commands that a node takes from the primary: one table of handlers, and the threads for the longer ones.

A handler returns quickly, because the next keepalive waits for it. Short commands are carried out at once, in the
caller's thread; copies, files and growing are queued for a worker, those for the disk separate from those for memory,
so that a slow disk does not delay recovery. A command that is unknown or fails is reported to the primary, and affects
nothing else.

A worker carries out one order after the other. Orders are operations (generators of effects); their requests to the
primary are retried (`primary_requests`) and go over a connection of the worker's own, so that a keepalive never waits
behind a copy. The queue is bounded (I17): an order that finds it full is dropped, and the primary plans it again when
its grant has ended.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec
import structlog

from holdfast.errors import BadRequest, CommandRefused, HoldfastError, Stopping, UnknownCommand
from holdfast.instant import now_seconds
from holdfast.messages import commands as c
from holdfast.messages.hello import fresh_hello
from holdfast.messages.of_nodes import MountSegment
from holdfast.messages.requests import Done
from holdfast.node.commands.copier import CONNECT_SECONDS, Copier, Gate, Pace, PeerBytes
from holdfast.node.disk import files
from holdfast.node.disk.scrub import Scrub
from holdfast.node.disk.tier import DiskTier
from holdfast.node.memory.lent_memory import Lending
from holdfast.node.primary_requests import request
from holdfast.node.session.report import Report
from holdfast.operations.effects import Operation, Work
from holdfast.operations.link import LinkOptions, PlainCaller
from holdfast.operations.masters import Masters
from holdfast.operations.threads import ThreadRunner
from holdfast.supervisor import Supervisor

MOST_WAITING = 1_024
STOP_SECONDS = 5.0
STOPPING_TEXT = "the node is stopping"

log = structlog.get_logger("holdfast.node")


class OrderQueue(Protocol):
    """Takes orders that take longer, and has them carried out one after the other."""

    def add(self, what: str, order: Operation[Any]) -> bool:
        """False: it is full, and the order was dropped. The primary plans it again."""


class Lane(NamedTuple):
    """A worker's queue, and what copies for it."""

    orders: OrderQueue
    copier: Copier


class DiskLane(NamedTuple):
    """The same for a disk. Comparing its files with a restored catalogue takes long, and has a worker of its own."""

    orders: OrderQueue
    copier: Copier
    verifications: OrderQueue
    disk: DiskTier


class Writers(Protocol):
    def refuse_client(self, client: int) -> None:
        """Accept no further bytes from this client."""

    def clear(self, order: c.Clear) -> None:
        """Refuse earlier proofs for a range, and wipe it."""


class Readers(Protocol):
    """Receives revocations of leases."""

    def revoke(self, ids: bytes | None) -> None:
        """These objects (packed ids) were removed or moved; None: more than can be named."""


@dataclass(eq=False)
class Commands:
    """All commands of one node, whose disk is that of its disk lane, if it has one."""

    _node: str
    _lending: Lending
    _report: Report
    _writers: Writers
    _readers: Readers
    _memory: Lane
    _disk: DiskLane | None = None
    _most_bytes: int = 0
    """The most memory that it may be told to lend; 0 for no limit of its own."""
    mode: str = "open"

    def __post_init__(self) -> None:
        self._handlers: dict[str, Callable[[Any], None]] = {
            c.RECOVER: self._copy,
            c.MIGRATE: self._copy,
            c.OFFLOAD: self._copy,
            c.BRING_BACK: self._copy,
            c.CLEAN: self._clean,
            c.CLEAR: self._writers.clear,
            "gc": self._collect,
            "revoke_lease": self._revoke_leases,
            "revoke_client": self._revoke_client,
            "maintenance": self._maintain,
            "volume_update": self._update_volume,
            "config_update": self._update_config,
        }
        assert self._handlers.keys() == c.BODIES.keys(), "every command that a primary may send has a handler"

    def perform(self, name: str, body: bytes) -> None:
        handler = self._handlers.get(name)
        if handler is None:
            log.warning("an unknown command was refused", command=name[:100])
            raise UnknownCommand(
                f"this node knows no command {name[:100]!r}; nothing was done. Is it of an older version?"
            )
        try:
            handler(c.decode_body(c.BODIES[name], body))
        except HoldfastError as error:
            log.warning("a command was refused", command=name, reason=str(error))
            raise
        except Exception as error:
            log.exception("a command failed", command=name)
            raise CommandRefused(f"{name} failed at the node ({error!r}); it may have been done in part") from error

    def mount_disk(self, boot: int, data_address: str, host: str) -> None:
        """Mount the disk. Called after each registration: a new primary compares the files again."""
        lane = self._disk
        if lane is not None:
            again = partial(self.mount_disk, boot, data_address, host)
            lane.orders.add("mount disk", files.mount(lane.disk, boot, data_address, host, self._verify_disk, again))

    def _verify_disk(self, verification: Operation[None]) -> None:
        assert self._disk is not None, "it is its mounting that asks for this"
        self._disk.verifications.add("verify disk", verification)

    def _copy(self, body: c.CopyObjects) -> None:
        lane: Lane | DiskLane | None = self._disk if body.to_disk else self._memory
        if lane is None:
            raise BadRequest("this node has no disk; nothing was copied")
        lane.orders.add("copy", lane.copier.carry_out(body))

    def _clean(self, body: c.Clean) -> None:
        self._report.ask_to_clean(body.grants)

    def _collect(self, body: c.CollectGarbage) -> None:
        if self._disk is not None:
            self._disk.orders.add("gc", files.collect(self._disk.disk, body))

    def _revoke_leases(self, body: c.RevokeLeases) -> None:
        # Readers keep the leases that they hold (I2); this tells them that the objects are old.
        log.debug("objects were removed or moved while leased", objects=len(body.ids) // 8, more=body.more)
        self._readers.revoke(None if body.more else body.ids)

    def _revoke_client(self, body: c.RevokeClient) -> None:
        for client in (body.client, *body.others):
            self._writers.refuse_client(client)

    def _maintain(self, body: c.Maintain) -> None:
        self.mode = body.mode
        log.info("the node's mode changed", mode=body.mode)

    def _update_config(self, body: c.UpdateConfig) -> None:
        # One pace for all lanes; it counts for copies under way as well.
        self._memory.copier.pace.bytes_per_second = body.copy_bytes_per_second
        if body.report_interval_ms:
            self._report.report_every(body.report_interval_ms)
        log.info("settings changed", **msgspec.structs.asdict(body))

    def _update_volume(self, body: c.UpdateVolume) -> None:
        if self._most_bytes and body.size_bytes > self._most_bytes:
            raise CommandRefused(
                f"{body.size_bytes:,} bytes are more than this node may lend, {self._most_bytes:,} (--max-size); "
                "nothing was changed, and --force does not help"
            )
        self._memory.orders.add("volume_update", self._resize(body))

    def _resize(self, body: c.UpdateVolume) -> Operation[None]:
        for number, limit in body.limits:
            yield Work(lambda number=number, limit=limit: self._lending.release(number, limit))  # type: ignore[misc]
            log.info("memory was given back", segment=number, from_byte=limit)
        if body.size_bytes:
            added = yield Work(lambda: self._lending.grow(body.size_bytes, body.force))
            if added is not None:
                boot, number, size = added
                yield from request(MountSegment(self._node, boot, number, size), Done)
                log.info("memory was added", segment=number, size_bytes=size)


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
