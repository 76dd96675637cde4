"""The Unix socket over which clients of this machine get the node's memory.

One thread serves all connections: each carries few messages, and its end is what matters. It means that the client,
and every thread in it, can no longer write, so the writer is reported gone and its memory can go to others (I11). For
that reason the node never closes a writer's connection, whatever it sends: an end that the node caused would prove
nothing about the writer. Clients that only read may also listen here for objects that are removed or moved while
leased.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
from collections import deque

import structlog

from holdfast.errors import BadRequest, HoldfastError, Refused, TryAgain, UnknownSegment, Unreachable
from holdfast.ids import SegmentName
from holdfast.instant import now_ms, now_seconds
from holdfast.messages.of_nodes import Attached, AttachSegment, HearRevocations, LeasesRevoked
from holdfast.messages.shapes import Message
from holdfast.node.memory.admission import (
    MOST_STRANGERS,
    STRANGER_BYTES,
    STRANGER_SECONDS,
    has_room,
    of_one_address,
)
from holdfast.node.memory.lent_memory import Lending
from holdfast.node.memory.proofs import TicketBook
from holdfast.node.session.report import Report
from holdfast.supervisor import Supervisor
from holdfast.transport.peer_user import is_own_user, process_of
from holdfast.wire.codec import FrameBuffer, decode_data_request, encode, failed, frame

MAX_REQUEST_BYTES = STRANGER_BYTES
LOOK_SECONDS = 1.0
ACCEPTED_AT_ONCE = 16
"""Fewer than there may be strangers: what a newcomer sends is read before others displace it."""
MOST_UNTOLD = 64
"""The most hints that wait for the thread; beyond that, clients learn only that there were more."""
MOST_TOLD_BYTES = 32 << 10
NO_SEGMENT = SegmentName("", 0, 0)

log = structlog.get_logger("holdfast.node")


class _Attachment:
    """One client's connection."""

    __slots__ = ("address", "greeted", "hears", "history", "is_known", "muted", "received", "since", "socket", "writer")
    busy = is_leaving = False
    """None of them gives way: the end of a connection tells its client that the node is gone."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.address = f"process {process_of(connected)}"
        self.received = FrameBuffer(MAX_REQUEST_BYTES, memoryview(bytearray(MAX_REQUEST_BYTES)))
        self.greeted = False
        self.is_known = False
        """It has shown a good ticket."""
        self.since = now_seconds()
        self.writer = 0
        self.history = 0
        """The log id under which the client knew the memory when it became a writer."""
        self.muted = False
        self.hears = False


class AttachServer:
    """Serves from `start` until `stop`."""

    def __init__(
        self,
        path: str,
        lending: Lending,
        report: Report,
        max_connections: int,
        supervisor: Supervisor | None = None,
        tickets: TicketBook | None = None,
    ) -> None:
        self.path = path
        self._tickets = tickets if tickets is not None else TicketBook()
        self._lending = lending
        self._report = report
        self._max_connections = max_connections
        self.attachments: set[_Attachment] = set()
        self.read_attaches = 0
        self.write_attaches = 0
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._revoked: deque[bytes] = deque()
        self._more_revoked = False
        self._history = 0
        self._older: list[int] = []
        self._untold_history = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=(supervisor or Supervisor()).keep_thread,
            args=("attach server", self._run, self._stopping.wait),
            name="attach-server",
            daemon=True,
        )

    def start(self) -> None:
        try:
            self._listener.bind(self.path)
        except OSError as error:
            raise Refused(f"the node cannot listen at {self.path} ({error}); choose another directory") from None
        # No client can connect before `listen`, so the socket is never open to other users.
        os.chmod(self.path, 0o600)
        self._listener.listen(1024)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wake()
        if self._thread.ident is not None:
            self._thread.join(10 * LOOK_SECONDS)
        for attachment in list(self.attachments):
            attachment.socket.close()
        self._listener.close()
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def connections(self) -> int:
        return len(self.attachments)

    def memory_voided(self) -> None:
        """Void the writer numbers of the old memory; a connection gets a new one when it asks."""
        for attachment in list(self.attachments):
            attachment.writer = 0

    def enter_history(self, history: int, older: list[int]) -> None:
        """Note that the memory belongs to this log now. Listening clients are told, so that they unmap memory mapped
        under an older one; new writers that know only an older one are refused. May be called from any thread."""
        with self._lending.lock:
            changed = self._history != history
            self._history, self._older = history, older
            if changed and older:
                self._untold_history = history
        self._wake()

    def older_writers(self) -> int:
        with self._lending.lock:
            if not self._older:
                return 0
            return sum(1 for one in list(self.attachments) if one.writer and one.history != self._history)

    def revoke(self, ids: bytes | None) -> None:
        """Tell listening clients which objects were removed or moved; None: more than can be named. From any thread."""
        if ids is None or len(self._revoked) >= MOST_UNTOLD:
            self._more_revoked = True
        else:
            self._revoked.append(ids)
        self._wake()

    def _wake(self) -> None:
        # If the pipe is full, the thread is about to wake anyway.
        with contextlib.suppress(BlockingIOError):
            self._wake_write.send(b".")

    def _tell_readers(self) -> None:
        more, self._more_revoked = self._more_revoked, False
        named = b"".join(self._revoked.popleft() for _ in range(len(self._revoked)))
        frames = [
            frame(0, 0, encode(LeasesRevoked(named[start : start + MOST_TOLD_BYTES])))
            for start in range(0, len(named), MOST_TOLD_BYTES)
        ]
        history, self._untold_history = self._untold_history, 0
        if history:
            frames.append(frame(0, 0, encode(LeasesRevoked(b"", history))))
        for attachment in [one for one in self.attachments if one.hears]:
            try:
                if more or any(attachment.socket.send(each) != len(each) for each in frames):
                    self._ended(attachment)
            except OSError:
                # It is gone, or too far behind: closing its connection tells it that it missed something.
                self._ended(attachment)

    def _run(self) -> None:
        while not self._stopping.is_set():
            for key, _ in self._selector.select(LOOK_SECONDS):
                if key.fileobj is self._listener:
                    for _ in range(ACCEPTED_AT_ONCE):
                        if not self._accept():
                            break
                elif isinstance(key.data, _Attachment):
                    self._receive(key.data)
                else:
                    self._wake_read.recv(1024)
                    self._tell_readers()
            self._end_strangers(MOST_STRANGERS)

    def _end_strangers(self, most: int) -> None:
        """Close connections that have shown no ticket in time, and the oldest where there are too many. None of them
        writes."""
        strangers = sorted((one for one in self.attachments if not one.is_known), key=lambda one: one.since)
        now = now_seconds()
        for position, one in enumerate(strangers):
            if now >= one.since + STRANGER_SECONDS or len(strangers) - position > most:
                self._ended(one)

    def _accept(self) -> bool:
        """Take one connection. False: none waits."""
        try:
            connected, _ = self._listener.accept()
        except BlockingIOError:
            return False
        except OSError as error:
            # The client left before it was accepted, or this process has no descriptor left.
            log.warning("a connection was not accepted", reason=str(error))
            return False
        connected.setblocking(False)
        if len(self.attachments) >= self._max_connections + MOST_STRANGERS:
            self._end_strangers(MOST_STRANGERS - 1)
        refusal: HoldfastError | None = None
        if not is_own_user(connected):
            refusal = Unreachable("the node passes its memory to processes of its own user only; read over TCP")
        elif len(self.attachments) >= self._max_connections + MOST_STRANGERS:
            refusal = TryAgain(f"the node serves {self._max_connections} connections already; ask again later")
        if refusal is not None:
            with contextlib.suppress(OSError):
                connected.send(frame(0, 0, encode(failed(refusal))))
            connected.close()
            return True
        attachment = _Attachment(connected)
        self.attachments.add(attachment)
        self._selector.register(connected, selectors.EVENT_READ, attachment)
        return True

    def _receive(self, attachment: _Attachment) -> None:
        space = attachment.received.space()
        try:
            count = attachment.socket.recv_into(space)
        except BlockingIOError:
            return
        except OSError:
            # A reset is an end too: the peer closed with unread bytes.
            count = 0
        if count == 0:
            self._ended(attachment)
            return
        if attachment.muted:
            return
        attachment.received.filled(count)
        try:
            self._answer_all(attachment)
        except HoldfastError as error:
            self._refuse(attachment, error)
        except OSError as error:
            self._refuse(attachment, BadRequest(f"answers are not taken ({error})"))

    def _answer_all(self, attachment: _Attachment) -> None:
        if not attachment.greeted:
            attachment.greeted = attachment.received.take_preamble()
            if not attachment.greeted:
                return
        while (whole := attachment.received.next_frame()) is not None:
            request = decode_data_request(whole[2])
            if isinstance(request, HearRevocations) and not attachment.writer:
                self._check_listener(request)
                self._know(attachment)
                attachment.hears = True
                _send(attachment, whole[0], LeasesRevoked(b""))
                continue
            if attachment.hears or not isinstance(request, AttachSegment):
                raise BadRequest(f"{type(request).__name__} is not served on this connection, which only passes memory "
                                 "or only tells of revoked leases")  # fmt: skip
            try:
                self._attach(attachment, request, whole[0])
            except HoldfastError as error:
                _send(attachment, whole[0], failed(error))

    def _know(self, attachment: _Attachment) -> None:
        """It has shown a good ticket, and may stay. TryAgain if there is no room, or its process has its share."""
        if not attachment.is_known and not has_room(self.attachments, attachment.address, self._max_connections):
            raise TryAgain(
                f"the node serves {self._max_connections} connections already, at most "
                f"{of_one_address(self._max_connections)} of one process; ask again later"
            )
        attachment.is_known = True

    def _check_listener(self, request: HearRevocations) -> None:
        """Who may not map the memory is not told which of its objects move, either."""
        with self._lending.lock:
            segment = request.segment if request.segment is not None else NO_SEGMENT
            self._tickets.check_attach(segment, request.ticket, False, now_ms())

    def _attach(self, attachment: _Attachment, request: AttachSegment, request_id: int) -> None:
        # Under the lock, the memory cannot be replaced between the number and its descriptor.
        with self._lending.lock:
            segment = self._lending.segment(request.segment)
            self._tickets.check_attach(request.segment, request.ticket, request.write, now_ms())
            self._know(attachment)
            if request.history in self._older:
                raise UnknownSegment(f"segment {request.segment} belongs to a later history now; ask the master")
            if request.write and not attachment.writer:
                attachment.writer = self._report.writer_came()
                attachment.history = request.history or self._history
            answer = Attached(attachment.writer, segment.size_bytes)
            descriptor = segment.descriptor if request.write else segment.read_descriptor
            _send(attachment, request_id, answer, [descriptor])
        if request.write:
            self.write_attaches += 1
        else:
            self.read_attaches += 1

    def _refuse(self, attachment: _Attachment, error: HoldfastError) -> None:
        """Refuse a peer that breaks the protocol. A writer is no longer read from, but its connection stays open."""
        # Strangers may be many: a line for each would fill the log (I17).
        tell = log.warning if attachment.is_known else log.debug
        tell("a client on this machine is not served any more", reason=str(error), writer=attachment.writer)
        with contextlib.suppress(OSError):
            _send(attachment, 0, failed(error))
        if attachment.writer:
            attachment.muted = True
            attachment.received = FrameBuffer(MAX_REQUEST_BYTES, memoryview(bytearray(MAX_REQUEST_BYTES)))
        else:
            self._ended(attachment)

    def _ended(self, attachment: _Attachment) -> None:
        if attachment not in self.attachments:
            return  # It has ended already, in the same round of events.
        self._selector.unregister(attachment.socket)
        attachment.socket.close()
        self.attachments.discard(attachment)
        if attachment.writer:
            self._report.writer_went(attachment.writer)


def _send(attachment: _Attachment, request_id: int, message: Message, descriptors: list[int] | None = None) -> None:
    """Send a reply. Replies are far smaller than a socket's buffer: if one does not fit, the client never reads, which
    is an error."""
    outgoing = frame(request_id, 0, encode(message))
    if socket.send_fds(attachment.socket, [outgoing], descriptors or []) != len(outgoing):
        raise BadRequest("the client does not take its answers")
