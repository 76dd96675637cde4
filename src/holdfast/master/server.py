"""The RPC server: frames in, requests to the engine, replies out.

One connection is one protocol object. The replies to one read leave in one write. The server stops reading from a peer
that does not read its replies (I17); a peer that does not greet in time, or breaks the protocol, gets an error and is
closed.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import structlog

from holdfast.core.primary.decision import Parked
from holdfast.entropy import fresh_bytes
from holdfast.errors import (
    BadRequest,
    HoldfastError,
    LogFullInDoubt,
    NotLeader,
    Stopping,
    TryAgain,
    Unreachable,
)
from holdfast.identity.identities import EVERYBODY, Identities, Identity
from holdfast.identity.roles import Role
from holdfast.instant import Instant, calendar_seconds, now_ms
from holdfast.master.access.permissions import (
    CHECKED,
    check_force,
    decode_hello,
    decoder_for,
    is_other_than_hello,
    why_not_decoded,
)
from holdfast.master.access.session_owners import check_owner
from holdfast.master.busy_poll import BusyPoll
from holdfast.master.engine.engine import Engine
from holdfast.master.engine.guard import UpkeepFailure
from holdfast.master.engine.waiting_room import Answer, Waiting
from holdfast.master.key_table import KeyTablePublisher, may_show
from holdfast.master.tenancy import Tenancies, Tenancy
from holdfast.messages.of_sessions import GiveSign, KeepAlive
from holdfast.messages.requests import Done, Failed, GrantRanges, Hello, Welcome
from holdfast.messages.shapes import Message
from holdfast.replication.pending_log import PendingReply
from holdfast.supervisor import Supervisor
from holdfast.transport.host import this_host
from holdfast.transport.peer_user import is_own_user
from holdfast.wire.codec import decode_request, encode, failed
from holdfast.wire.frames import DEFAULT_TIMEOUT_MS, GREETING_SECONDS, PREAMBLE, FrameBuffer, check_preamble, frame

MAX_CONNECTIONS = 20_000
TICK_SECONDS = 0.05
LOG_AGAIN_MS = 30_000
LONG_BYTES = 4096
"""A request larger than this takes some hundred microseconds, so one turn of the loop handles only one of them."""
log = structlog.get_logger("holdfast.master")


class RpcServer:
    """The state that connections share: the engine of a primary, the connected peers, and a count per verb."""

    def __init__(
        self,
        name: str,
        token: str,
        busy_poll_us: int = 0,
        shows: bool = False,
        supervisor: Supervisor | None = None,
        identities: Identities | None = None,
    ) -> None:
        self.supervisor = supervisor if supervisor is not None else Supervisor()
        """Supervises all background work of this master."""
        self.engine: Engine | None = None
        self.leader_hint = ""
        self.name = name
        self.token = token
        """What this master shows to the others."""
        if identities is None:
            identities = Identities.of_one_token(token) if token else Identities.of_everybody()
        self.identities = identities
        """Whom connections can belong to."""
        self.requests: Counter[type[Message]] = Counter()
        self.views: dict[type[Message], Callable[[Any, Answer], None]] = {
            GiveSign: lambda request, answer: answer(Done())
        }
        """Verbs about the process rather than the catalogue; every role answers them."""
        self.connections: dict[int, Connection] = {}
        self.controls: dict[int, Connection] = {}
        self._tenancies = Tenancies()
        self.stopping = False
        self.tick_seconds = TICK_SECONDS
        self.on_reply_sent: Callable[[], None] = lambda: None
        """Called for every reply that is sent."""
        self._failures_logged: dict[str, tuple[int, Instant]] = {}
        """Kind -> (failures of upkeep since its last log line, when the next line may be written)."""
        self._stays_awake = busy_poll_us / 1e6
        self._next = 1
        self._listeners: list[asyncio.Server] = []
        self._host = this_host()
        self._local = f"holdfast-{fresh_bytes(12).hex()}"
        self._ticking: asyncio.Task[None] | None = None
        self._has_parted = False
        """It has closed its clients' connections, because its term was over at the last tick."""
        self._shows = shows and may_show()
        self._showing: KeyTablePublisher | None = None
        """Publishes the key table to clients of this machine."""

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        self.on_reply_sent = BusyPoll(loop, self._stays_awake, self._waits_for_log).stay_awake
        listener = await loop.create_server(lambda: Connection(self), host, port, backlog=1024, ssl=tls)
        self._listeners = [listener]
        if tls is not None and tls.verify_mode == ssl.CERT_REQUIRED:
            self._local = ""  # A Unix socket would ask no client for a certificate.
        else:
            path = "\0" + self._local
            self._listeners.append(await loop.create_unix_server(lambda: Connection(self), path, backlog=1024))
            if self._shows:
                self._showing = self._begin_to_show()
        self._ticking = asyncio.create_task(self.supervisor.keep("upkeep", self._tick))
        address = listener.sockets[0].getsockname()
        return address[0], address[1]

    def _begin_to_show(self) -> KeyTablePublisher | None:
        try:
            return KeyTablePublisher(self.supervisor, any_user=not self.identities.open_to_all)
        except OSError as error:
            log.warning("keys cannot be shown in memory here; clients ask for them", why=str(error))
            return None

    def _waits_for_log(self) -> bool:
        # A thread that writes a batch to the disk needs the GIL, which busy polling would keep from it.
        return self.engine is not None and self.engine.waits_for_log

    def changed(self) -> None:
        """Have the key table updated: requests were decided."""
        if self._showing is not None:
            self._showing.changed()

    def lead(self, engine: Engine) -> None:
        """Decide requests here from now on."""
        self.engine = engine
        self.settle_tenancies(engine)
        if self._showing is not None:
            self._showing.lead(engine)

    def settle_tenancies(self, engine: Engine) -> None:
        """Give every connection the view of its tenant."""
        for refused in self._tenancies.settle_all(self._greeted(), engine, now_ms()):
            refused.transport.close()

    def _greeted(self) -> list[Connection]:
        return [connection for connection in self.connections.values() if connection.is_greeted]

    def follow(self, why: str) -> None:
        """Decide no requests from now on. Clients that wait for a reply ask the next primary: changes that are not
        durable here were acknowledged to nobody, and the closed connection means that their fate is unknown."""
        engine, self.engine = self.engine, None
        if self._showing is not None:
            self._showing.follow()
        if engine is None:
            return
        engine.refuse_parked(self.not_leading(why))
        for connection in list(self.connections.values()):
            if not connection.looks:
                connection.transport.close()

    def not_leading(self, why: str = "this master is not the primary") -> NotLeader:
        error = NotLeader(f"{why}; nothing was changed. Ask {self.leader_hint or 'the primary'}")
        error.hint = self.leader_hint
        return error

    def upkeep_failed(self, failure: UpkeepFailure) -> None:
        """Log a defect in upkeep: each kind at once, and while it lasts every 30 s with a count (I17)."""
        count, due = self._failures_logged.get(failure.kind, (0, 0))
        now = now_ms()
        if now >= due:
            log.error(
                "a step of upkeep failed; it is tried again, and the others went on",
                kind=failure.kind,
                subject=failure.subject,
                since_last=count + 1,
                exc_info=failure.error,
            )
            count, due = -1, now + LOG_AGAIN_MS
        self._failures_logged[failure.kind] = count + 1, due

    async def _tick(self) -> None:
        while True:
            again = False
            try:
                again = self.engine.tick(now_ms()) if self.engine is not None else False
            except Exception as error:  # noqa: BLE001 - It is logged there.
                self.upkeep_failed(UpkeepFailure("tick", "whole", error))
            if self.engine is not None:
                self.engine.refuse_late(now_ms())
                self._part_from_clients(self.engine, now_ms())
            if self._showing is not None:
                self._showing.tick(now_ms())
            # Requests get their turn between two steps of an eviction.
            await asyncio.sleep(0.001 if again else self.tick_seconds)

    def _part_from_clients(self, engine: Engine, now: Instant) -> None:
        """Close the connections of clients once this master may no longer answer: another may lead already, and
        requests here would wait until an unreachable log is back. The term may yet be renewed, so nothing else ends:
        nodes stay connected, and get their commands later (I11)."""
        is_over = now >= engine.shell.clients_wait_until()
        if is_over and not self._has_parted:
            for connection in list(self.controls.values()):
                if not engine.primary.sessions.is_followed_over(connection.number):
                    connection.transport.close()
        self._has_parted = is_over

    async def stop(self) -> None:
        """Refuse waiting requests, let the last replies leave, and close."""
        self.stopping = True
        for listener in self._listeners:
            listener.close()
        if self._ticking is not None:
            self._ticking.cancel()
        if self.engine is not None:
            self.engine.refuse_parked(Stopping("the master is stopping; nothing was stored. Try again"))
        for connection in list(self.connections.values()):
            connection.transport.close()
        if self._showing is not None:
            self._showing.close()
            self._showing = None
        for _ in range(100):
            if not self.connections:
                break
            await asyncio.sleep(0.01)
        for connection in list(self.connections.values()):
            connection.transport.abort()

    def takes_user(self, stream: socket.socket) -> bool:
        """May the process behind this connection greet? On the Unix socket, processes of other users need a token."""
        return stream.family != socket.AF_UNIX or not self.identities.open_to_all or is_own_user(stream)

    def admit(self, connection: Connection) -> int:
        number = self._next
        self._next += 1
        self.connections[number] = connection
        return number

    def forget(self, connection: Connection) -> None:
        self.connections.pop(connection.number, None)
        if self.controls.get(connection.client) is connection:
            del self.controls[connection.client]
        if self.engine is not None:
            self.engine.connection_lost(connection.number)
            self._tenancies.leave(connection, self.engine)

    def show_tenant(self, connection: Connection, welcome: Welcome) -> None:
        """Give a connection that has greeted the view of its tenant, and tell the client."""
        if self.engine is None:
            return
        self._tenancies.settle(connection, self._greeted, self.engine, now_ms())
        if connection.tenancy is not None:
            welcome.namespace = connection.tenancy.prefix
        if not connection.identity.shared_memory:
            welcome.shown, welcome.shown_secret = "", b""

    def greet(self, connection: Connection, hello: Hello) -> Welcome:
        connection.become(self.identities.of_token(hello.token, calendar_seconds()))
        if self.engine is None:
            if not hello.looks:
                raise self.not_leading()
            return Welcome(0, 0, self.name, 0, 0, 0, 0, 0)
        if hello.control:
            # Requests of an older connection must not be handled after those of this one.
            older = self.controls.pop(hello.client, None)
            if older is not None:
                older.transport.abort()
                self.engine.connection_lost(older.number)
            self.controls[hello.client] = connection
        state, rules, showing = self.engine.state, self.engine.primary.rules, self._showing
        return Welcome(
            log_id=state.log_id,
            epoch=state.epoch,
            name=self.name,
            lease_ttl_ms=rules.lease_ttl_ms,
            grant_timeout_ms=rules.grant_timeout_ms,
            write_window_bytes=rules.write_window_bytes,
            shared_grant_bytes=rules.shared_grant_bytes,
            topology=state.topology,
            host=self._host,
            local=self._local,
            shown=showing.name if showing is not None else "",
            shown_secret=showing.secret if showing is not None else b"",
        )


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
        self.number = 0
        self.client = 0
        self.looks = False
        self.tenancy: Tenancy | None = None
        """Its view of the keys. None: it sees them as they are, because there are no tenants."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        stream = transport.get_extra_info("socket")
        _notice_silence(stream)
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

    def _refuse(self, error: HoldfastError) -> None:
        """Send the error, and close. Request id 0 belongs to no request: the peer takes it as an error of the
        connection."""
        self.transport.write(frame(0, 0, encode(failed(error))))
        self.transport.close()
