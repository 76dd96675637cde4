"""The connections of an HTTP server: how many there may be, and how long each may take.

The life of one:

1. Accepted. If all places are taken, the connection that has waited longest for its client gives its place to it: for
   a request, for the client to take an answer, or for nothing, because it asks for more before it is answered. One that
   opens a thousand and sends or reads nothing pushes out its own, and a probe is answered all the same. While the
   server works for every one of them, nobody is accepted.
2. It waits: the TLS handshake and the header of a request, slow or not, have 5 s together.
3. It is answered: 60 s until all of the answer has been taken. The header is bounded by h11 (16 KiB), a body by
   `access`; neither is read ahead of by more than 64 KiB.
4. It waits for the next request, as in 2, or is closed. Bytes that are no HTTP are answered by 400 where an answer can
   still begin; nothing about them is logged.

Every place is one descriptor, and HTTP has its own share of them: at most an eighth of those of the process, so that
RPC cannot run short because of it.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from typing import Any, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from holdfast.dashboard.access import SECURITY_HEADERS
from holdfast.transport.certificate_files import ContextSource
from holdfast.transport.tls import names_in

MOST_CONNECTIONS = 128
SHARE_OF_DESCRIPTORS = 8
WAIT_SECONDS = 5.0
ANSWER_WITHIN_SECONDS = 60.0
UNTAKEN_TLS_BYTES = 65_536
MOST_AT_ONCE = 16
"""Connections accepted in one turn of the loop, so that a turn full of requests does not delay a crowd behind it by one
turn each. Those that give their places up are closed in the next turn, so there are as many more until then."""
CROWD_AT_ONCE = 4
CROWD_PAUSE_SECONDS = 0.01
"""While all places are taken, this many are accepted between pauses: a crowd that comes again and again is let in at
400 per second, and leaves the process its core. A probe behind a full backlog (128) waits 0.3 s for that."""
PAUSE_SECONDS = 0.1
"""After an accept that failed: the process, or the machine, has no descriptor left."""


def places() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if limit < 0 else max(4, min(MOST_CONNECTIONS, limit // SHARE_OF_DESCRIPTORS))


class ConnectionPlace:
    """One accepted connection: whether it waits or is answered, and until when it may."""

    def __init__(self, acceptor: Acceptor) -> None:
        self._acceptor = acceptor
        self._patience: asyncio.TimerHandle | None = None
        self.opening: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None
        """None until the handshake is over."""
        self.is_answered = False

    def now(self, is_answered: bool, gives_way: bool = False) -> None:
        """It waits for a request, or one is being answered, from now on. `gives_way`: also while it is answered."""
        self._acceptor.note(self, gives_way or not is_answered)
        if self._patience is not None:
            if is_answered == self.is_answered:
                return
            self._patience.cancel()
        self.is_answered = is_answered
        seconds = ANSWER_WITHIN_SECONDS if is_answered else WAIT_SECONDS
        self._patience = asyncio.get_running_loop().call_later(seconds, self.abort)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    def leave(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._acceptor.forget(self)


class BoundedConnection(H11Protocol):
    """A connection that tells its place what it does."""

    def __init__(self, config: Config, state: ServerState, place: ConnectionPlace) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self._place = place
        self._asks_ahead = False
        """It has sent more than one request at once, and so would be answered for as long as it likes."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._place.transport = transport
        encrypted = transport.get_extra_info("ssl_object")
        # It is told of whatever its client does not take at once. Not with TLS: the end of the handshake may be waiting
        # there now, and nobody would be told that it has left.
        transport.set_write_buffer_limits(high=0 if encrypted is None else UNTAKEN_TLS_BYTES, low=0)
        shown = encrypted.getpeercert() if encrypted is not None else None
        if shown:  # Verified; empty where the client showed none.
            self.app_state = {"certificate_names": names_in(shown)}

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._place.leave()

    def handle_events(self) -> None:
        super().handle_events()
        self._tell()

    def on_response_complete(self) -> None:
        self._asks_ahead = self._asks_ahead or bool(self.conn.trailing_data[0])
        super().on_response_complete()
        self._tell()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._tell()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._tell()

    def send_400_response(self, msg: str) -> None:
        """Where an answer has begun or ended already, uvicorn's own fails, and any stranger could have a traceback
        logged for every few bytes."""
        if self._is_under_way():
            # Whatever the application says from now on is for nobody.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse_as_garbage(msg.encode())
        self.transport.close()

    def _refuse_as_garbage(self, text: bytes) -> None:
        headers = {
            b"content-type": b"text/plain; charset=utf-8",
            b"content-length": b"%d" % len(text),
            b"connection": b"close",
        }
        answer = h11.Response(status_code=400, headers=[*(SECURITY_HEADERS | headers).items()], reason=b"Bad Request")
        for event in (answer, h11.Data(data=text), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")

    def _is_under_way(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request.
        return cycle is not None and not cycle.response_complete and not cycle.disconnected

    def _tell(self) -> None:
        is_deaf = self.flow.write_paused
        self._place.now(is_answered=self._is_under_way() or is_deaf, gives_way=is_deaf or self._asks_ahead)


class Acceptor:
    """Accepts the connections of one listener, as many as there are places."""

    def __init__(
        self,
        listener: socket.socket,
        tls: ContextSource | None,
        connect: Callable[[ConnectionPlace], asyncio.Protocol],
        on_failure: Callable[[], None],
    ) -> None:
        self._listener = listener
        self._tls = tls
        self._connect = connect
        self._most = places()
        self._places: set[ConnectionPlace] = set()
        self._waiting: dict[ConnectionPlace, None] = {}
        """Those that give way to others, the one that waits longest for its client first."""
        self._has_room = asyncio.Event()
        self._accepting = asyncio.create_task(self._accept_all(), name="http accept")
        self._on_failure = on_failure
        self._accepting.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._on_failure()

    async def _accept_all(self) -> None:
        """Accept without awaiting the connection itself: `sock_accept`, cancelled as it accepts, loses one that is
        open, and whose client waits for ever."""
        at_once, accepted = max(1, min(MOST_AT_ONCE, self._most // 8)), 0
        while True:
            while len(self._places) >= self._most and not self._waiting:
                self._has_room.clear()
                await self._has_room.wait()
            try:
                stream, _ = self._listener.accept()
            except BlockingIOError:
                await self._ready()
                accepted = 0
                continue
            except OSError:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            stream.setblocking(False)
            self._admit(stream)
            accepted += 1
            crowded = len(self._places) >= self._most
            if accepted % (min(at_once, CROWD_AT_ONCE) if crowded else at_once) == 0:
                # Those that gave their places up are closed in the next turn: before the next are accepted.
                await asyncio.sleep(CROWD_PAUSE_SECONDS if crowded else 0)

    async def _ready(self) -> None:
        """Wait until somebody connects."""
        loop, descriptor = asyncio.get_running_loop(), self._listener.fileno()
        ready = asyncio.Event()
        loop.add_reader(descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(descriptor)

    def _admit(self, stream: socket.socket) -> None:
        if len(self._places) >= self._most:
            longest = next(iter(self._waiting))
            del self._waiting[longest]
            longest.abort()
        place = ConnectionPlace(self)
        self._places.add(place)
        place.now(is_answered=False)
        place.opening = asyncio.create_task(self._open(place, stream), name="http open")

        def opened(opening: asyncio.Task[None]) -> None:
            if opening.cancelled():  # Before its first step: nothing of it has run.
                self._refuse(place, stream)

        place.opening.add_done_callback(opened)

    async def _open(self, place: ConnectionPlace, stream: socket.socket) -> None:
        more: dict[str, Any] = {} if self._tls is None else {"ssl": self._tls(), "ssl_handshake_timeout": WAIT_SECONDS}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self._connect(place), stream, **more)
        except (OSError, asyncio.CancelledError):  # A handshake that failed, or took too long.
            self._refuse(place, stream)

    @staticmethod
    def _refuse(place: ConnectionPlace, stream: socket.socket) -> None:
        stream.close()
        place.leave()

    def note(self, place: ConnectionPlace, gives_way: bool) -> None:
        if not gives_way:
            self._waiting.pop(place, None)
        elif place in self._places:
            self._waiting.setdefault(place)
            self._has_room.set()

    def forget(self, place: ConnectionPlace) -> None:
        self._places.discard(place)
        self._has_room.set()
        self._waiting.pop(place, None)

    def close(self) -> None:
        """Accept no more, and give up handshakes. Requests that are being answered go on."""
        self._accepting.cancel()
        for place in [place for place in self._places if place.transport is None]:
            place.abort()

    async def wait_closed(self) -> None:
        """As a server of asyncio: there is nothing left to wait for."""


def bound(host: str, port: int) -> socket.socket:
    """A listener; OSError at once if the port is not available."""
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(cast("tuple[str, int]", place))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener
