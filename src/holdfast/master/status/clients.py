"""Who is connected to a master, and the end of a client by the operator's word.

A client is shown by a handle, a hash of its number: whoever knew the number could connect as that client. Rates cost
nothing while nobody asks: connections count their requests, and whoever asks waits for the half second between two
looks at the counts.

The end of a client, in this order (I2, I11):

1. Its grants end into quarantine, its number may not greet again, at any master, and nodes are told to take none of its
   tickets. That is in the log (`ClientsRevoked`, ADR 53).
2. Once the log has it, its connections are closed, and its leases keep nobody from removing any more. The memory that
   they name stays as it is until they would have ended, because it may be mapped and read there.

What was acknowledged to it stays.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import structlog

from holdfast.addresses import join_address
from holdfast.core.primary.lessees import SEVERAL_LESSEES
from holdfast.core.primary.primary import Primary
from holdfast.errors import BadValue, Busy, HoldfastError, UnknownClient
from holdfast.ids import COPIES
from holdfast.instant import Instant, now_ms
from holdfast.master.connection import ONE_REQUEST, Connection
from holdfast.master.engine.engine import Engine
from holdfast.master.engine.waiting_room import Answer
from holdfast.master.server import RpcServer
from holdfast.messages.of_masters import ClientInfo, ClientList, EndClient, ListClients
from holdfast.messages.requests import Done
from holdfast.transport.peer_user import process_of
from holdfast.wire.codec import failed

SAMPLE_SECONDS = 0.5
MOST_SHOWN = 1_000
MOST_ASKING = 256
MOST_LESSEES = 1 << 20
KINDS = ("node", "client", "viewer")
log = structlog.get_logger("holdfast.master")


def handle_of(client: int) -> str:
    return hashlib.blake2b(str(client).encode(), digest_size=5).hexdigest()


@dataclass(slots=True)
class _Counted:
    """A client's connections, and what it asked since the earlier look."""

    connections: list[Connection] = field(default_factory=list)
    asked: int = 0


class Clients:
    """Lists the clients of a server, and parts from those whom the operator names."""

    def __init__(self, server: RpcServer) -> None:
        self._server = server
        self._asking: list[tuple[str | None, Answer]] = []
        server.views[ListClients] = lambda request, answer: self.list(request.tenant, answer)
        server.views[EndClient] = lambda request, answer: self.end(request.who, answer)

    def list(self, tenant: str | None, answer: Answer) -> None:
        """All who ask meanwhile share one pair of looks."""
        if len(self._asking) >= MOST_ASKING:
            answer(failed(Busy("too many ask for the clients at once; try again")))
            return
        self._asking.append((tenant, answer))
        if len(self._asking) == 1:
            earlier = {number: one.asked for number, one in self._server.connections.items()}
            asyncio.get_running_loop().call_later(SAMPLE_SECONDS, self._answer, earlier, now_ms())

    def _answer(self, earlier: dict[int, int], began: Instant) -> None:
        asking, self._asking = self._asking, []
        now = now_ms()
        for tenant in {tenant for tenant, _ in asking}:
            found = self._found(tenant, earlier, max(1, now - began) / 1000, now)
            for wanted, answer in asking:
                if wanted == tenant:
                    answer(found)

    def _found(self, tenant: str | None, earlier: dict[int, int], seconds: float, now: Instant) -> ClientList:
        counted: dict[int, _Counted] = {}
        for number, one in self._server.connections.items():
            if one.is_greeted and (tenant is None or one.identity.tenant == tenant):
                of_client = counted.setdefault(one.client, _Counted())
                of_client.connections.append(one)
                of_client.asked += one.asked - earlier.get(number, 0)
        busiest = heapq.nlargest(MOST_SHOWN, counted.items(), key=lambda item: item[1].asked)
        engine = self._server.engine
        leases = _leases(engine.primary, (client for client, _ in busiest), now) if engine is not None else {}
        return ClientList(
            [_info(engine, client, found, leases.get(client, 0), seconds, now) for client, found in busiest],
            len(counted),
        )

    def end(self, who: str, answer: Answer) -> None:
        engine = self._server.engine
        if engine is None:
            answer(failed(self._server.not_leading()))
            return
        try:
            clients = self._named(engine, who)
            last = engine.revoke(sorted(clients), now_ms())
        except HoldfastError as error:
            answer(failed(error))
            return
        engine.when_durable(last, self._parting(engine, clients, answer))

    def _parting(self, engine: Engine, clients: set[int], answer: Answer) -> Callable[[], None]:
        def part() -> None:
            for connection in list(self._server.connections.values()):
                if connection.is_greeted and connection.client in clients:
                    connection.refuse_revoked()
            engine.part_from(clients, now_ms())

        def then() -> None:
            log.warning("clients were revoked by the operator", clients=sorted(map(handle_of, clients)))
            answer(Done(len(clients)))
            # The operator may be among them: its answer leaves first.
            asyncio.get_running_loop().call_soon(part)

        return then

    def _named(self, engine: Engine, who: str) -> set[int]:
        """Clients of this handle, or of the identity of this name; those that only look, and nodes, are none."""
        mine = [one for one in self._server.connections.values() if _kind(engine, one) == "client"]
        of_name = {one.client for one in mine if who and one.identity.name == who}
        nodes = {one.client for one in self._server.connections.values() if _kind(engine, one) == "node"}
        known = ({one.client for one in mine} | engine.primary.grants_of.keys()) - nodes - {COPIES}
        of_handle = {client for client in known if handle_of(client) == who}
        if of_name and of_handle:
            raise BadValue(f"{who!r} is the handle of a client and the name of an identity; nobody was revoked")
        if not of_name and not of_handle:
            raise UnknownClient(
                f"no client has the handle or the name {who!r} here; nobody was revoked. `holdfast clients` lists them"
            )
        return of_name | of_handle


def _kind(engine: Engine | None, one: Connection) -> str:
    if engine is not None:
        sessions = engine.primary.sessions
        if sessions.is_followed_over(one.number) or one.number in sessions.speakers:
            return "node"
    return "client" if one.is_greeted and not one.looks else "viewer"


def _leases(primary: Primary, clients: Iterable[int], now: Instant) -> dict[int, int]:
    """Client -> objects that are leased to it alone."""
    catalogue = primary.state.catalogue
    held = catalogue.lessees[: catalogue.top][catalogue.lease_until[: catalogue.top] > now]
    counts = np.bincount(held[held < MOST_LESSEES], minlength=1)
    numbers = {client: primary.lessees.known(client) for client in clients}
    return {
        client: int(counts[number])
        for client, number in numbers.items()
        if number != SEVERAL_LESSEES and number < len(counts)
    }


def _info(engine: Engine | None, client: int, found: _Counted, leases: int, seconds: float, now: Instant) -> ClientInfo:
    first = found.connections[0]
    requests, size_bytes = divmod(found.asked, ONE_REQUEST)
    grants = engine.primary.live_grants(client) if engine is not None else []
    address, pid = _place(found.connections)
    return ClientInfo(
        handle=handle_of(client),
        name=first.identity.name,
        tenant=first.identity.tenant,
        kind=min((_kind(engine, one) for one in found.connections), key=KINDS.index),
        address=address,
        pid=pid,
        connections=len(found.connections),
        grants=len(grants),
        granted_bytes=sum(grant.left_bytes for grant in grants),
        leases=leases,
        requests_per_second=round(requests / seconds, 1),
        bytes_per_second=round(size_bytes / seconds, 1),
        connected_ms=now - min(one.since for one in found.connections),
    )


def _place(connections: list[Connection]) -> tuple[str, int]:
    """(address, process id): by the local connection where there is one, which alone tells the process."""
    address = "local"
    for one in connections:
        stream = one.transport.get_extra_info("socket")
        if stream is None:
            continue
        if stream.family == socket.AF_UNIX:
            return "local", process_of(stream)
        peer = one.transport.get_extra_info("peername")
        address = join_address(*peer[:2]) if peer else ""
    return address, 0
