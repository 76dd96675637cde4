"""A node's memory behind its two servers, without a master; and a master that only knows nodes."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import structlog

from holdfast.errors import HoldfastError, SessionExpired
from holdfast.ids import GrantId, ProcessName, SegmentName
from holdfast.instant import now_ms, now_seconds
from holdfast.messages.of_nodes import Registered, RegisterNode, ReportGone, ReportUsage, ReportWriters
from holdfast.messages.of_sessions import (
    CloseSession,
    EpochDiffers,
    KeepAlive,
    KeptAlive,
    Opened,
    OpenSession,
    SessionCommand,
)
from holdfast.messages.requests import Done, Hello, Welcome
from holdfast.messages.shapes import Message, Ticket
from holdfast.node.memory.attach_server import AttachServer
from holdfast.node.memory.data_server import DataServer
from holdfast.node.memory.lent_memory import Lending, LentMemory
from holdfast.node.memory.proofs import TicketBook
from holdfast.node.session.report import Report
from holdfast.transport.certificate_files import ContextSource
from holdfast.transport.data_tcp import DataConnection, WantedRange
from holdfast.wire.codec import failed
from holdfast.wire.mac import range_mac
from tests.scripted_server import ScriptedServer
from tests.tickets import SECRET, TERMS, TicketedLink, read_ticket, wanted
from tests.waiting import wait_until

# Connections may still end while a test does, and would talk into the next one.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))

SIZE = 4 << 20


def soon(seconds: float = 20.0) -> float:
    return now_seconds() + seconds


class Served:
    """Two segments of memory, served on both ports."""

    def __init__(
        self,
        directory: Path,
        max_connections: int = 16,
        idle_seconds: float = 60.0,
        stall_seconds: float = 60.0,
        listen: str = "127.0.0.1:0",
        tls: ContextSource | None = None,
    ) -> None:
        self.memory = LentMemory.create("n1", 2 * SIZE, 2)
        self.lending = Lending()
        self.lending.lend(self.memory)
        self.report = Report(lambda: None)
        self.path = str(directory / "n1.sock")
        self.tickets = TicketBook()
        self.tickets.trust(SECRET, TERMS, now_ms())
        self.data = DataServer(
            listen, self.lending, max_connections, idle_seconds, stall_seconds, tls, tickets=self.tickets
        )
        self.attach = AttachServer(self.path, self.lending, self.report, max_connections, tickets=self.tickets)

    def __enter__(self) -> Served:
        self.attach.start()
        self.data.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.data.stop()
        self.attach.stop()
        self.lending.withdraw()

    def name(self, number: int = 0) -> SegmentName:
        return SegmentName("n1", self.memory.boot, number)

    def bytes_at(self, offset: int, length: int, number: int = 0) -> bytes:
        return self.memory.segments[number].mapping.map[offset : offset + length]

    def mac(self, grant: GrantId, offset: int, length: int, number: int = 0) -> bytes:
        return range_mac(SECRET, self.name(number), grant, offset, length)

    def wanted(self, offset: int, target: memoryview, name: SegmentName | None = None) -> WantedRange:
        """These bytes of the first segment, with a ticket for them."""
        return wanted(SECRET, name if name is not None else self.name(), offset, target)

    def ticket(self, *ranges: tuple[int, int]) -> Ticket:
        return read_ticket(SECRET, self.name(), *ranges)

    def gone_writers(self) -> list[int]:
        return self.report.news(1, self.memory.boot).gone_writers

    @contextlib.contextmanager
    def connection(self, tls: ssl.SSLContext | None = None) -> Iterator[DataConnection]:
        connection = DataConnection.open(self.data.address, soon(), tls=tls)
        try:
            yield connection
        finally:
            connection.close()

    @contextlib.contextmanager
    def link(self) -> Iterator[TicketedLink]:
        link = TicketedLink.open(self.path, soon())
        try:
            yield link
        finally:
            link.close()

    @contextlib.contextmanager
    def raw(self) -> Iterator[socket.socket]:
        """A TCP connection that says what the test likes."""
        host, _, port = self.data.address.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=20) as connected:
            yield connected

    @contextlib.contextmanager
    def raw_unix(self) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
            connected.settimeout(20)
            connected.connect(self.path)
            yield connected


def read_to_end(connected: socket.socket) -> bytes:
    """All that the peer sends until it closes; a reset is an end too."""
    received = b""
    while True:
        try:
            piece = connected.recv(65_536)
        except ConnectionResetError:
            return received
        if not piece:
            return received
        received += piece


class FakeMaster(ScriptedServer):
    """Knows nodes and their sessions and nothing else, and holds no keepalive for long. `answer` may be replaced."""

    def __init__(self, log_id: int = 7, port: int = 0, epoch: int = 1) -> None:
        self.log_id = log_id
        self.epoch = epoch
        self.lease_ms = 2_000
        self.jeopardy_ms = 60_000
        self.log_index = 0
        self.suspects: list[ProcessName] = []
        """Earlier primaries, whose end nodes may testify."""
        self.commands: list[SessionCommand] = []
        self.sessions: set[int] = set()
        self.mounted: list[RegisterNode] = []
        """What was offered and taken."""
        self.answer: Callable[[Message], Message] = self.usual_answer
        self._paced = threading.Event()
        super().__init__(port)

    def registrations(self) -> list[RegisterNode]:
        return self.asked(RegisterNode)

    def keepalives(self) -> list[KeepAlive]:
        return self.asked(KeepAlive)

    def reports(self) -> list[ReportWriters]:
        return self.asked(ReportWriters)

    def wait_for_registrations(self, count: int) -> list[RegisterNode]:
        wait_until(lambda: len(self.registrations()) >= count, what=f"{count} registrations")
        return self.registrations()

    def command(self, name: str, body: bytes) -> None:
        self.commands.append(SessionCommand(len(self.commands) + 1, name, body))

    def usual_answer(self, request: Message) -> Message:
        if isinstance(request, RegisterNode):
            if request.session not in self.sessions:
                raise SessionExpired("open one first")
            self.mounted.append(request)
            return Registered(self.log_id, self.epoch, SECRET, 60_000, None, self.suspects, 60_000, TERMS)
        if isinstance(request, OpenSession):
            self.sessions.add(request.session)
            return Opened(request.session, self.log_id, self.epoch, 0, self.lease_ms, self.jeopardy_ms)
        if isinstance(request, KeepAlive):
            if request.session not in self.sessions:
                raise SessionExpired("open one first")
            if request.epoch != self.epoch:
                return EpochDiffers(self.epoch)
            self._paced.wait(0.02)
            left = [command for command in self.commands if command.number > request.handled]
            return KeptAlive(self.epoch, len(self.commands), 0, self.lease_ms, self.jeopardy_ms, self.log_index, left)
        if isinstance(request, ReportWriters | ReportUsage | ReportGone | CloseSession):
            return Done(1)
        assert isinstance(request, Hello)
        return Welcome(self.log_id, self.epoch, "fake", 10_000, 30_000, 1 << 28, 1 << 23, 1)

    def respond(self, request: Message) -> Message:
        try:
            return self.answer(request)
        except HoldfastError as error:
            return failed(error)
        finally:
            self.requests.append(request)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
