"""One connection to a master: frames in, requests to the engine, replies out.

A connection is one protocol object. The replies to one read leave in one write. The server stops reading from a peer
that does not read its replies (I17); a peer that does not greet in time, or breaks the protocol, gets an error and is
closed.
"""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import TYPE_CHECKING, cast

import structlog

from holdfast.core.primary.decision import Parked
from holdfast.errors import BadRequest, HoldfastError, LogFullInDoubt, NotAuthorized, Stopping, TryAgain, Unreachable
from holdfast.identity.identities import EVERYBODY, Identity
from holdfast.identity.roles import Role
from holdfast.instant import Instant, now_ms
from holdfast.master.access.permissions import (
    CHECKED,
    check_force,
    decode_hello,
    decoder_for,
    is_other_than_hello,
    why_not_decoded,
)
from holdfast.master.access.session_owners import check_owner
from holdfast.master.engine.waiting_room import Waiting
from holdfast.master.tenancy import Tenancy
from holdfast.messages.of_sessions import KeepAlive
from holdfast.messages.requests import Failed, GrantRanges, Hello
from holdfast.messages.shapes import Message
from holdfast.replication.pending_log import PendingReply
from holdfast.transport.tls import names_in
from holdfast.wire.codec import decode_request, encode, failed
from holdfast.wire.frames import DEFAULT_TIMEOUT_MS, GREETING_SECONDS, PREAMBLE, FrameBuffer, check_preamble, frame

if TYPE_CHECKING:
    from holdfast.master.server import RpcServer

MAX_CONNECTIONS = 20_000
LONG_BYTES = 4096
"""A request larger than this takes some hundred microseconds, so one turn of the loop handles only one of them."""
log = structlog.get_logger("holdfast.master")


def _notice_silence(stream: socket.socket) -> None:
    """Turn on TCP keepalive, so that the kernel notices a peer that vanished."""
    if stream.family == socket.AF_UNIX:
        return
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


class DurableReply(PendingReply):
    """Sent when its record is durable; if the log is still full at its deadline, an error is sent instead."""

    __slots__ = ("_connection", "_reply", "_request_id")

    def __init__(self, connection: Connection, request_id: int, reply: Message, deadline: Instant) -> None:
        super().__init__(deadline)
        self._connection = connection
        self._request_id = request_id
        self._reply = reply

    def __call__(self) -> None:
        self._connection.send(self._request_id, self._reply)

    def refuse(self, why: str) -> None:
        error = LogFullInDoubt(f"the log is full: {why}. The change was decided and may count once there is room")
        self._connection.send(self._request_id, failed(error))


class Connection(asyncio.BufferedProtocol):
    transport: asyncio.Transport

    def __init__(self, server: RpcServer) -> None:
        self._server = server
        self._frames = FrameBuffer()
        self._out: list[bytes] = []
        self._reading = False
        self._goes_on = False
        """Frames are buffered that the next turn of the loop will handle."""
        self._opened = False
        self.is_greeted = False
        self._decode = decode_hello
        self._is_bounded = False
        """It belongs to one of several identities, so that more than its role counts."""
        self.identity: Identity = EVERYBODY
        """Valid once it has greeted."""
        self.certificate_names: list[str] = []
        self.number = 0
        self.client = 0
        self.looks = False
        self.tenancy: Tenancy | None = None
        """Its view of the keys. None: it sees them as they are, because there are no tenants."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        stream = transport.get_extra_info("socket")
        _notice_silence(stream)
        self.certificate_names = names_in(transport.get_extra_info("peercert"))
        if len(self._server.connections) >= MAX_CONNECTIONS:
            self._refuse(TryAgain(f"{MAX_CONNECTIONS:,} connections are open, the most there may be; try again later"))
            return
        if not self._server.takes_user(stream):
            # An error after which a client keeps its TCP connection, where it is served as from another machine.
            self._refuse(Unreachable("this socket is for processes of the master's own user; use TCP"))
            return
        self.number = self._server.admit(self)
        self._patience = asyncio.get_running_loop().call_later(GREETING_SECONDS, self._lose_patience)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.number:
            self._patience.cancel()
            self._server.forget(self)

    def _lose_patience(self) -> None:
        if not self.is_greeted:
            self._refuse(BadRequest("no greeting came in time; the connection is closed"))

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.space()

    def buffer_updated(self, nbytes: int) -> None:
        frames = self._frames
        if self.transport.is_closing():
            frames.filled(nbytes)
            return
        self._reading = True
        try:
            if self.is_greeted:
                received = frames.sole_frame(nbytes)
                if received is not None:
                    self._receive(*received, now_ms())
                    return
            else:
                frames.filled(nbytes)
                if not (self._opened or self._open()):
                    return
            if not self._goes_on:
                self._receive_held()
        except HoldfastError as error:  # The stream is broken: nothing after this point can be trusted.
            self._refuse(error)
        finally:
            self._send_out()

    def _receive_held(self) -> None:
        """Handle whole frames, in order. Frames after a long request wait for the next turn: its reply leaves before
        that, so that the client can work on it meanwhile, and other connections get their turn."""
        now = now_ms()
        while (received := self._frames.next_frame()) is not None:
            self._receive(*received, now)
            if len(received[2]) >= LONG_BYTES and len(self._frames):
                self._goes_on = True
                asyncio.get_running_loop().call_soon(self._go_on)
                return

    def _go_on(self) -> None:
        self._goes_on = False
        if self.transport.is_closing():
            return
        self._reading = True
        try:
            self._receive_held()
        except HoldfastError as error:
            self._refuse(error)
        finally:
            self._send_out()

    def _send_out(self) -> None:
        self._reading = False
        out = self._out
        if out:
            self._server.on_reply_sent()
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
            out.clear()
        self._server.changed()

    def _open(self) -> bool:
        given = self._frames.take(len(PREAMBLE))
        if given is None:
            return False
        check_preamble(given)
        self._opened = True
        return True

    def _receive(self, request_id: int, timeout_ms: int, payload: memoryview, now: Instant) -> None:
        server = self._server
        try:
            request = self._decode(payload)
            if self._is_bounded and type(request) in CHECKED:
                self._check(request)
        except HoldfastError as error:
            self._refuse_request(request_id, payload, error)
            return
        kind = type(request)
        server.requests[kind] += 1
        if not self.is_greeted:
            self._greet(request_id, request)
        elif kind in server.views:
            server.views[kind](request, partial(self.send, request_id))
        elif server.engine is None:
            self.send(request_id, failed(server.not_leading()))
        elif server.stopping:
            self.send(request_id, failed(Stopping("the master is stopping; nothing was changed. Try again")))
        else:
            try:
                if self.tenancy is not None:
                    self.tenancy.inward(request, server.engine.state.catalogue)
                reply, after = server.engine.handle(request, self.client, self.number, now)
                if isinstance(reply, Parked):
                    self._park(request_id, timeout_ms, request, now)
                elif after:
                    deadline = now + (timeout_ms or DEFAULT_TIMEOUT_MS)
                    server.engine.when_durable(after, DurableReply(self, request_id, reply, deadline))
                else:
                    self.send(request_id, reply)
            except HoldfastError as error:
                self.send(request_id, failed(error))
            except Exception as error:  # A defect must not take the master down; it is reported to both sides.
                log.exception("a request failed unexpectedly", verb=kind.__name__)
                self.send(request_id, Failed("error", f"internal error: {type(error).__name__}: {error}"))

    def become(self, identity: Identity) -> None:
        """It belongs to this identity, and may send what that may send."""
        self.identity = identity
        self._is_bounded = not self._server.identities.gives_all_roles
        self._decode = decoder_for(identity.roles) if self._is_bounded else decode_request

    def _check(self, request: Message) -> None:
        """More than its role: what is removed with force, and for which node it speaks."""
        check_force(request, self.identity)
        if self._server.engine is not None and request.needs is Role.NODE:
            sessions = self._server.engine.primary.sessions
            check_owner(sessions, request, self.identity.name)
            sessions.speakers[self.number] = self.identity.name

    def _refuse_request(self, request_id: int, payload: memoryview, error: HoldfastError) -> None:
        """Answer a request that is not even decided. The connection goes on, unless it did not begin with Hello."""
        if not self.is_greeted and is_other_than_hello(payload):
            raise BadRequest("the first request must be Hello; the connection is closed")
        if self._is_bounded and isinstance(error, BadRequest):
            error = why_not_decoded(payload, self.identity, error)
        if self._server.engine is not None:
            self._server.engine.failures[error.code] += 1
        self.send(request_id, failed(error))

    def _park(self, request_id: int, timeout_ms: int, request: Message, now: Instant) -> None:
        assert isinstance(request, GrantRanges | KeepAlive), "only a grant waits for room, a keepalive for its time"
        deadline = now + (timeout_ms or DEFAULT_TIMEOUT_MS)
        waiting = Waiting(request, self.client, self.number, deadline, lambda reply: self.send(request_id, reply))
        assert self._server.engine is not None, "it has just parked this"
        self._server.engine.park(waiting, now)

    def _greet(self, request_id: int, request: Message) -> None:
        if not isinstance(request, Hello):
            raise BadRequest("the first request must be Hello; the connection is closed")
        welcome = self._server.greet(self, request)
        self.client = request.client
        self.looks = request.looks
        self.is_greeted = True
        self._server.show_tenant(self, welcome)
        self.send(request_id, welcome)

    def send(self, request_id: int, reply: Message) -> None:
        if self.tenancy is not None:
            self.tenancy.outward(reply)
        data = frame(request_id, 0, encode(reply))
        if self._reading:
            self._out.append(data)
        elif not self.transport.is_closing():
            self._server.on_reply_sent()
            self.transport.write(data)

    def refuse_withdrawn(self) -> None:
        self._refuse(
            NotAuthorized(
                f"the identity {self.identity.name!r} was changed, withdrawn or has expired; the connection is closed. "
                "Connect again, with a token that is listed"
            )
        )

    def _refuse(self, error: HoldfastError) -> None:
        """Send the error, and close. Request id 0 belongs to no request: the peer takes it as an error of the
        connection."""
        self.transport.write(frame(0, 0, encode(failed(error))))
        self.transport.close()
