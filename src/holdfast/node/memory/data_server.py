"""The TCP port over which clients of other machines read and write the node's memory.

One thread per connection, blocked in the kernel most of the time: bytes go from the socket into the memory and back
without another copy. A read needs a ticket for its ranges, a write a grant with the master's MAC (`proofs`), and may
touch that grant's range only. `clean` ends writes that still run for a grant, and confirms only when the thread has
left the receiving call: from then on not one more byte of that grant can arrive (I2, I11).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter, deque
from collections.abc import Sequence

import structlog

from holdfast.addresses import join_address, split_address
from holdfast.errors import Refused, TryAgain
from holdfast.ids import COPIES, GrantId, SegmentName
from holdfast.instant import now_ms, now_seconds
from holdfast.messages.commands import Clear
from holdfast.messages.of_nodes import CheckFile, ReadBack, ReadRanges, WriteRange
from holdfast.messages.rows import TwoWords
from holdfast.node.memory.admission import (
    MOST_STRANGERS,
    displaced_peer,
    displaced_stranger,
    has_room,
    of_one_address,
)
from holdfast.node.memory.data_session import DataSession, Transfers, refuse
from holdfast.node.memory.lent_memory import Lending, wipe
from holdfast.node.memory.proofs import RefusedGrants, TicketBook
from holdfast.supervisor import Supervisor
from holdfast.transport.certificate_files import ContextSource

IDLE_SECONDS = 120.0
STALL_SECONDS = 30.0
LOOK_SECONDS = 0.5
STOP_SECONDS = 5.0
FENCE_SECONDS = 2.0
"""A thread that was told to leave a call does so at once; a busy machine may need a while to run it."""
CLEARED_KEPT = 1_024
"""As many as there may be commands on the way to one node."""
DISK_BUFFER_BYTES = 64 << 20
"""What all connections together hold of files that they send, unless there are more than a thousand."""
DISK_CHUNK = 1 << 20
LEAST_DISK_CHUNK = 64 << 10

log = structlog.get_logger("holdfast.node")


class DataServer:
    """Serves from `start` until `stop`, what `tickets` allow."""

    def __init__(
        self,
        listen: str,
        lending: Lending,
        max_connections: int,
        idle_seconds: float = IDLE_SECONDS,
        stall_seconds: float = STALL_SECONDS,
        tls: ContextSource | None = None,
        supervisor: Supervisor | None = None,
        tickets: TicketBook | None = None,
    ) -> None:
        self._tls = tls
        host, port = split_address(listen)
        self._listener = listening_socket(host, port)
        self.address = join_address(*self._listener.getsockname()[:2])
        self.tickets = tickets if tickets is not None else TicketBook()
        self._lending = lending
        self._max_connections = max_connections
        self._idle_seconds = idle_seconds
        self._stall_seconds = stall_seconds
        self._changed = threading.Condition()
        self._sessions: dict[DataSession, threading.Thread] = {}
        self._refused = RefusedGrants()
        self._moved = Transfers()
        """Bytes moved by connections that have ended."""
        self._cleared: deque[Clear] = deque(maxlen=CLEARED_KEPT)
        """The last orders that were carried out: one that comes again would wipe the next tenant's bytes."""
        self.refusals: Counter[str] = Counter()
        """Connections that ended with an error of their peer, by its code."""
        self.fences = 0
        self.cleared_bytes = 0
        self._copying: set[GrantId] = set()
        self._older: set[GrantId] = set()
        """Grants that were being written when the history changed."""
        self._stopping = threading.Event()
        self._supervisor = supervisor or Supervisor()
        self._thread = threading.Thread(
            target=self._supervisor.keep_thread,
            args=("data server", self._accept_all, self._stopping.wait),
            name="data-server",
            daemon=True,
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        # Wakes the thread in accept; if the kernel does not allow it, the thread wakes at its next timeout.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        deadline = now_seconds() + STOP_SECONDS
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)
        self._listener.close()
        with self._changed:
            running = dict(self._sessions)
        for session in running:
            session.end()
        for thread in running.values():
            thread.join(max(0.0, deadline - now_seconds()))

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def connections(self) -> int:
        with self._changed:
            return len(self._sessions)

    def transfers(self) -> Transfers:
        """All bytes moved since the start."""
        total = Transfers()
        with self._changed:
            for moved in (self._moved, *(session.moved for session in self._sessions)):
                total.add(moved)
        return total

    def clean(self, grants: list[GrantId], deadline: float) -> list[GrantId]:
        """Refuse these grants for ever and end writes to them. Returns those that nothing writes to any more."""
        wanted = set(grants)
        with self._changed:
            for grant in grants:
                self._refused.add(grant)
            for session in self._sessions:
                if session.writing in wanted:
                    session.end()
            self._changed.wait_for(lambda: not wanted & self._being_written(), max(0.0, deadline - now_seconds()))
            return [grant for grant in grants if grant not in self._being_written()]

    def enter_history(self, last_copy: int) -> None:
        """End writes for an older history, whose secret is no longer trusted. The node's own copies up to this serial
        belong to that history too."""
        with self._changed:
            self._refused.add_through(COPIES, last_copy)
            self._older = {session.writing for session in self._sessions if session.writing is not None}
            self._older.update(grant for grant in self._copying if grant.serial <= last_copy)
            for session in self._sessions:
                if session.writing is not None:
                    session.end()

    def older_writers(self) -> int:
        """How many of the writes that `enter_history` found still run."""
        with self._changed:
            self._older &= self._being_written()
            return len(self._older)

    def memory_voided(self) -> None:
        """Forget the refusals of the old memory: grants name memory by its boot id, so they are not needed."""
        with self._changed:
            self._refused = self._refused.of_copies()

    def refuse_client(self, client: int) -> None:
        """Take no more bytes from this client over TCP, and give it none, whatever it was granted or located."""
        self.tickets.refuse_client(client)
        with self._changed:
            self._refused.add_client(client)
            for session in self._sessions:
                if session.writing is not None and session.writing.client == client:
                    session.end()

    def clear(self, order: Clear) -> None:
        """Raise the fence and wipe the range, once. TryAgain if something still moves there with an older proof."""
        if order in self._cleared:
            return
        where = (order.segment, order.offset, order.length)
        with self._lending.range_of(*where) as room:
            self.fence(*where, order.issued)
            wipe(room)
            self.cleared_bytes += order.length
        self._cleared.append(order)

    def fence(self, segment: SegmentName, offset: int, length: int, issued: int) -> None:
        """Refuse earlier proofs for this range, and end what moves with one. TryAgain if that does not end in time."""

        def older() -> list[DataSession]:
            moving = [(session, session.moving) for session in self._sessions]
            return [one for one, its in moving if its is not None and its.is_older(segment, offset, length, issued)]

        with self._changed:
            self.tickets.fences.put_up(segment, offset, length, issued)
            self.fences += 1
            for session in older():
                session.end()
            if not self._changed.wait_for(lambda: not older(), FENCE_SECONDS):
                raise TryAgain(f"bytes still move at {offset:,} of {segment} for who may no longer have them")

    def begin_copy(self, grant: GrantId) -> None:
        """Let the node itself fill this grant, unless it is refused. Until `end_copy`, `clean` waits for it."""
        with self._changed:
            self._refused.check(grant)
            self._copying.add(grant)

    def end_copy(self, grant: GrantId) -> None:
        with self._changed:
            self._copying.discard(grant)
            self._changed.notify_all()

    def is_refused(self, grant: GrantId) -> bool:
        with self._changed:
            return grant in self._refused

    def begin_write(self, session: DataSession, request: WriteRange) -> None:
        """Let the session write, or raise. Until `end_write`, `clean` waits for it."""
        with self._changed:
            # Under the lock: `enter_history` sees a write with an older history's MAC, or it is refused here.
            self.tickets.check_write(request)
            self._refused.check(request.grant)
            session.writing = request.grant

    def pieces_of(self, request: ReadRanges) -> Sequence[TwoWords]:
        return self.tickets.pieces(request, now_ms())

    def check_read_back(self, request: ReadBack) -> None:
        with self._changed:
            self.tickets.check_write(request)
            self._refused.check(request.grant)

    def check_file(self, request: CheckFile) -> None:
        self.tickets.check_file(request.segment, request.ticket, request.offset, now_ms())

    def end_write(self, session: DataSession) -> None:
        with self._changed:
            session.writing = None
            self._changed.notify_all()

    def _being_written(self) -> set[GrantId]:
        writing = {session.writing for session in self._sessions if session.writing is not None}
        return writing | self._copying

    def _accept_all(self) -> None:
        while not self._stopping.is_set():
            try:
                connected, place = self._listener.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if not self._stopping.is_set():
                    # The client left before it was accepted, or this process has no descriptor left.
                    log.warning("a connection was not accepted", reason=str(error))
                    with self._changed:
                        self._changed.wait(0.05)
                continue
            self._admit(connected, str(place[0]))

    def _admit(self, connected: socket.socket, address: str) -> None:
        session = DataSession(
            connected,
            address,
            self,
            self._lending,
            self._idle_seconds,
            self._stall_seconds,
            self._tls() if self._tls is not None else None,
        )
        thread = threading.Thread(target=self._serve, args=(session,), name="data-connection", daemon=True)
        with self._changed:
            # Those that must go have a moment to leave: their threads are counted, too.
            full = len(self._sessions) >= self._max_connections + 2 * MOST_STRANGERS
            if not full:
                displaced = displaced_stranger(self._sessions)
                if displaced is not None:
                    displaced.end()
                self._sessions[session] = thread
        if full:
            refuse(connected, self._is_full())
        else:
            thread.start()

    def _is_full(self) -> TryAgain:
        return TryAgain(
            f"the node serves {self._max_connections} connections already, at most "
            f"{of_one_address(self._max_connections)} of one address; ask again later"
        )

    def prove(self, session: DataSession) -> None:
        """The session has shown a good ticket or grant: it is no stranger from now on. TryAgain if there is no room."""
        with self._changed:
            if session.is_known:
                return
            if not has_room(self._sessions, session.address, self._max_connections):
                displaced = displaced_peer(self._sessions, session.address, self._max_connections, now_seconds())
                if displaced is None:
                    raise self._is_full()
                displaced.end()
            session.is_known = True

    def disk_chunk(self) -> int:
        """How much of a file one connection may hold in memory at once."""
        return max(LEAST_DISK_CHUNK, min(DISK_CHUNK, DISK_BUFFER_BYTES // max(1, self.connections)))

    def _serve(self, session: DataSession) -> None:
        try:
            session.serve()
        finally:
            with self._changed:
                self._sessions.pop(session, None)
                self._moved.add(session.moved)
                if session.refused is not None:
                    self.refusals[session.refused.code] += 1
                self._changed.notify_all()


def listening_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=256)
    except OSError as error:
        raise Refused(
            f"the node cannot listen at {join_address(host, port)} ({error}); choose another address"
        ) from None
    listener.settimeout(LOOK_SECONDS)
    return listener
