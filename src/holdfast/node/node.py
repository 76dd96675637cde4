"""A node: its memory, its two servers and its session with the cluster, put together."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from holdfast.addresses import DEFAULT_PORT, join_address, split_address
from holdfast.errors import BadValue, HoldfastError, Stopping
from holdfast.ids import LARGE_ALIGN, GrantId, object_id
from holdfast.instant import now_ms
from holdfast.messages.commands import TicketTerms
from holdfast.messages.hello import fresh_hello
from holdfast.messages.rows import MismatchRow, VerifyRow
from holdfast.node.commands.handlers import Commands, CommandWorkers
from holdfast.node.disk.lost_files import LostFiles
from holdfast.node.disk.store import DiskStore
from holdfast.node.disk.tier import DiskTier
from holdfast.node.host_capacity import available_memory, check_disk, memory_to_lend, most_memory
from holdfast.node.memory.admission import connections_within
from holdfast.node.memory.attach_server import AttachServer
from holdfast.node.memory.data_server import DataServer
from holdfast.node.memory.lent_memory import Lending, LentMemory, check_machine
from holdfast.node.memory.proofs import TicketBook
from holdfast.node.memory.verification import mismatched
from holdfast.node.session.life import NodeCard, NodeLife, SessionThreads
from holdfast.node.session.report import Report
from holdfast.operations.link import LinkOptions, PlainCaller
from holdfast.operations.masters import Masters
from holdfast.operations.threads import ThreadRunner
from holdfast.private_files import private_directory
from holdfast.session.followers import CONNECT_SECONDS
from holdfast.supervisor import Supervisor
from holdfast.transport.certificate_files import ContextSource
from holdfast.transport.host import this_host

LONGEST_SOCKET_PATH = 107

log = structlog.get_logger("holdfast.node")


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The settings of a node: what to lend, and to whom."""

    address: str
    name: str
    size_bytes: int
    listen: str = "127.0.0.1:0"
    advertise: str = ""
    segments: int = 1
    socket_dir: Path | None = None
    token: str = field(default="", repr=False)
    max_connections: int = 1024
    disk: Path | None = None
    disk_size_bytes: int = 0
    max_size_bytes: int = 0
    """The most memory that it may be told to lend; 0: all that the machine, or its control group, has."""
    tls: ContextSource | None = None
    """The TLS context of the data port."""
    insecure: int = 0
    """Listeners that strangers can reach."""
    force: bool = False
    """Take memory and disk space even if the machine seems to lack it."""


class Node:
    """Lends memory from `start` until `stop`."""

    def __init__(self, plan: NodePlan, when_registered: Callable[[Node], None] = lambda node: None) -> None:
        self._plan = plan
        self._stopping = threading.Event()
        self.supervisor = Supervisor()
        self._memory: LentMemory | None = None
        self._made_dir: str | None = None
        self._started = False
        self._history = 0
        self.verified_bytes = 0
        self.mismatched_ranges = 0
        masters = Masters(plan.address)
        caller = PlainCaller(fresh_hello(plan.token, control=True))
        runner = ThreadRunner(masters, caller, LinkOptions(CONNECT_SECONDS))
        self.lending = Lending()
        self.report = Report(runner.rouse)
        _check_size(plan)
        if plan.disk is not None:
            self.lending.disk = _open_disk(plan, plan.disk, self.report.lost_files)
        self._tickets = TicketBook()
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = connections_within(descriptors, plan.max_connections)
        self._most_bytes = plan.max_size_bytes or most_memory()
        self.data = DataServer(
            plan.listen,
            self.lending,
            most,
            tls=plan.tls,
            supervisor=self.supervisor,
            tickets=self._tickets,
        )
        try:
            path = self._socket_path()
            self.attach = AttachServer(path, self.lending, self.report, most, self.supervisor, self._tickets)
            self.card = NodeCard(plan.name, this_host(), self._data_address(masters.direction), path)
        except BaseException:
            self.data.stop()
            self._close_disk()
            self._remove_made_dir()
            raise
        self.workers = CommandWorkers(plan.name, plan.address, plan.token, self.lending, self.data, self.supervisor)
        memory, disk = self.workers.memory, self.workers.disk
        self._commands = Commands(
            plan.name, self.lending, self.report, self.data, self.attach, memory, disk, self._most_bytes
        )
        life = NodeLife(self.card, self, self.report, self._commands.perform, lambda: when_registered(self))
        self.session = SessionThreads(life, runner, self.supervisor)

    @property
    def failure(self) -> HoldfastError | None:
        """Why the node cannot go on; None while it can."""
        if self.session.failure is None and self._started and not (self.attach.alive and self.data.alive):
            return HoldfastError("a server of the node has ended unexpectedly, the log says why; start the node again")
        return self.session.failure

    @property
    def boot(self) -> int:
        return self._memory.boot if self._memory is not None else 0

    @property
    def sizes(self) -> list[int]:
        return self._memory.sizes if self._memory is not None else []

    def ready(self) -> tuple[bool, str]:
        """Whether the cluster's clients find bytes here, and why not. While no master answers, it serves on."""
        if not self._started or self.failure is not None:
            return False, "the node is stopping" if self._stopping.is_set() else "a server of the node has ended"
        for name, why in self.supervisor.down().items():
            return False, f"its background thread {name!r} is down: {why}"
        if not self.session.life.is_mounted:
            return False, "it has no session, or its memory is not mounted yet"
        return True, f"serving; its session is {self.session.life.follower.standing().value}"

    def start(self) -> None:
        self.attach.start()
        self.data.start()
        self._started = True
        self.workers.start()
        self.session.start()

    def stop(self) -> None:
        """Leave first, so that the master sends no more clients here; then end the servers."""
        self._stopping.set()
        self._started = False
        self.session.stop()
        self.workers.stop()
        self.data.stop()
        self.attach.stop()
        self.lending.withdraw()
        self._close_disk()
        self._remove_made_dir()

    def renew_memory(self) -> None:
        # Between withdrawing and lending nothing can be attached or read, so reports about the new memory hold nothing
        # of the old.
        self.lending.withdraw()
        self._memory = None
        self.attach.memory_voided()
        self.report.memory_voided()
        self.data.memory_voided()
        plan = self._plan
        memory = LentMemory.create(plan.name, plan.size_bytes, plan.segments, self._stopping.is_set)
        if self._stopping.is_set():
            memory.close()
            raise Stopping("the node is stopping")
        self.lending.lend(memory)
        self._memory = memory
        log.info("memory is ready", size_bytes=sum(memory.sizes), boot=f"{memory.boot:016x}")

    def figures(self) -> dict[str, int]:
        return {
            "lent_bytes": sum(self.sizes),
            **({"max_size_bytes": self._most_bytes} if self._most_bytes else {}),
            **({"memory_to_lend_bytes": memory_to_lend(left)} if (left := available_memory()) is not None else {}),
            "healthy": int(self.attach.alive and self.data.alive and not self.supervisor.down()),
            "threads_down": len(self.supervisor.down()),
            "writers": self.report.writers,
            "attached": self.attach.connections,
            "tcp_connections": self.data.connections,
            "copied_bytes": self.workers.copied_bytes,
            "lost_files": self.report.lost_files.found.total(),
            "insecure": self._plan.insecure,
            **self.data.transfers().figures(),
        }

    def trust(self, key: bytes, terms: TicketTerms | None) -> None:
        self._tickets.trust(key, terms, now_ms())
        self._commands.mount_disk(self.boot, self.card.data_address, self.card.host)

    def ticket_terms(self, terms: TicketTerms) -> None:
        self._tickets.told(terms, now_ms())

    def enter_history(self, history: int, older: list[int], epoch: int) -> None:
        self.attach.enter_history(history, older)
        if older and history != self._history:
            self.data.enter_history(object_id(epoch, 0) - 1)
        self._history = history

    def older_writers(self) -> int:
        return self.attach.older_writers() + self.data.older_writers()

    def mismatched(self, rows: bytes) -> bytes:
        failed = mismatched(self.lending, self._plan.name, self.boot, rows)
        self.verified_bytes += sum(size for _, _, _, size, _ in VerifyRow.iter_unpack(rows))
        self.mismatched_ranges += len(failed) // MismatchRow.size_bytes
        return failed

    def _close_disk(self) -> None:
        if self.lending.disk is not None:
            self.lending.disk.close()

    def clean(self, grants: list[GrantId], deadline: float) -> list[GrantId]:
        return self.data.clean(grants, deadline)

    def _socket_path(self) -> str:
        directory = self._plan.socket_dir
        if directory is None:
            self._made_dir = tempfile.mkdtemp(prefix="holdfast-")
            directory = Path(self._made_dir)
        else:
            private_directory(directory)
            remove_dead_sockets(directory, self._plan.name)
        path = str(directory / f"{self._plan.name}.{os.getpid()}.sock")
        if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
            raise BadValue(
                f"the path of the Unix socket, {path}, is over {LONGEST_SOCKET_PATH} bytes; choose a shorter "
                "directory or name"
            )
        return path

    def _remove_made_dir(self) -> None:
        if self._made_dir is not None:
            # It holds another's file, or was removed already: then it is not ours to remove.
            with contextlib.suppress(OSError):
                os.rmdir(self._made_dir)

    def _data_address(self, master: str) -> str:
        if self._plan.advertise:
            return self._plan.advertise
        host, port = split_address(self.data.address)
        return join_address(own_host_towards(master), port) if host in ("0.0.0.0", "::") else self.data.address


def _check_size(plan: NodePlan) -> None:
    """Refuse memory that the owner of the machine, or the machine, does not give."""
    if 0 < plan.max_size_bytes < plan.size_bytes:
        raise BadValue(
            f"--size is {plan.size_bytes:,} bytes and --max-size {plan.max_size_bytes:,}; nothing was taken. "
            "Lend less, or allow more"
        )
    if not plan.force:
        check_machine(plan.size_bytes)


def _open_disk(plan: NodePlan, directory: Path, lost: LostFiles) -> DiskTier:
    whole = plan.disk_size_bytes // LARGE_ALIGN * LARGE_ALIGN
    store = DiskStore.open(directory, this_host())
    try:
        if not plan.force:
            check_disk(directory, whole, sum(one.size_bytes for one in store.stored()))
    except BaseException:
        store.close()
        raise
    return DiskTier(plan.name, store, whole, lost)


def own_host_towards(address: str) -> str:
    """This machine's address towards the master, which others are given if the node listens on all addresses."""
    host, port = split_address(address, DEFAULT_PORT)
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            # Connecting a datagram socket sends nothing; it only chooses a route.
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise BadValue(
            f"no address of this machine leads to the master at {address} ({error}); set one to advertise"
        ) from None


def remove_dead_sockets(directory: Path, name: str) -> None:
    """Remove the socket files that killed nodes left behind: those that no process listens on."""
    for path in directory.glob(f"{name}.*.sock"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError as error:
                log.info("a socket of the same name is left alone", path=str(path), reason=str(error))
