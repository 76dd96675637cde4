"""A client's connection to a node of the same machine, over which it gets the node's memory.

The connection is the writer's life line: the node takes its end to mean that this process can no longer write, and the
memory goes to others (I2, I11). So memory that was mapped for writing is unmapped before the socket closes; while a
copy is still running, the socket stays open. A forked child closes its copy of the socket at once, or it would keep a
dead writer alive. In the other direction it is the node's life line: a writer checks it before it commits, and commits
nothing to the memory of a dead node.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import weakref

from holdfast.errors import BadRequest, DeadlineExceeded, Unreachable
from holdfast.instant import now_seconds
from holdfast.messages.of_nodes import Attached, AttachSegment
from holdfast.messages.shapes import Message
from holdfast.transport.shared_memory import Mapping
from holdfast.wire.codec import PREAMBLE, FrameBuffer, decode_data_reply, encode, expect, frame

MAX_REPLY_BYTES = 64 << 10

_links: weakref.WeakSet[NodeLink] = weakref.WeakSet()


class _Lifeline:
    """Closes the socket when the link and the last map for writing have released it.

    Finalizers release it, which run in any thread at any point: so there is no lock, only single list operations.
    """

    __slots__ = ("_held", "_socket", "hang_up")

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._held = [1]
        self.hang_up = select.epoll()
        """Ready once the node has closed its end. Registered once, because each check would otherwise cost five times
        as much; and not for bytes to read, since a late reply says nothing about whether the node is alive."""
        self.hang_up.register(connected, select.EPOLLRDHUP)

    def hold(self) -> None:
        self._held.append(1)

    def let_go(self) -> None:
        self._held.pop()
        if not self._held:
            self.close()

    def close(self) -> None:
        self.hang_up.close()
        self._socket.close()


class NodeLink:
    """One Unix connection to a node; any thread may use it."""

    __slots__ = (
        "__weakref__",
        "_broken",
        "_closed",
        "_lifeline",
        "_lock",
        "_mappings",
        "_path",
        "_pid",
        "_received",
        "_socket",
        "writer",
    )

    def __init__(self, connected: socket.socket, path: str) -> None:
        self._socket = connected
        self._path = path
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._received = FrameBuffer(limit=MAX_REPLY_BYTES)
        self._mappings: list[Mapping] = []
        self._lifeline = _Lifeline(connected)
        self._broken = False
        self._closed = False
        self.writer = 0
        _links.add(self)

    @classmethod
    def open(cls, socket_path: str, deadline: float) -> NodeLink:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # A blocking connect with a timeout of the kernel's: it waits for a place in the queue of a busy node, where
            # one with Python's timeout fails at once.
            seconds = _left(deadline)
            wait = struct.pack("@ll", int(seconds), max(1, int(seconds % 1 * 1e6)))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
            connection.connect(socket_path)
            connection.settimeout(_left(deadline))
            connection.sendall(PREAMBLE)
        except (TimeoutError, BlockingIOError):
            connection.close()
            raise DeadlineExceeded(f"the node at {socket_path} did not take the connection in time") from None
        except OSError as error:
            connection.close()
            raise Unreachable(f"no node at {socket_path} ({error}); nothing was mapped") from None
        except BaseException:
            connection.close()
            raise
        return cls(connection, socket_path)

    def ended(self) -> bool:
        """Has the node closed its end? It has if its process is dead: the kernel closes a process's files before
        anyone can learn of its death. One system call that does not block, 0.5 us."""
        try:
            return bool(self._lifeline.hang_up.poll(0, 1))
        except ValueError:  # Closed at this end.
            return True

    def attach(self, request: AttachSegment, deadline: float) -> Mapping:
        """Map the segment. A refusal of the node is raised as the error that it names."""
        if self._pid != os.getpid():
            raise Unreachable("this process was forked from the one that is connected to the node; connect anew")
        with self._lock:
            if self._broken or self._closed:
                raise Unreachable(f"the connection to the node at {self._path} is closed; nothing was mapped")
            try:
                reply, descriptors = self._ask(request, deadline)
            except BaseException:
                # A late reply would be taken for that of the next request, so the link is not used again. The socket
                # itself must stay open while anything is mapped for writing.
                self._broken = True
                raise
            try:
                return self._map(expect(reply, Attached), descriptors, request.write)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def close(self) -> None:
        """Unmap memory that was attached for writing, then close the connection; running copies delay that."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            writing, self._mappings = self._mappings, []
        for mapping in writing:
            mapping.close()
        self._lifeline.let_go()

    def _map(self, attached: Attached, descriptors: list[int], write: bool) -> Mapping:
        if len(descriptors) != 1:
            raise BadRequest(
                f"the node at {self._path} passed {len(descriptors)} descriptors, not one; nothing was mapped"
            )
        mapping = Mapping(descriptors[0], attached.size_bytes, write)
        if write:
            self.writer = attached.writer
            self._mappings = [one for one in self._mappings if not one.closed] + [mapping]
            self._lifeline.hold()
            mapping.when_unmapped(self._lifeline.let_go)
        return mapping

    def _ask(self, message: Message, deadline: float) -> tuple[Message, list[int]]:
        descriptors: list[int] = []
        try:
            self._socket.settimeout(_left(deadline))
            self._socket.sendall(frame(0, 0, encode(message)))
            while True:
                self._socket.settimeout(_left(deadline))
                space = self._received.space()
                data, passed, _, _ = socket.recv_fds(self._socket, min(len(space), MAX_REPLY_BYTES), 4)
                descriptors += passed
                if not data:
                    raise Unreachable(f"the node at {self._path} closed the connection; nothing was mapped")
                space[: len(data)] = data
                self._received.filled(len(data))
                whole = self._received.next_frame()
                if whole is not None:
                    return decode_data_reply(whole[2]), descriptors
        except BaseException as error:
            for descriptor in descriptors:
                os.close(descriptor)
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(f"the node at {self._path} did not answer in time; nothing was mapped") from None
            if isinstance(error, OSError):
                raise Unreachable(f"the node at {self._path} is gone ({error}); nothing was mapped") from None
            raise


def _left(deadline: float) -> float:
    left = deadline - now_seconds()
    if left <= 0:
        raise TimeoutError
    return left


def _close_in_child() -> None:
    for link in list(_links):
        link._lifeline.close()


os.register_at_fork(after_in_child=_close_in_child)
