"""How a server shares its turns: short requests of one read are answered together, long ones each by itself."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from holdfast.core.primary.primary import Primary
from holdfast.core.rules import REMOVAL_STEP_SLOTS, STEP_OBJECTS, Rules
from holdfast.core.state.state import State
from holdfast.ids import GrantId
from holdfast.instant import now_ms
from holdfast.master import connection as connections
from holdfast.master.connection import LONG_BYTES, Connection
from holdfast.master.engine.engine import Engine
from holdfast.master.engine.shell import EngineShell
from holdfast.master.server import RpcServer
from holdfast.messages.of_sessions import OpenSession
from holdfast.messages.requests import (
    CommitPuts,
    Exists,
    Explain,
    Hello,
    ListKeys,
    Locate,
    Presence,
    Remove,
    Removed,
    RemoveMatching,
    Stat,
)
from holdfast.messages.shapes import Message
from holdfast.replication.batches import Position
from holdfast.replication.log_writer import PendingLog
from holdfast.wire.codec import PREAMBLE, FrameBuffer, decode_reply, encode, frame
from tests.core.world import World
from tests.master.engine.test_durability import Writer

SHORT = Exists(["key"])
LONG = Exists([f"key {number:060}" for number in range(LONG_BYTES // 50)])


class Line(asyncio.Transport):
    """What a connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = socket.socketpair()
        self.written: list[bytes] = []
        self.closed = False
        self.is_read = True
        """The server reads from this connection."""

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def get_write_buffer_size(self) -> int:
        return 1_000

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.near if name == "socket" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def answered(self) -> list[int]:
        """The requests that were answered, since this was last asked."""
        return [number for number, _ in self.replies()]

    def replies(self) -> list[tuple[int, bytes]]:
        """The replies since this was last asked."""
        received = FrameBuffer()
        left = b"".join(self.written)
        while left:
            space = received.space()
            count = min(len(space), len(left))
            space[:count] = left[:count]
            received.filled(count)
            left = left[count:]
        self.written.clear()
        return [(found[0], bytes(found[2])) for found in iter(received.next_frame, None)]


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.near.close()
    line.far.close()


@pytest.fixture
async def connection(line: Line) -> Connection:
    return connected(line)


def a_server() -> RpcServer:
    server = RpcServer("here", "")
    engine = Engine(Primary(State(), Rules()))
    engine.start_log(1, "test", b"secret", 0)
    engine.start_epoch(1, 0)
    server.lead(engine)
    return server


def connected(line: Line, server: RpcServer | None = None) -> Connection:
    connection = Connection(server if server is not None else a_server())
    connection.connection_made(line)
    feed(connection, PREAMBLE + frame(0, 0, encode(Hello(5))))
    assert line.answered() == [0]
    return connection


def filled(objects: int) -> tuple[World, list[str], RpcServer]:
    """A primary with this number of objects, their keys, and its server."""
    world = World()
    world.node("a", size=1 << 20)
    keys = [f"k{number}" for number in range(objects)]
    world.put(*keys, size=64)
    server = RpcServer("here", "")
    server.lead(world.engine)
    return world, keys, server


def feed(connection: Connection, data: bytes) -> None:
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


def feed_all(connection: Connection, data: bytes) -> None:
    """As many receives as it takes."""
    while data:
        space = connection.get_buffer(-1)
        count = min(len(space), len(data))
        space[:count] = data[:count]
        connection.buffer_updated(count)
        data = data[count:]


def asked(*messages: Message) -> bytes:
    return b"".join(asked_each(*messages))


def asked_each(*messages: Message) -> list[bytes]:
    return [frame(number, 1000, encode(message)) for number, message in enumerate(messages, 1)]


async def test_short_requests_of_one_read_are_answered_in_one_write(connection: Connection, line: Line) -> None:
    feed(connection, asked(SHORT, SHORT, SHORT))
    assert len(line.written) == 1
    assert line.answered() == [1, 2, 3]


async def test_the_reply_to_a_long_request_leaves_before_the_next_is_begun(connection: Connection, line: Line) -> None:
    feed(connection, asked(LONG, LONG, SHORT, SHORT))
    assert line.answered() == [1]
    await asyncio.sleep(0)
    assert line.answered() == [2]
    await asyncio.sleep(0)
    assert line.answered() == [3, 4]


async def test_what_comes_meanwhile_keeps_its_order(connection: Connection, line: Line) -> None:
    whole = asked(LONG, SHORT, SHORT, LONG, SHORT)
    cut = len(whole) - 300
    feed(connection, whole[:cut])
    feed(connection, whole[cut:])
    answered = line.answered()
    for _ in range(5):
        await asyncio.sleep(0)
        answered += line.answered()
    assert answered == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("step", [1, 7, 64, 1000, 1 << 20])
async def test_requests_are_answered_alike_however_many_a_read_brings(
    connection: Connection, line: Line, step: int
) -> None:
    """One whole frame (the fast path), several, or parts of them."""
    absent, refused = Locate(["none"]), CommitPuts(GrantId(5, 1), ["key"], bytes(24))
    frames = [
        *asked_each(SHORT, absent, refused, LONG, SHORT, absent),
        frame(7, 1000, b"no message"),
        *asked_each(SHORT),
    ]
    for each in frames:
        feed(connection, each)
    one_by_one = line.replies()
    assert [number for number, _ in one_by_one] == [1, 2, 3, 4, 5, 6, 7, 1]
    other_line = Line()
    with other_line.near, other_line.far:
        other = connected(other_line)
        together, replies = b"".join(frames), []
        for start in range(0, len(together), step):
            feed(other, together[start : start + step])
            replies += other_line.replies()
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
            replies += other_line.replies()
    assert replies == one_by_one


async def test_a_connection_that_ends_meanwhile_is_answered_nothing_more(connection: Connection, line: Line) -> None:
    feed(connection, asked(LONG, SHORT))
    assert line.answered() == [1]
    line.closed = True
    await asyncio.sleep(0)
    assert line.answered() == []
    connection.connection_lost(None)


async def test_a_frame_over_the_limit_behind_a_long_request_ends_the_connection(
    connection: Connection, line: Line
) -> None:
    feed(connection, asked(LONG) + b"\xff" * 12)
    assert line.answered() == [1]
    await asyncio.sleep(0)
    assert line.answered() == [0]
    assert line.closed


async def until_answered(line: Line, count: int) -> list[int]:
    answered = line.answered()
    for _ in range(10_000):
        if len(answered) >= count:
            break
        await asyncio.sleep(0)
        answered += line.answered()
    return answered


COSTLY_COUNT = 2_621
"""As many of these removals as one receive brings: 64 KiB."""


@pytest.mark.parametrize("costly", [RemoveMatching("^none", 0), ListKeys()], ids=["removals", "listings"])
async def test_a_burst_of_costly_requests_delays_nobody_by_more_than_one_step(line: Line, costly: Message) -> None:
    """Counted in requests: before each of its own another connection sees at most one of the burst decided."""
    server = a_server()
    sender, other_line = connected(line, server), Line()
    with other_line.near, other_line.far:
        other = connected(other_line, server)
        feed(sender, asked(*[costly] * (COSTLY_COUNT // 2)))
        assert line.answered() == [], "it waits for its turn, even alone"
        answered: list[int] = []
        for number in range(1, 200):
            feed(other, frame(number, 1000, encode(SHORT)))
            assert other_line.answered() == [number], "a single request is answered at once"
            before = len(answered)
            await asyncio.sleep(0)
            answered += line.answered()
            assert len(answered) - before <= 1
        assert not line.is_read, "what it sends meanwhile stays on its side"
        answered += await until_answered(line, COSTLY_COUNT // 2 - len(answered))
        assert answered == list(range(1, COSTLY_COUNT // 2 + 1))
        await asyncio.sleep(0)
        assert line.is_read


async def test_bursts_of_two_connections_are_served_in_turn(line: Line) -> None:
    server = a_server()
    first, other_line = connected(line, server), Line()
    with other_line.near, other_line.far:
        second = connected(other_line, server)
        feed(first, asked(*[ListKeys()] * 300))
        feed(second, asked(*[ListKeys()] * 3))
        theirs: list[int] = []
        ours: list[int] = []
        while len(theirs) < 3:
            await asyncio.sleep(0)
            ours += line.answered()
            theirs += other_line.answered()
        assert len(ours) < 300, "the short burst did not wait for the end of the long one"
        assert await until_answered(line, 300 - len(ours)) == list(range(len(ours) + 1, 301))


async def test_many_short_requests_are_answered_in_their_order_over_several_turns(line: Line) -> None:
    connection = connected(line)
    feed(connection, asked(*[SHORT] * 2_000))
    assert await until_answered(line, 2_000) == list(range(1, 2_001))


async def test_a_removal_in_several_steps_lets_others_in_between_and_is_answered_once(line: Line) -> None:
    world, keys, server = filled(REMOVAL_STEP_SLOTS * 3)
    connection, other_line = connected(line, server), Line()
    with other_line.near, other_line.far:
        other = connected(other_line, server)
        feed(connection, asked(RemoveMatching("^k", 1)))
        left = []
        while not line.written:
            feed(other, frame(1, 1000, encode(Exists(keys[-1:]))))
            left.append(world.state.catalogue.count)
            await asyncio.sleep(0)
        step = REMOVAL_STEP_SLOTS
        assert left == [3 * step, 2 * step, step], "a step, and then a request of another connection"
    [(number, reply)] = line.replies()
    assert (number, decode_reply(reply)) == (1, Removed(len(keys), 0, 0))


@pytest.mark.parametrize("kind", [Stat, Explain])
async def test_a_look_at_many_objects_lets_others_in_between_and_is_answered_once(
    line: Line, kind: type[Stat | Explain]
) -> None:
    """Counted in steps; the order of the sender's requests stays."""
    keys = [f"k{number}" for number in range(STEP_OBJECTS * 3)]
    server = a_server()
    connection, other_line = connected(line, server), Line()
    with other_line.near, other_line.far:
        other = connected(other_line, server)
        feed_all(connection, asked(kind(keys), SHORT))
        between = 0
        while not line.written:
            feed(other, frame(1, 1000, encode(SHORT)))
            assert other_line.answered() == [1]
            between += 1
            await asyncio.sleep(0)
        assert between == 3
        assert await until_answered(line, 2) == [1, 2]


async def test_what_one_client_sends_behind_a_removal_in_steps_sees_all_of_it(line: Line) -> None:
    _, keys, server = filled(STEP_OBJECTS * 3)
    connection = connected(line, server)
    feed_all(connection, asked(Remove(keys, 1), Exists(keys[-1:]), Locate(keys[-1:])))
    replies: list[tuple[int, bytes]] = []
    while len(replies) < 3:
        await asyncio.sleep(0)
        replies += line.replies()
    assert [number for number, _ in replies] == [1, 2, 3]
    assert decode_reply(replies[0][1]) == Removed(len(keys))
    assert decode_reply(replies[1][1]) == Presence(b"\0")


async def test_nothing_more_is_decided_for_a_peer_that_does_not_read(line: Line) -> None:
    """I17"""
    connection = connected(line)
    feed(connection, asked(*[ListKeys()] * 100))
    await asyncio.sleep(0)
    answered = line.answered()
    connection.pause_writing()
    for _ in range(20):
        await asyncio.sleep(0)
    assert line.answered() == []
    assert not line.is_read
    feed(connection, frame(101, 1000, encode(SHORT)))
    assert line.answered() == [], "also what comes later waits"
    connection.resume_writing()
    assert answered + await until_answered(line, 101 - len(answered)) == list(range(1, 102))
    await asyncio.sleep(0)
    assert line.is_read


async def test_a_request_with_too_many_unanswered_before_it_waits(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_UNANSWERED", 3)
    writer = Writer()
    server = RpcServer("here", "")
    server.lead(writer.engine)
    connection = connected(line, server)
    writer.grant(1, 64)
    feed(connection, asked(*[Remove(["none"], serial) for serial in range(5)]))
    assert server.requests[Remove] == 3, "their replies wait until the grant before them is durable"
    assert not line.is_read
    writer.write()
    assert line.answered() == [1, 2, 3]
    await asyncio.sleep(0)
    assert line.answered() == [4, 5]
    assert line.is_read


async def test_clients_that_wait_for_the_log_are_let_go_when_the_term_is_over() -> None:
    """I10, I12: another primary may serve them, while this one cannot reach the log and may not answer. Nodes stay."""
    now = now_ms()
    ends_at = [now + 3_600_000]
    shell = EngineShell(leads_until=lambda: ends_at[0], clients_wait_until=lambda: ends_at[0])
    engine = Engine(Primary(State(), Rules()), PendingLog(Position()), shell=shell)
    engine.start_log(1, "test", b"secret", now)
    engine.start_epoch(1, now)
    server = RpcServer("here", "")
    host, port = await server.start("127.0.0.1", 0)
    server.lead(engine)
    try:
        client, client_out = await asyncio.open_connection(host, port)
        node, node_out = await asyncio.open_connection(host, port)
        client_out.write(PREAMBLE + frame(0, 0, encode(Hello(5, control=True))))
        await asyncio.wait_for(client.read(1), 30)
        node_out.write(PREAMBLE + frame(0, 0, encode(Hello(6, control=True))) + asked(OpenSession(77, "a")))
        await asyncio.wait_for(node.read(1), 30)
        assert engine.primary.sessions.get(77) is not None
        engine.stop_deciding()  # As in a hand-over: it is writing what it has decided.
        server._part_from_clients(engine, now_ms())
        assert len(server.controls) == 2
        ends_at[0] = 0
        while await asyncio.wait_for(client.read(65_536), 30):
            pass
        assert list(server.controls) == [6]
        assert not server.controls[6].transport.is_closing()
        client_out.close()
        node_out.close()
    finally:
        await server.stop()
