"""The connections of an HTTP server: how many there may be, and how long each may take.

The life of one:

1. Accepted. If all places are taken, the connection that has waited longest for a request gives its place to it: one
   that opens a thousand and sends nothing pushes out its own, and a probe is answered all the same. If every one is
   being answered, the new one is closed.
2. It waits: the TLS handshake and the header of a request, slow or not, have 5 s together.
3. It is answered: 60 s until all of the answer has been taken. The header is bounded by h11 (16 KiB); a body is not
   read ahead of by more than 64 KiB.
4. It waits for the next request, as in 2, or is closed.

Every place is one descriptor, and HTTP has its own share of them: at most an eighth of those of the process, so that
RPC cannot run short because of it.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from holdfast.transport.certificate_files import ContextSource
from holdfast.transport.tls import names_in

MOST_CONNECTIONS = 128
SHARE_OF_DESCRIPTORS = 8
WAIT_SECONDS = 5.0
ANSWER_WITHIN_SECONDS = 60.0
PAUSE_SECONDS = 0.1
"""After an accept that failed: the process, or the machine, has no descriptor left."""


def places() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if limit < 0 else max(4, min(MOST_CONNECTIONS, limit // SHARE_OF_DESCRIPTORS))


class ConnectionPlace:
    """One accepted connection: whether it waits or is answered, and until when."""

    def __init__(self, acceptor: Acceptor) -> None:
        self._acceptor = acceptor
        self._patience: asyncio.TimerHandle | None = None
        self.opening: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None
        """None until the handshake is over."""
        self.is_answered = False

    def now(self, is_answered: bool) -> None:
        """It waits for a request, or one is being answered, from now on."""
        if self._patience is not None:
            if is_answered == self.is_answered:
                return
            self._patience.cancel()
        self.is_answered = is_answered
        seconds = ANSWER_WITHIN_SECONDS if is_answered else WAIT_SECONDS
        self._patience = asyncio.get_running_loop().call_later(seconds, self.abort)
        self._acceptor.note(self)

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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._place.transport = transport
        encrypted = transport.get_extra_info("ssl_object")
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
        super().on_response_complete()
        self._tell()

    def _tell(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request.
        self._place.now(is_answered=cycle is not None and not cycle.response_complete)


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
        """Those that wait for a request, the longest first."""
        self._accepting = asyncio.create_task(self._accept_all(), name="http accept")
        self._on_failure = on_failure
        self._accepting.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._on_failure()

    async def _accept_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                stream, _ = await loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            self._admit(stream)
            # A connection that gave its place up is closed in the next turn: before the next is accepted.
            await asyncio.sleep(0)

    def _admit(self, stream: socket.socket) -> None:
        if len(self._places) >= self._most:
            if not self._waiting:
                stream.close()
                return
            next(iter(self._waiting)).abort()
        place = ConnectionPlace(self)
        self._places.add(place)
        place.now(is_answered=False)
        place.opening = asyncio.create_task(self._open(place, stream), name="http open")

    async def _open(self, place: ConnectionPlace, stream: socket.socket) -> None:
        more: dict[str, Any] = {} if self._tls is None else {"ssl": self._tls(), "ssl_handshake_timeout": WAIT_SECONDS}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self._connect(place), stream, **more)
        except (OSError, asyncio.CancelledError):  # A handshake that failed, or took too long.
            stream.close()
            place.leave()

    def note(self, place: ConnectionPlace) -> None:
        self._waiting.pop(place, None)
        if not place.is_answered:
            self._waiting[place] = None

    def forget(self, place: ConnectionPlace) -> None:
        self._places.discard(place)
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
