"""TLS handshakes of a master's RPC port.

asyncio shows a connection to its protocol when its handshake is over. Until then nobody would count it, and whoever
sends nothing, or half a hello, would hold a descriptor, as many as they like. So this port accepts by itself. The life
of a connection here:

1. Accepted, it takes a place among those that have not greeted (`admission`), and its 5 s begin.
2. The handshake runs in a task. Until it is over, a `Handshake` stands for the transport of the connection: whoever
   closes that, because the time is over or because the place is another's, gives the handshake up.
3. asyncio calls `connection_made`, and the connection goes on as one without TLS does.

The bytes of a handshake are bounded by OpenSSL: 128 KiB for a hello, 100 KiB for the certificates of a client.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from holdfast.errors import TryAgain
from holdfast.supervisor import Supervisor
from holdfast.transport.certificate_files import ContextSource

if TYPE_CHECKING:
    from holdfast.master.connection import Connection

PAUSE_SECONDS = 0.1
"""After an accept that failed: the process, or the machine, has no descriptor left."""
FAREWELL_SECONDS = 1.0
"""For the peer's own farewell, after ours. One that sends none would keep its descriptor though its place is given up;
at a thousand handshakes a second, which is what a core can do, a second's worth is among the spare descriptors."""


class Handshake(asyncio.Transport):
    """Stands for the transport of a connection whose handshake is not over: nothing can be sent."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        super().__init__()
        self._task = task

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def is_closing(self) -> bool:
        return self._task.done() or self._task.cancelling() > 0

    def close(self) -> None:
        self._task.cancel()

    def abort(self) -> None:
        self._task.cancel()


class TlsListener:
    """Accepts connections until `close`."""

    def __init__(
        self,
        sockets: list[socket.socket],
        context: ContextSource,
        connect: Callable[[], Connection],
        supervisor: Supervisor,
    ) -> None:
        self.sockets = sockets
        self._context = context
        self._connect = connect
        self._supervisor = supervisor
        self._tasks = []
        for listener in sockets:
            task = asyncio.create_task(supervisor.keep("TLS accept", partial(self._accept_all, listener)))
            task.add_done_callback(partial(_close, listener))
            self._tasks.append(task)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _accept_all(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                stream, address = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            self._admit(stream, str(address[0]))

    def _admit(self, stream: socket.socket, address: str) -> None:
        connection = self._connect()
        try:
            connection.arrive(address)
        except TryAgain:
            stream.close()  # It could be told why only after the handshake that there is no room for.
            return
        task = asyncio.create_task(self._open(connection, stream))
        self._supervisor.watch("a TLS handshake", task)
        connection.transport = handshake = Handshake(task)
        task.add_done_callback(partial(_ended, connection, handshake, stream))

    async def _open(self, connection: Connection, stream: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # The peer's affair: a line for each would fill the log (I17).
            await loop.connect_accepted_socket(
                lambda: connection, stream, ssl=self._context(), ssl_shutdown_timeout=FAREWELL_SECONDS
            )


def _ended(connection: Connection, handshake: Handshake, stream: socket.socket, _: asyncio.Task[None]) -> None:
    """The handshake is over. If it failed, or was given up before it began, nobody else tells the connection."""
    if connection.transport is handshake:
        stream.close()
        connection.connection_lost(None)


def _close(listener: socket.socket, _: asyncio.Task[None]) -> None:
    listener.close()


def bound(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Listeners at every address of the host; OSError if one is not available."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            sockets.append(socket.create_server(address, family=family, backlog=backlog))
            sockets[-1].setblocking(False)
    except OSError:
        for one in sockets:
            one.close()
        raise
    return sockets
