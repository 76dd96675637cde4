"""The master's own time per request, of a tenant beside an open cluster: processor time, in one process.

Rates of calls (`tenants`) say little while the machine is at work. Here the bytes of a request go straight into the
connection of a master that is alone in this thread, and the time is that of the thread: what other processes do shows
in neither. The two take turns, and the 20th percentile is taken of their stretches.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from benchmarks.measure import Row, Scale
from holdfast.core.primary.primary import Primary
from holdfast.core.rules import Rules
from holdfast.core.state.state import State
from holdfast.identity.identities import Entry, Identities, Identity, hash_of
from holdfast.identity.new_tokens import fresh_token
from holdfast.identity.roles import Role
from holdfast.ids import GrantId
from holdfast.instant import now_ms
from holdfast.master.connection import Connection
from holdfast.master.engine.engine import Engine
from holdfast.master.server import RpcServer
from holdfast.messages import of_nodes, of_sessions
from holdfast.messages import requests as q
from holdfast.messages.shapes import Attachment, Message
from holdfast.replication.batches import Position
from holdfast.replication.log_writer import PendingLog
from holdfast.wire.codec import HEAD_BYTES, PREAMBLE, decode_reply, encode, expect, frame
from tests.master.test_server_turns import feed_all

BATCH = 512
SINGLE = 20
VALUE_BYTES = 1024
STORED = 8 * BATCH
MEMORY_BYTES = 1 << 30
NODE, NODES_CONNECTION = 5, 100
NAMES = [f"batch/over TCP/1/2/{i}" for i in range(STORED)]
PERCENTILE = 20
T = TypeVar("T", bound=Message)
Stretch = Callable[["Side", int], tuple[list[bytes], Callable[[], None]]]
"""The frames of a stretch, by its number, and what is to be done after it."""


class Sink(asyncio.Transport):
    """Takes what a connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = socket.socketpair()
        self.written: list[bytes | bytearray | memoryview] = []

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.near if name == "socket" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return False


class Side:
    """A master with one node, and the connection of one client."""

    def __init__(self, tenant: str) -> None:
        token = fresh_token()
        roles = frozenset({Role.READER, Role.WRITER})
        known = Identities([Entry(Identity("client", roles, tenant), (hash_of(token),))]) if tenant else None
        server = RpcServer("here", "", identities=known)
        self._log = PendingLog(Position())
        engine = Engine(Primary(State(), Rules()), self._log)
        now = now_ms()
        engine.start_log(1, "benchmark", bytes(32), now)
        engine.start_epoch(1, now)
        server.lead(engine)
        engine.handle(of_sessions.OpenSession(NODE, "node"), 0, NODES_CONNECTION, now)
        offered = of_nodes.RegisterNode(NODE, NODE, 0, "host", "node:1", "/node", [MEMORY_BYTES])
        engine.handle(offered, 0, NODES_CONNECTION, now)
        self.sink = Sink()
        self._connection = Connection(server)
        self._connection.connection_made(self.sink)
        self.feed(PREAMBLE)
        self._serial = 0
        self.client = 0
        welcome = self.ask(q.Welcome, q.Hello(0, token if tenant else "", client_key=bytes(16)))
        self.client = welcome.client
        self.attached = [Attachment(handle, 1) for handle in engine.state.segments]

    def feed(self, data: bytes) -> None:
        """As a loop would: received, decided, durable, answered."""
        feed_all(self._connection, data)
        if (cut := self._log.cut(1 << 26)) is not None:
            self._log.is_durable(cut[1], cut[0])

    def ask(self, kind: type[T], request: Message) -> T:
        self.feed(frame(1, 0, encode(request)))
        return _expected(kind, self.sink.written.pop())

    def next_grant(self) -> GrantId:
        self._serial += 1
        return GrantId(self.client, self._serial)

    def granted(self, count: int) -> GrantId:
        grant = self.next_grant()
        self.ask(q.Granted, q.GrantRanges(grant, struct.pack("<Q", count * VALUE_BYTES), attached=self.attached))
        return grant

    def remove(self, keys: list[str]) -> None:
        self._serial += 1
        self.ask(q.Removed, q.Remove(keys, self._serial))

    def store(self, keys: list[str]) -> None:
        grant = self.granted(len(keys))
        self.ask(q.Committed, q.CommitPuts(grant, keys, _rows(0, len(keys)), finished=[grant]))

    def time(self, frames: list[bytes], kind: type[Message]) -> float:
        """Microseconds per request."""
        began = time.thread_time_ns()
        for each in frames:
            self.feed(each)
        took = time.thread_time_ns() - began
        for written in self.sink.written:
            _expected(kind, written)
        self.sink.written.clear()
        return took / len(frames) / 1000


def _expected(kind: type[T], written: bytes | bytearray | memoryview) -> T:
    return expect(decode_reply(written[HEAD_BYTES:]), kind)


def _rows(first: int, count: int) -> bytes:
    return b"".join(struct.pack("<3Q", at * VALUE_BYTES, VALUE_BYTES, 7) for at in range(first, first + count))


def _frames(requests: list[Message]) -> list[bytes]:
    return [frame(number, 0, encode(request)) for number, request in enumerate(requests)]


def _puts(side: Side, number: int) -> tuple[list[bytes], Callable[[], None]]:
    keys = [f"single/{number}/{i}" for i in range(SINGLE)]
    grant = side.granted(SINGLE)
    commits: list[Message] = [q.CommitPuts(grant, [key], _rows(i, 1)) for i, key in enumerate(keys)]
    return _frames(commits), lambda: _clear(side, grant, keys)


def _batch_of_puts(side: Side, number: int) -> tuple[list[bytes], Callable[[], None]]:
    keys = [f"batch/same host/{number}/{i}" for i in range(BATCH)]
    grant = side.granted(BATCH)
    return _frames([q.CommitPuts(grant, keys, _rows(0, BATCH))]), lambda: _clear(side, grant, keys)


def _give_back(side: Side, grant: GrantId) -> None:
    side.ask(q.Done, q.ReturnGrants([grant]))


def _clear(side: Side, grant: GrantId, keys: list[str]) -> None:
    _give_back(side, grant)
    side.remove(keys)


def _grants(side: Side, number: int) -> tuple[list[bytes], Callable[[], None]]:
    grant, keys = side.next_grant(), [f"batch/same host/{number}/{i}" for i in range(BATCH)]
    sizes = struct.pack(f"<{BATCH}Q", *[VALUE_BYTES] * BATCH)
    asked = q.GrantRanges(grant, sizes, keys, attached=side.attached)
    return _frames([asked]), lambda: _give_back(side, grant)


def _gets(tickets: bool) -> Stretch:
    def stretch(side: Side, number: int) -> tuple[list[bytes], Callable[[], None]]:
        first = number * SINGLE % (STORED - SINGLE)
        return _frames([q.Locate([key], tickets) for key in NAMES[first : first + SINGLE]]), lambda: None

    return stretch


def _batch_of_gets(tickets: bool) -> Stretch:
    def stretch(side: Side, number: int) -> tuple[list[bytes], Callable[[], None]]:
        first = number * BATCH % STORED
        return _frames([q.Locate(NAMES[first : first + BATCH], tickets)]), lambda: None

    return stretch


KINDS: dict[str, tuple[Stretch, type[Message]]] = {
    "put": (_puts, q.Committed),
    f"put_many of {BATCH}": (_batch_of_puts, q.Committed),
    f"memory for a put_many of {BATCH}": (_grants, q.Granted),
    "get": (_gets(False), q.Located),
    "get over TCP": (_gets(True), q.Located),
    f"get_many of {BATCH}": (_batch_of_gets(False), q.Located),
    f"get_many of {BATCH} over TCP": (_batch_of_gets(True), q.Located),
}


def run(scale: Scale) -> list[Row]:
    return asyncio.run(_run(scale.of(400, 20)))


async def _run(rounds: int) -> list[Row]:
    sides = Side(""), Side("blue")
    for side in sides:
        for first in range(0, STORED, BATCH):
            side.store(NAMES[first : first + BATCH])
    gc.collect()
    return [_row(name, *_turns(sides, stretch, kind, rounds)) for name, (stretch, kind) in KINDS.items()]


def _turns(sides: tuple[Side, Side], stretch: Stretch, kind: type[Message], rounds: int) -> tuple[float, float]:
    took: list[list[float]] = [[], []]
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            frames, after = stretch(sides[which], number)
            took[which].append(sides[which].time(frames, kind))
            after()
    plain, of_tenant = (float(np.percentile(each[len(each) // 10 :], PERCENTILE)) for each in took)
    return plain, of_tenant


def _row(name: str, plain: float, of_tenant: float) -> Row:
    return Row(
        name=f"{name}, of a tenant: the master's time",
        figure=of_tenant,
        unit="us",
        ratio=plain / of_tenant,
        baseline="without identities",
        note=f"{of_tenant - plain:+.1f} us",
    )
