"""How a server shares its turns: short requests of one read are answered together, long ones each by itself."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from holdfast.core.primary import Primary
from holdfast.core.rules import Rules
from holdfast.core.state import State
from holdfast.master.engine import Engine
from holdfast.master.server import LONG_BYTES, Connection, RpcServer
from holdfast.messages.requests import Exists, Hello
from holdfast.messages.shapes import Message
from holdfast.wire.codec import encode
from holdfast.wire.frames import PREAMBLE, FrameBuffer, frame

SHORT = Exists(["key"])
LONG = Exists([f"key {number:060}" for number in range(LONG_BYTES // 50)])


class Line(asyncio.Transport):
    """What a connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = socket.socketpair()
        self.written: list[bytes] = []
        self.closed = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.near if name == "socket" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def answered(self) -> list[int]:
        """The requests that were answered, since this was last asked."""
        received = FrameBuffer()
        for data in self.written:
            received.space()[: len(data)] = data
            received.filled(len(data))
        self.written.clear()
        return [found[0] for found in iter(received.next_frame, None)]


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.near.close()
    line.far.close()


@pytest.fixture
async def connection(line: Line) -> Connection:
    server = RpcServer("here", "")
    engine = Engine(Primary(State(), Rules()))
    engine.start_log(1, "test", b"secret", 0)
    engine.start_epoch(1, 0)
    server.lead(engine)
    connection = Connection(server)
    connection.connection_made(line)
    feed(connection, PREAMBLE + frame(0, 0, encode(Hello(5))))
    assert line.answered() == [0]
    return connection


def feed(connection: Connection, data: bytes) -> None:
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


def asked(*messages: Message) -> bytes:
    return b"".join(frame(number, 1000, encode(message)) for number, message in enumerate(messages, 1))


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
