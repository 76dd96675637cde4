"""One connection to a master: frames in, requests to the engine, replies out.

A connection is one protocol object. The replies to one read leave in one write. A peer that does not greet in time, or
breaks the protocol, gets an error and is closed. While a connection may not go on it is not read, and nothing that came
is decided (I17): its peer does not read replies, too many of its requests are unanswered, it waits for its turn behind
others who ask much, or there is no room for its frame (ADR 51).
"""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import structlog

from holdfast import __version__
from holdfast.core.primary.decision import NextStep, Parked, Unfinished, asked_for
from holdfast.errors import (
    BadRequest,
    ClientRevoked,
    HoldfastError,
    LogFullInDoubt,
    NotAuthorized,
    Stopping,
    TryAgain,
    Unreachable,
)
from holdfast.identity.identities import EVERYBODY, Identity
from holdfast.identity.roles import Role
from holdfast.instant import Instant, now_ms, now_ns, now_seconds
from holdfast.master.access.permissions import (
    CHECKED,
    check_force,
    confine,
    decode_hello,
    decoder_for,
    is_other_than_hello,
    limit_mapping,
    why_not_decoded,
    withhold,
)
from holdfast.master.access.session_owners import check_owner
from holdfast.master.engine.waiting_room import Waiting
from holdfast.master.tenancy import REPLIES_WITHOUT_KEYS, Tenancy
from holdfast.master.traffic.turns import TURN_SECONDS
from holdfast.messages.of_masters import GetOverview, ListEvents
from holdfast.messages.of_sessions import KeepAlive
from holdfast.messages.requests import (
    Explain,
    Failed,
    GetStatus,
    GrantRanges,
    Hello,
    ListKeys,
    ListNodes,
    ListSegments,
    RemoveMatching,
    Stat,
)
from holdfast.messages.shapes import Message
from holdfast.replication.log_writer import PendingReply
from holdfast.transport.tls import names_in
from holdfast.wire.codec import (
    DEFAULT_TIMEOUT_MS,
    GREETING_BYTES,
    GREETING_SECONDS,
    MAX_FRAME_BYTES,
    FrameBuffer,
    decode_request,
    encode,
    failed,
    frame,
)

if TYPE_CHECKING:
    from holdfast.master.server import RpcServer

LONG_BYTES = 4096
"""A request larger than this takes some hundred microseconds, so one turn of the loop handles only one of them."""
SHORT_REQUESTS = 16
"""Short requests between two looks at the clock: they take as long as one turn may."""
COSTLY = frozenset(
    {RemoveMatching, ListKeys, Stat, Explain, ListSegments, GetStatus, ListNodes, GetOverview, ListEvents}
)
"""Short requests that take as long as a long one. They wait for their turn, one at a time."""
MAX_UNANSWERED = 4_096
"""Requests of one connection whose replies wait for the log or for room; it is not read beyond."""

NS_PER_MS = 1_000_000
ONE_REQUEST = 1 << 48
"""In `Connection.asked`, which counts requests and their bytes in one number: an addition costs under 0.1 us."""

# Reasons why a connection may not go on.
UNGREETED = 1
"""It has not said who it is. It is read, but no request is decided."""
UNREAD = 2
"""Its peer does not read replies."""
QUEUED = 4
"""It waits for its turn."""
CROWDED = 8
"""There is no room for the frame that it receives."""
UNANSWERED = 16
"""Too many of its requests are unanswered."""
REVOKED = "the operator has revoked this client; nothing more is taken from it. Open a new one"
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


def _address_of(stream: socket.socket, transport: asyncio.BaseTransport) -> str:
    """Where the peer is: its IP address, or this machine for a Unix socket."""
    if stream.family == socket.AF_UNIX:
        return "this machine"
    name = transport.get_extra_info("peername")
    return str(name[0]) if name else "an unknown address"


class RequestOrigin(NamedTuple):
    """Where a request came from whose reply comes later."""

    request_id: int
    verb: type[Message]
    began_ns: int
    """When its bytes arrived."""


class DurableReply(PendingReply):
    """Sent when its record is durable; if the log is still full at its deadline, an error is sent instead."""

    __slots__ = ("_connection", "_origin", "_reply")

    def __init__(self, connection: Connection, origin: RequestOrigin, reply: Message, deadline: Instant) -> None:
        super().__init__(deadline)
        self._connection = connection
        self._origin = origin
        self._reply = reply

    def __call__(self) -> None:
        self._connection.send_late(self._origin, self._reply)

    def refuse(self, why: str) -> None:
        error = LogFullInDoubt(f"the log is full: {why}. The change was decided and may count once there is room")
        self._connection.send_late(self._origin, failed(error))


class Connection(asyncio.BufferedProtocol):
    transport: asyncio.Transport

    def __init__(self, server: RpcServer) -> None:
        self._server = server
        self._frames = FrameBuffer(GREETING_BYTES, server.traffic.scratch)
        self._out: list[bytes] = []
        self._reading = False
        self._why_not = UNGREETED
        """Reasons why it may not go on, one bit each."""
        self._kept = 0
        """Bytes of its own for what has come and is not handled yet."""
        self._next: tuple[int, int, Message | NextStep, int] | None = None
        """A costly request, or the next step of one, which comes before all that is received: (id, timeout, it, when it
        arrived)."""
        self._unanswered = 0
        self.asked = 0
        """Requests times `ONE_REQUEST`, and their bytes."""
        self.credit = 0.0
        self._is_on_trial = False
        self._opened = False
        self.is_greeted = False
        self._decode = decode_hello
        self._is_bounded = False
        """It belongs to one of several identities, so that more than its role counts."""
        self.identity: Identity = EVERYBODY
        """Valid once it has greeted."""
        self.certificate_names: list[str] = []
        self.number = 0
        self.hello: Hello | None = None
        """Its greeting, once it was let in."""
        self.client = 0
        """The number that its key stands for; 0 while nobody leads here."""
        self.looks = False
        self.since = now_ms()
        self.tenancy: Tenancy | None = None
        """Its view of the keys. None: it sees them as they are, because there are no tenants."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        stream = transport.get_extra_info("socket")
        _notice_silence(stream)
        self.certificate_names = names_in(transport.get_extra_info("peercert"))
        if not self._server.takes_user(stream):
            # An error after which a client keeps its TCP connection, where it is served as from another machine.
            self._refuse(Unreachable("this socket is for processes of the master's own user; use TCP"))
            return
        if self.number:
            return  # With TLS it has had its place since before the handshake.
        try:
            self.arrive(_address_of(stream, transport))
        except TryAgain as error:
            self._refuse(error)

    def arrive(self, address: str) -> None:
        """Take a place among those that have not greeted, for 5 s at most; or raise `TryAgain`."""
        self.number = self._server.admit(self, address)
        self._patience = asyncio.get_running_loop().call_later(GREETING_SECONDS, self._lose_patience)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.number:
            self._patience.cancel()
            self._server.forget(self)

    def _lose_patience(self) -> None:
        if not self.is_greeted:
            self._refuse(BadRequest("no greeting came in time; the connection is closed"))
        elif self._is_on_trial:
            self.displace()

    def displace(self) -> None:
        """Close it, because others need its place more."""
        self._refuse(TryAgain("too many connections are open, and this one has not shown that it needs to be"))

    def be_on_trial(self) -> None:
        """It may send only what nodes, masters and operators send, and stays if it does so in time."""
        self._is_on_trial = True
        decode = self._decode

        def decode_on_trial(payload: bytes | memoryview) -> Message:
            request = decode(payload)
            if self._server.traffic.admission.is_proven(self, request):
                self._is_on_trial = False
                self._decode = decode
            return request

        self._decode = decode_on_trial

    # Reasons not to go on.

    def _halt(self, reason: int) -> None:
        if not self._why_not & ~UNGREETED and not self.transport.is_closing():
            self.transport.pause_reading()
        self._why_not |= reason

    def _unhalt(self, reason: int) -> None:
        """This reason is gone. If it was the last one, go on: with what has come, in its turn, or with reading."""
        if not self._why_not & reason:
            return
        self._why_not &= ~reason
        if self._why_not & ~UNGREETED or self.transport.is_closing():
            return
        if self._next is not None or len(self._frames):
            self._why_not |= QUEUED
            self._server.traffic.turns.enter(self)
        else:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self._halt(UNREAD)
        self._server.traffic.backlog.wait_for_reader(self, now_ms())

    def resume_writing(self) -> None:
        self._server.traffic.backlog.is_read(self)
        self._unhalt(UNREAD)

    def waiting_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def go_on_receiving(self) -> None:
        self._unhalt(CROWDED)

    # Receiving.

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.space()

    def buffer_updated(self, nbytes: int) -> None:
        frames = self._frames
        if self.transport.is_closing():
            return
        self._reading = True
        try:
            if not self._why_not:
                received = frames.sole_frame(nbytes)
                if received is not None:
                    if len(received[2]) < LONG_BYTES or self._server.traffic.turns.is_idle:
                        self._receive(*received, now_ns())
                        if self._next is not None:
                            self._queue()
                        return
                    frames.filled(nbytes)
            else:
                frames.filled(nbytes)
                if not (self._opened or self._open()):
                    self._keep()
                    return
            self._receive_held()
        except HoldfastError as error:  # The stream is broken: nothing after this point can be trusted.
            self._refuse(error)
        finally:
            self._send_out()

    def _receive_held(self) -> None:
        """Handle what one turn allows, if nobody waits for a turn; the rest waits for the next one."""
        if not self._why_not & ~UNGREETED:
            waits = self.is_greeted and not self._server.traffic.turns.is_idle
            if waits or self._step():
                self._queue()
        self._keep()

    def _queue(self) -> None:
        self._halt(QUEUED)
        self._server.traffic.turns.enter(self)

    def _keep(self) -> None:
        kept = self._frames.keep()
        if kept != self._kept:
            self._kept = kept
            if not self._server.traffic.backlog.hold(self, kept, now_ms()):
                self._halt(CROWDED)

    def take_turn(self) -> bool:
        """Do one step of what waits here. True: more waits, and it may go on."""
        if self.transport.is_closing():
            return False
        wants_more = True
        if not self._why_not & ~(UNGREETED | QUEUED):
            self._reading = True
            try:
                wants_more = self._step()
                self._keep()
            except HoldfastError as error:
                self._refuse(error)
            finally:
                self._send_out()
            if wants_more and not self._why_not & ~(UNGREETED | QUEUED):
                return True
        # What keeps it back will have it queued again (`_unhalt`); otherwise the rest of a frame may come.
        self._why_not &= ~QUEUED
        if not self._why_not & ~UNGREETED and not self.transport.is_closing():
            self.transport.resume_reading()
        return False

    def give_up(self) -> None:
        self.transport.abort()

    def _step(self) -> bool:
        """Handle whole frames, in order, as many as one turn allows: one long or costly request, or short ones for as
        long as a turn may take. Its reply leaves before the next turn, so that the client can work on it meanwhile.
        True: more waits."""
        began = now_ns()
        waiting, self._next = self._next, None
        if waiting is not None:
            request_id, timeout_ms, request, arrived = waiting
            self._decide(request_id, timeout_ms, request, began // NS_PER_MS, type(asked_for(request)), arrived)
            return self._has_more()
        until = now_seconds() + TURN_SECONDS
        count = 0
        while (received := self._frames.next_frame()) is not None:
            self._receive(*received, began)
            count += 1
            if (
                len(received[2]) >= LONG_BYTES
                or self._is_costly_next()
                or self._why_not & ~(UNGREETED | QUEUED)
                or (not count % SHORT_REQUESTS and now_seconds() >= until)
            ):
                return self._has_more()
        return False

    def _is_costly_next(self) -> bool:
        return self._next is not None

    def _has_more(self) -> bool:
        return self._next is not None or len(self._frames) > 0

    def _send_out(self) -> None:
        self._reading = False
        out = self._out
        if out:
            self._server.on_reply_sent()
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
            out.clear()
        self._server.changed()

    def _open(self) -> bool:
        self._opened = self._frames.take_preamble()
        return self._opened

    def _receive(self, request_id: int, timeout_ms: int, payload: memoryview, began_ns: int) -> None:
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
        self.asked += ONE_REQUEST + len(payload)
        if not self.is_greeted:
            self._greet(request_id, request)
        elif kind in COSTLY:
            self._next = request_id, timeout_ms, request, began_ns
        else:
            self._decide(request_id, timeout_ms, request, began_ns // NS_PER_MS, kind, began_ns)

    def _decide(
        self,
        request_id: int,
        timeout_ms: int,
        request: Message | NextStep,
        now: Instant,
        verb: type[Message],
        began_ns: int,
    ) -> None:
        """Have a request that arrived at `began_ns`, or the next step of one, decided; its reply is sent now or
        later."""
        server = self._server
        if verb in server.views:
            server.views[verb](request, partial(self._send_answer, RequestOrigin(request_id, verb, began_ns)))
        elif server.engine is None:
            self.send(request_id, failed(server.not_leading()))
        elif server.stopping:
            self.send(request_id, failed(Stopping("the master is stopping; nothing was changed. Try again")))
        else:
            try:
                tenancy = self.tenancy
                if tenancy is not None and verb is type(request):  # Later steps are of translated requests.
                    if tenancy.rate is not None:
                        tenancy.check_rate(request, now)
                    tenancy.inward(request, server.engine.primary.state.catalogue)
                reply, after = server.engine.handle(request, self.client, self.number, now)
                if isinstance(reply, Parked):
                    self._park(RequestOrigin(request_id, verb, began_ns), timeout_ms, request, now)
                elif isinstance(reply, Unfinished):
                    self._next = request_id, timeout_ms, reply.step, began_ns
                elif after:
                    self._count_unanswered()
                    deadline = now + (timeout_ms or DEFAULT_TIMEOUT_MS)
                    origin = RequestOrigin(request_id, verb, began_ns)
                    server.engine.when_durable(after, DurableReply(self, origin, reply, deadline))
                else:
                    self.send(request_id, reply)
                    server.latencies.answered(verb, began_ns)
            except HoldfastError as error:
                self.send(request_id, failed(error))
            except Exception as error:  # A defect must not take the master down; it is reported to both sides.
                log.exception("a request failed unexpectedly", verb=verb.__name__)
                self.send(request_id, Failed("error", f"internal error: {type(error).__name__}: {error}"))

    def become(self, identity: Identity) -> None:
        """It belongs to this identity, and may send what that may send."""
        self.identity = identity
        self._is_bounded = not self._server.identities.gives_all_roles
        self._decode = decoder_for(identity.roles) if self._is_bounded else decode_request

    def _check(self, request: Message) -> None:
        """More than its role: what is removed with force, of whom it may know, and for which node it speaks."""
        check_force(request, self.identity)
        limit_mapping(request, self.identity)
        confine(request, self.identity)
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

    def _park(self, origin: RequestOrigin, timeout_ms: int, request: Message | NextStep, now: Instant) -> None:
        assert isinstance(request, GrantRanges | KeepAlive), "only a grant waits for room, a keepalive for its time"
        deadline = now + (timeout_ms or DEFAULT_TIMEOUT_MS)
        self._count_unanswered()
        waiting = Waiting(request, self.client, self.number, deadline, partial(self.send_late, origin))
        assert self._server.engine is not None, "it has just parked this"
        self._server.engine.park(waiting, now)

    def _greet(self, request_id: int, request: Message) -> None:
        if not isinstance(request, Hello):
            raise BadRequest("the first request must be Hello; the connection is closed")
        welcome = self._server.greet(self, request)
        welcome.protocol, welcome.version = self._frames.protocol, __version__
        self.looks = request.looks
        self.is_greeted = True
        self._why_not &= ~UNGREETED
        self._frames.limit = MAX_FRAME_BYTES
        self._server.show_tenant(self, welcome)
        self.send(request_id, welcome)

    def _count_unanswered(self) -> None:
        self._unanswered += 1
        if self._unanswered >= MAX_UNANSWERED:
            self._halt(UNANSWERED)

    def _send_answer(self, origin: RequestOrigin, reply: Message) -> None:
        """Send the answer of a view, at once or later."""
        if self._is_bounded:
            withhold(reply, self.identity)
        self.send(origin.request_id, reply)
        self._server.latencies.answered(origin.verb, origin.began_ns)

    def send_late(self, origin: RequestOrigin, reply: Message) -> None:
        """Send a reply that had to wait."""
        self._unanswered -= 1
        if self._unanswered < MAX_UNANSWERED:
            self._unhalt(UNANSWERED)
        self._send_answer(origin, reply)

    def send(self, request_id: int, reply: Message) -> None:
        if self.tenancy is not None and type(reply) not in REPLIES_WITHOUT_KEYS:
            self.tenancy.outward(reply)
        data = frame(request_id, 0, encode(reply))
        if self._reading:
            self._out.append(data)
        elif not self.transport.is_closing():
            self._server.on_reply_sent()
            self.transport.write(data)

    def refuse_revoked(self) -> None:
        self._refuse(ClientRevoked(REVOKED))

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
