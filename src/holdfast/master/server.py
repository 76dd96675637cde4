"""The RPC server: what its connections share, and who is connected."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any

import structlog

from holdfast.core.primary.decision import NextStep
from holdfast.entropy import fresh_bytes
from holdfast.errors import ClientRevoked, NotLeader, Stopping
from holdfast.identity.identities import Identities
from holdfast.instant import Instant, calendar_seconds, now_ms, now_ns
from holdfast.master.access.client_numbers import check_key, number_of
from holdfast.master.connection import REVOKED, Connection
from holdfast.master.engine.engine import Engine
from holdfast.master.engine.guard import UpkeepFailure
from holdfast.master.engine.waiting_room import Answer
from holdfast.master.key_table import KeyTablePublisher, may_show
from holdfast.master.tenancy import Tenancies
from holdfast.master.traffic.admission import Caps
from holdfast.master.traffic.handshakes import TlsListener, bound
from holdfast.master.traffic.latencies import Latencies
from holdfast.master.traffic.traffic import Traffic
from holdfast.messages.of_sessions import GiveSign
from holdfast.messages.requests import Done, Hello, Welcome
from holdfast.messages.shapes import Message
from holdfast.operations.durations import Durations
from holdfast.supervisor import Supervisor
from holdfast.transport.certificate_files import ContextSource
from holdfast.transport.host import this_host
from holdfast.transport.peer_user import is_own_user
from holdfast.transport.spin import BusyPoll

TICK_SECONDS = 0.05
BACKLOG = 1_024
"""Connections that the kernel keeps until they are accepted."""
LOG_AGAIN_MS = 30_000
log = structlog.get_logger("holdfast.master")


def _give_sign(request: Any, answer: Answer) -> None:
    answer(Done())


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
        caps: Caps | None = None,
    ) -> None:
        self.supervisor = supervisor if supervisor is not None else Supervisor()
        """Supervises all background work of this master."""
        self.engine: Engine | None = None
        self.leader_hint = ""
        self.name = name
        self.token = token
        """What this master shows to the others."""
        of_token = Identities.of_one_token(token) if token else Identities.of_everybody()
        self.identities = identities if identities is not None else of_token
        """Whom connections can belong to."""
        self.requests: Counter[type[Message]] = Counter()
        self.latencies = Latencies()
        self.loop_lag = Durations()
        """By how much the tick was late: so long does a request wait at most before the loop sees it."""
        self.views: dict[type[Message | NextStep], Callable[[Any, Answer], None]] = {GiveSign: _give_sign}
        """Verbs about the process rather than the catalogue; every role answers them."""
        self.connections: dict[int, Connection] = {}
        self.controls: dict[int, Connection] = {}
        self.traffic = Traffic(caps if caps is not None else Caps())
        self._tenancies = Tenancies()
        self.new_connection: Callable[[RpcServer], Connection] = Connection
        """Of another class where requests are traced (`traces.py`)."""
        self.stopping = False
        self.tick_seconds = TICK_SECONDS
        self.on_reply_sent: Callable[[], None] = lambda: None
        """Called for every reply that is sent."""
        self._failures_logged: dict[str, tuple[int, Instant]] = {}
        """Kind -> (failures of upkeep since its last log line, when the next line may be written)."""
        self._stays_awake = busy_poll_us / 1e6
        self._next = 1
        self._listeners: list[asyncio.Server | TlsListener] = []
        self._host = this_host()
        self._local = f"holdfast-{fresh_bytes(12).hex()}"
        self._ticking: asyncio.Task[None] | None = None
        self._has_parted = False
        """It has closed its clients' connections, because its term was over at the last tick."""
        self._shows = shows and may_show()
        self._showing: KeyTablePublisher | None = None
        """Publishes the key table to clients of this machine."""

    async def start(self, host: str, port: int, tls: ContextSource | None = None) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        self.on_reply_sent = BusyPoll(loop, self._stays_awake, self._waits_for_log).stay_awake
        listener: asyncio.Server | TlsListener
        if tls is None:
            listener = await loop.create_server(lambda: self.new_connection(self), host, port, backlog=BACKLOG)
        else:
            listener = TlsListener(bound(host, port, BACKLOG), tls, lambda: self.new_connection(self), self.supervisor)
        self._listeners = [listener]
        if tls is not None and tls().verify_mode == ssl.CERT_REQUIRED:
            self._local = ""  # A Unix socket would ask no client for a certificate.
        else:
            path = "\0" + self._local
            self._listeners.append(
                await loop.create_unix_server(lambda: self.new_connection(self), path, backlog=BACKLOG)
            )
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
        # A thread that writes a batch to the disk needs the GIL, which busy polling would keep from it. That matters
        # only if somebody waits for the batch.
        return self.engine is not None and self.engine.replies_wait

    def changed(self) -> None:
        """Have the key table updated: requests were decided."""
        if self._showing is not None:
            self._showing.changed()

    def lead(self, engine: Engine) -> None:
        """Decide requests here from now on."""
        self.engine = engine
        for connection in self._greeted():
            if connection.hello is not None:  # It greeted while nobody led here.
                connection.client = number_of(connection.hello, engine.state.secret)
                if connection.client in engine.state.revoked:
                    connection.refuse_revoked()
        self.settle_tenancies()
        if self._showing is not None:
            self._showing.lead(engine)

    def settle_tenancies(self) -> None:
        """Give every connection the view of its tenant."""
        if self.engine is None:
            return
        for refused in self._tenancies.settle_all(self._greeted(), self.engine, now_ms()):
            refused.transport.close()

    def part_from_withdrawn(self, now: float) -> list[str]:
        """Close the connections whose identity is not admitted any longer, or not as it was. Whose they were.
        `now` in seconds since 1970."""
        gone = [one for one in self._greeted() if not self.identities.still_admits(one.identity, now)]
        for connection in gone:
            connection.refuse_withdrawn()
        return [connection.identity.name for connection in gone]

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
            self._part_from_slow_peers(now_ms())
            # Requests get their turn between two steps of an eviction.
            pause = 0.001 if again else self.tick_seconds
            due = now_ns() + int(pause * 1e9)
            await asyncio.sleep(pause)
            self.loop_lag.add(now_ns() - due)

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

    def _part_from_slow_peers(self, now: Instant) -> None:
        """Close connections for whose bytes there is no more room, and let those go on that waited for it."""
        for connection in self.traffic.backlog.ended(now):
            log.warning(
                "a connection was closed: its peer did not read its replies, or did not send the rest of a frame",
                client=connection.client,
                identity=connection.identity.name,
            )
            connection.transport.abort()
        self.traffic.turns.go_on()

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

    def admit(self, connection: Connection, address: str) -> int:
        """Count a connection that was accepted, or raise `TryAgain`. Returns its number."""
        displaced = self.traffic.admission.arrive(connection, address)
        if displaced is not None:
            displaced.displace()
        number = self._next
        self._next += 1
        self.connections[number] = connection
        return number

    def forget(self, connection: Connection) -> None:
        self.connections.pop(connection.number, None)
        self.traffic.admission.leave(connection)
        self.traffic.backlog.forget(connection)
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
            welcome.key_table, welcome.key_table_secret = "", b""

    def greet(self, connection: Connection, hello: Hello) -> Welcome:
        shown = self.identities.of_greeting(hello.token, connection.certificate_names, calendar_seconds())
        check_key(hello, is_older_allowed=self.identities.gives_all_roles)
        if self.engine is not None and number_of(hello, self.engine.state.secret) in self.engine.state.revoked:
            raise ClientRevoked(REVOKED)
        connection.become(shown)
        if not self.traffic.admission.greet(connection, shown, not self.identities.gives_all_roles):
            connection.be_on_trial()
        connection.hello = hello
        if self.engine is None:
            if not hello.looks:
                raise self.not_leading()
            return Welcome(0, 0, self.name, 0, 0, 0, 0, 0)
        connection.client = number_of(hello, self.engine.state.secret)
        if hello.control:
            # Requests of an older connection must not be handled after those of this one.
            older = self.controls.pop(connection.client, None)
            if older is not None:
                older.transport.abort()
                self.engine.connection_lost(older.number)
            self.controls[connection.client] = connection
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
            local=self._local if not shown.by_certificate else "",  # A Unix socket sees no certificate.
            key_table=showing.name if showing is not None else "",
            key_table_secret=showing.secret if showing is not None else b"",
            client=connection.client,
        )
