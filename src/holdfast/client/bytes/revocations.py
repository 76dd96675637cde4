"""Receives from the nodes of this machine which objects are removed or moved while this client may hold leases on them.

This is a hint. Without it, readers of a hot key would use an old object until their lease ends: its bytes are right,
but old (I2). One daemon thread polls all the connections. It holds the client by a weak reference only, so that a
client which is dropped without being closed can end. A connection that ends may have lost messages: then every lease
counts as revoked, which costs asking the master once more.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.errors import BadRequest
from holdfast.messages.of_nodes import HearRevocations, LeasesRevoked
from holdfast.messages.rows import unpack_ids
from holdfast.supervisor import Supervisor
from holdfast.wire.codec import PREAMBLE, FrameBuffer, decode_data_reply, encode, frame

MAX_FRAME_BYTES = 64 << 10

OnRevoked = Callable[[list[int] | None, int], None]
"""Called with the ids of objects, or with None for all of them; and with the history that the node's memory belongs to
now, if that has changed, else 0."""


class _RevocationConnection:
    """A connection to one node, over which it reports revoked leases."""

    __slots__ = ("ended", "history", "received", "socket")

    def __init__(self, path: str, request: HearRevocations, seconds: float) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.received = FrameBuffer(limit=MAX_FRAME_BYTES)
        self.ended = False
        self.history = 0
        """The history that the node announced since this was last read; 0 if none."""
        try:
            self.socket.settimeout(seconds)
            self.socket.connect(path)
            self.socket.sendall(PREAMBLE + frame(0, 0, encode(request)))
            self.socket.setblocking(False)
        except BaseException:
            self.socket.close()
            raise

    def hear(self) -> list[int] | None:
        """The ids that have arrived; None once the connection has ended."""
        ids: list[int] = []
        try:
            count = self.socket.recv_into(self.received.space())
            self.received.filled(count)
            self.ended = count == 0
            while (whole := self.received.next_frame()) is not None:
                told = decode_data_reply(whole[2])
                if not isinstance(told, LeasesRevoked) or len(told.ids) % 8:
                    raise BadRequest("the node tells something else")
                self.history = told.history or self.history
                ids += unpack_ids(told.ids)
        except BlockingIOError:
            return ids
        except (OSError, BadRequest):
            self.ended = True
        return None if self.ended else ids


class RevocationListener:
    """The connections and their thread, which runs from the first `listen` until `close`."""

    def __init__(self, on_revoked: weakref.ReferenceType[OnRevoked]) -> None:
        self._on_revoked = on_revoked
        self._ears: dict[Any, _RevocationConnection] = {}
        # Reentrant: the garbage collector may end a client, and so close this, at any allocation of this thread.
        self._lock = threading.RLock()
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._closed = False
        self._supervisor = Supervisor()
        self._pid = os.getpid()

    def listen(self, key: Any, path: str, request: HearRevocations, seconds: float) -> None:
        """Connect to the node at this socket, unless that is done already. A failure is ignored: this is a hint."""
        with self._lock:
            if self._closed or key in self._ears or self._pid != os.getpid():
                return
            try:
                self._ears[key] = _RevocationConnection(path, request, seconds)
            except OSError:
                # The node is away or refuses; leases expire anyway.
                return
            if self._wake is None:
                self._wake = socket.socketpair()
                work = partial(self._run_or_revoke, self._wake[0])
                threading.Thread(
                    target=self._supervisor.keep_thread,
                    args=("revocations", work, self._stops),
                    name="holdfast-hearing",
                    daemon=True,
                ).start()
            else:
                self._wake[1].send(b".")

    def close(self) -> None:
        with self._lock:
            if self._closed or self._pid != os.getpid():
                return
            self._closed = True
            if self._wake is not None:
                self._wake[1].send(b".")

    def leave_to_parent(self) -> None:
        """In a forked child, close the sockets. Takes no lock: its holder, like the thread, may not exist here."""
        for ear in list(self._ears.values()):
            ear.socket.close()

    def _stops(self, seconds: float) -> bool:
        # Nothing waits for this thread, and an Event has a lock that the garbage collector may need (see `_lock`).
        time.sleep(seconds)
        return self._closed

    def _run_or_revoke(self, woken: socket.socket) -> None:
        try:
            self._run(woken)
        except Exception:
            # Messages of a node may be lost.
            on_revoked = self._on_revoked()
            if on_revoked is not None:
                on_revoked(None, 0)
            raise

    def _run(self, woken: socket.socket) -> None:
        while True:
            with self._lock:
                if self._closed:
                    break
                ears = {ear.socket.fileno(): (key, ear) for key, ear in self._ears.items()}
            poll = select.poll()
            for descriptor in (woken.fileno(), *ears):
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll():
                if descriptor == woken.fileno():
                    woken.recv(1024)
                else:
                    self._hear(*ears[descriptor])
        for ear in self._ears.values():
            ear.socket.close()
        self._ears.clear()
        if self._wake is not None:
            for end in self._wake:
                end.close()

    def _hear(self, key: Any, ear: _RevocationConnection) -> None:
        ids = ear.hear()
        if ear.ended:
            with self._lock:
                self._ears.pop(key, None)
            with contextlib.suppress(OSError):
                ear.socket.close()
        on_revoked, history = self._on_revoked(), ear.history
        ear.history = 0
        if on_revoked is not None and (ids is None or ids or history):
            on_revoked(ids, history)
