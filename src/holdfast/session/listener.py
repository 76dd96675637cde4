"""The connections of a session master: frames in, requests to the master, replies out."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable
from functools import partial
from typing import cast

from holdfast import __version__
from holdfast.addresses import join_address
from holdfast.core.primary.session_book import MAX_SESSIONS, Book
from holdfast.errors import BadRequest, HoldfastError, NotAuthorized, TryAgain
from holdfast.instant import Instant, now_ms
from holdfast.messages.requests import Hello, Welcome
from holdfast.messages.shapes import Message
from holdfast.wire.codec import DEFAULT_TIMEOUT_MS, GREETING_SECONDS, FrameBuffer, decode_request, encode, failed, frame

MAX_REQUEST_BYTES = 1 << 20

Answer = Callable[[Message], None]
Receive = Callable[[Message, int, Instant, Answer], None]

log = logging.getLogger("holdfast.session")


class SessionListener:
    def __init__(self, book: Book, token: str, receive: Receive, lost: Callable[[int], None]) -> None:
        self.receive = receive
        self.lost = lost
        self.connections: dict[int, _Connection] = {}
        self.controls: dict[int | bytes, _Connection] = {}
        """By the key that a follower tells nobody else, so that no other can end its connection."""
        self._book = book
        self._token = token
        self._next = 1
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> str:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, port, backlog=1024)
        address = self._server.sockets[0].getsockname()
        return join_address(address[0], address[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections.values()):
            connection.transport.close()
        await asyncio.sleep(0)

    def admit(self, connection: _Connection) -> int:
        if len(self.connections) >= MAX_SESSIONS:
            raise TryAgain(f"{MAX_SESSIONS:,} connections are open, the most there may be; try again later")
        number = self._next
        self._next += 1
        self.connections[number] = connection
        return number

    def forget(self, connection: _Connection) -> None:
        if self.connections.pop(connection.number, None) is not None:
            if self.controls.get(connection.client) is connection:
                del self.controls[connection.client]
            self.lost(connection.number)

    def greet(self, connection: _Connection, hello: Hello) -> Welcome:
        if self._token and not hmac.compare_digest(hello.token.encode(), self._token.encode()):
            raise NotAuthorized("the token is missing or wrong; the connection is closed. Give the master's token")
        connection.client = hello.client_key or hello.client
        older = self.controls.get(connection.client)
        if older is not None:
            # Its follower has connected anew, whether or not the end of the old connection was noticed.
            older.transport.abort()
            self.forget(older)
        self.controls[connection.client] = connection
        return Welcome(self._book.history, self._book.epoch, "sessions", 0, 0, 0, 0, 0)


class _Connection(asyncio.BufferedProtocol):
    transport: asyncio.Transport

    def __init__(self, listener: SessionListener) -> None:
        self.number = 0
        self.client: int | bytes = 0
        self._listener = listener
        self._frames = FrameBuffer(limit=MAX_REQUEST_BYTES)
        self._opened = False
        self._greeted = False
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        try:
            self.number = self._listener.admit(self)
        except HoldfastError as error:
            self._refuse(error)
            return
        self._patience = asyncio.get_running_loop().call_later(GREETING_SECONDS, self._lose_patience)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._listener.forget(self)

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.space()

    def buffer_updated(self, nbytes: int) -> None:
        self._frames.filled(nbytes)
        if self.transport.is_closing():
            return
        try:
            if not self._opened:
                self._opened = self._frames.take_preamble()
                if not self._opened:
                    return
            while (received := self._frames.next_frame()) is not None:
                self._receive(*received)
        except HoldfastError as error:  # The stream is broken: nothing after this point can be trusted.
            self._refuse(error)

    def _receive(self, request_id: int, timeout_ms: int, payload: memoryview) -> None:
        answer = partial(self._send, request_id)
        try:
            request = decode_request(payload)
            if self._greeted:
                self._listener.receive(request, self.number, now_ms() + (timeout_ms or DEFAULT_TIMEOUT_MS), answer)
                return
        except HoldfastError as error:
            answer(failed(error))
            return
        if not isinstance(request, Hello):
            raise BadRequest("the first request must be Hello; the connection is closed")
        welcome = self._listener.greet(self, request)
        welcome.protocol, welcome.version = self._frames.protocol, __version__
        self._greeted = True
        answer(welcome)

    def _send(self, request_id: int, reply: Message) -> None:
        if not self.transport.is_closing():
            self.transport.write(frame(request_id, 0, encode(reply)))

    def _lose_patience(self) -> None:
        if not self._greeted:
            self._refuse(BadRequest("no greeting came in time; the connection is closed"))

    def _refuse(self, error: HoldfastError) -> None:
        """Send the error, and close. Request id 0 belongs to no request: the peer takes it as the connection's own."""
        log.info("a connection is closed: %s", error)
        self.transport.write(frame(0, 0, encode(failed(error))))
        self.transport.close()
