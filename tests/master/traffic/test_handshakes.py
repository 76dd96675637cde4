"""TLS handshakes at a master's RPC port: they have places and time as every connection that has not greeted (I17)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.instant import now_seconds
from holdfast.master import connection as connections
from holdfast.master.server import RpcServer
from holdfast.master.traffic.admission import Caps
from holdfast.master.traffic.handshakes import bound
from holdfast.messages.hello import fresh_hello
from holdfast.messages.requests import Exists, Presence
from holdfast.transport.async_channel import AsyncChannel
from tests.certificates import HALF_HELLO, certified, dialing, serving
from tests.master.access.test_client_numbers import engine_with
from tests.waiting import closed_by_peer, wait_until

CAPS = Caps(total=64)
"""Sixteen may be silent."""
CROWD = 60
Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certified(tmp_path_factory.mktemp("certificates"))


class Port:
    """A primary that speaks TLS."""

    def __init__(self, folder: Path, server: RpcServer, address: tuple[str, int]) -> None:
        self.folder = folder
        self.server = server
        self.address = address

    async def crowd(self, count: int, begin: str) -> list[Peer]:
        tls = dialing(self.folder) if begin == "a whole handshake" else None
        peers = []
        for _ in range(count):
            with contextlib.suppress(OSError):  # A handshake may be displaced by the next.
                peers.append(await asyncio.open_connection(*self.address, ssl=tls))
                if begin == "half a hello":
                    peers[-1][1].write(HALF_HELLO)
        return peers

    async def is_served(self) -> bool:
        """A good client gets in, and is answered."""
        address = f"{self.address[0]}:{self.address[1]}"
        channel = await AsyncChannel.open(address, fresh_hello(), now_seconds() + 60, tls=dialing(self.folder))
        reply = await channel.call(Exists(["k"]), now_seconds() + 60)
        channel.close()
        return isinstance(reply, Presence)


@pytest.fixture
async def port(folder: Path) -> AsyncIterator[Port]:
    server = RpcServer("here", "", caps=CAPS)
    server.lead(engine_with(b"ours"))
    address = await server.start("127.0.0.1", 0, serving(folder))
    yield Port(folder, server, address)
    await server.stop()
    assert not server.supervisor.down()


async def until(condition: object, what: str) -> None:
    """As `wait_until`, in a thread: the server runs in this loop."""
    await asyncio.to_thread(wait_until, condition, 60, what)  # type: ignore[arg-type]


@pytest.mark.parametrize("begin", ["nothing", "half a hello", "a whole handshake"])
async def test_handshakes_displace_the_oldest_and_a_good_client_gets_in(
    port: Port, monkeypatch: pytest.MonkeyPatch, begin: str
) -> None:
    monkeypatch.setattr(connections, "GREETING_SECONDS", 600)
    peers = await port.crowd(CROWD, begin)
    assert await port.is_served()
    assert len(port.server.connections) <= CAPS.ungreeted + 1
    for displaced in peers[: CROWD - CAPS.ungreeted]:
        assert await closed_by_peer(*displaced)
    await until(lambda: len(port.server.connections) < CAPS.ungreeted, "the good client has left")
    assert port.server.traffic.admission.refused["ungreeted"] >= CROWD - CAPS.ungreeted
    for _, writer in peers:
        writer.close()
    await until(lambda: not port.server.connections, "all have left")
    assert not port.server.traffic.admission._address, "all places are free"


@pytest.mark.parametrize("begin", ["nothing", "half a hello", "a whole handshake"])
async def test_places_come_back_after_the_deadline(port: Port, monkeypatch: pytest.MonkeyPatch, begin: str) -> None:
    monkeypatch.setattr(connections, "GREETING_SECONDS", 1.0)
    peers = await port.crowd(CAPS.ungreeted, begin)
    for peer in peers:
        assert await closed_by_peer(*peer)
    await until(lambda: not port.server.connections, "all have left")
    assert not port.server.traffic.admission._address
    assert await port.is_served()


async def test_a_byte_now_and_then_gives_no_more_time(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "GREETING_SECONDS", 0.5)
    [peer] = await port.crowd(1, "nothing")

    async def trickle() -> None:
        for byte in HALF_HELLO * 1_000:
            peer[1].write(bytes([byte]))
            await peer[1].drain()
            await asyncio.sleep(0.02)

    slow = asyncio.create_task(trickle())
    assert await closed_by_peer(*peer)
    slow.cancel()


async def test_who_speaks_no_tls_is_closed_and_costs_nothing(port: Port) -> None:
    for _ in range(50):
        [peer] = await port.crowd(1, "nothing")
        peer[1].write(b"GET / HTTP/1.1\r\n\r\n")
        assert await closed_by_peer(*peer)
    await until(lambda: not port.server.connections, "all have left")
    assert await port.is_served()


async def test_a_server_that_stops_gives_handshakes_up(folder: Path) -> None:
    server = RpcServer("here", "", caps=CAPS)
    server.lead(engine_with(b"ours"))
    port = Port(folder, server, await server.start("127.0.0.1", 0, serving(folder)))
    peers = await port.crowd(5, "half a hello")
    await until(lambda: len(server.connections) == 5, "all have arrived")
    await server.stop()
    assert not server.connections
    for peer in peers:
        assert await closed_by_peer(*peer)
    gc.collect()  # A socket that was left open would warn now.
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection(*port.address)


def test_every_address_of_a_host_is_bound_or_none() -> None:
    listeners = bound("localhost", 0, 16)
    try:
        assert {one.getsockname()[0] for one in listeners} <= {"127.0.0.1", "::1"}
        with pytest.raises(OSError):
            bound(*listeners[0].getsockname()[:2], 16)
    finally:
        for one in listeners:
            one.close()
