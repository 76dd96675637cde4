"""Client numbers are derived by masters and chosen by nobody: nobody acts as another client (I20, ADR 46)."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

import pytest

from holdfast.core.primary.primary import Primary
from holdfast.core.rules import Rules
from holdfast.core.state.state import State
from holdfast.errors import BadRequest, GrantRefused, NotLeader
from holdfast.ids import GrantId
from holdfast.instant import now_ms, now_seconds
from holdfast.master.engine.engine import Engine
from holdfast.master.server import RpcServer
from holdfast.messages.hello import fresh_hello
from holdfast.messages.of_sessions import GiveSign
from holdfast.messages.requests import CommitPuts, Done, ExtendGrants, Granted, GrantRanges, Hello, ReturnGrants
from holdfast.messages.shapes import Message
from holdfast.transport.async_channel import AsyncChannel
from holdfast.wire.codec import encode, expect
from holdfast.wire.mac import FIRST_DERIVED, client_number
from tests.master.access.test_permissions import IDENTITIES, leading


def engine_with(secret: bytes, log_id: int = 1) -> Engine:
    engine = Engine(Primary(State(), Rules()))
    engine.start_log(log_id, "test", secret, now_ms())
    engine.start_epoch(1, now_ms())
    return engine


class Masters:
    """Servers of one history, or of several."""

    def __init__(self) -> None:
        self.servers: list[RpcServer] = []

    async def start(self, secret: bytes | None) -> str:
        """None: it follows."""
        server = RpcServer("here", "")
        if secret is not None:
            server.lead(engine_with(secret))
        self.servers.append(server)
        host, port = await server.start("127.0.0.1", 0)
        return f"{host}:{port}"


@pytest.fixture
async def masters() -> AsyncIterator[Masters]:
    masters = Masters()
    yield masters
    for server in masters.servers:
        await server.stop()


async def opened(address: str, hello: Hello) -> AsyncChannel:
    return await AsyncChannel.open(address, hello, now_seconds() + 20)


async def number_at(address: str, hello: Hello) -> int:
    channel = await opened(address, hello)
    channel.close()
    return channel.welcome.client


def test_a_number_tells_nothing_of_its_key_and_depends_on_the_secret() -> None:
    key, other = bytes(16), bytes(15) + b"\1"
    assert client_number(b"s", key) == client_number(b"s", key)
    assert len({client_number(b"s", key), client_number(b"s", other), client_number(b"t", key)}) == 3
    assert FIRST_DERIVED <= client_number(b"s", key) < 1 << 64


async def test_every_master_of_a_history_derives_the_same_number(masters: Masters) -> None:
    hello = fresh_hello()
    first, second, another = [await masters.start(secret) for secret in (b"ours", b"ours", b"theirs")]
    number = await number_at(first, hello)
    assert number == await number_at(second, hello)
    assert number != await number_at(another, hello)
    assert number != await number_at(first, fresh_hello())


async def test_the_number_that_a_caller_with_a_key_sends_is_ignored(masters: Masters) -> None:
    hello, address = fresh_hello(), await masters.start(b"ours")
    number = await number_at(address, hello)
    for claimed in (0, number, 7):
        assert await number_at(address, Hello(claimed, client_key=hello.client_key)) == number


@pytest.mark.parametrize("claimed", [0, -1, FIRST_DERIVED, FIRST_DERIVED + 99, client_number(b"ours", bytes(16))])
async def test_no_number_can_be_asked_for_that_is_a_clients_or_the_primarys(masters: Masters, claimed: int) -> None:
    with pytest.raises(BadRequest, match="63 bits and is not 0"):
        await opened(await masters.start(b"ours"), Hello(claimed))


@pytest.mark.parametrize("key", [b"x", bytes(15), bytes(17), bytes(2048)])
async def test_a_key_has_its_length(masters: Masters, key: bytes) -> None:
    with pytest.raises(BadRequest, match="key has 16 bytes"):
        await opened(await masters.start(b"ours"), Hello(5, client_key=key))


async def test_an_older_client_has_its_own_number_where_everybody_may_do_everything(masters: Masters) -> None:
    assert await number_at(await masters.start(b"ours"), Hello(5)) == 5


async def test_an_older_client_is_told_to_update_where_there_are_identities() -> None:
    server = leading(IDENTITIES)
    host, port = await server.start("127.0.0.1", 0)
    with pytest.raises(BadRequest, match="Update the client"):
        await opened(f"{host}:{port}", Hello(5, "token of writer"))
    await server.stop()


async def test_nobody_speaks_for_anothers_grants(masters: Masters) -> None:
    address = await masters.start(b"ours")
    victim, thief = await opened(address, fresh_hello(control=True)), await opened(address, fresh_hello(control=True))
    theirs = GrantId(victim.welcome.client, 1)
    messages: list[tuple[Message, type[Message]]] = [
        (GrantRanges(theirs, struct.pack("<Q", 64)), Granted),
        (CommitPuts(theirs, ["key"], bytes(24)), Done),
        (ExtendGrants([theirs]), Done),
        (ReturnGrants([theirs], settled=True), Done),
        (GrantRanges(GrantId(0, 1), struct.pack("<Q", 64)), Granted),
    ]
    for message, kind in messages:
        with pytest.raises(GrantRefused, match="another client"):
            expect(await thief.call(message, now_seconds() + 20), kind)
    for channel in (victim, thief):
        channel.close()


async def test_nobody_ends_anothers_control_connection(masters: Masters) -> None:
    """It is closed for a newer one of the same client, which only the same key makes."""
    address = await masters.start(b"ours")
    hello = fresh_hello(control=True)
    victim = await opened(address, hello)
    (await opened(address, Hello(hello.client, control=True))).close()
    (await opened(address, fresh_hello(control=True))).close()
    assert isinstance(await victim.call(GiveSign(), now_seconds() + 20), Done)
    newer = await opened(address, hello)
    assert newer.welcome.client == victim.welcome.client
    assert list(masters.servers[0].controls) == [newer.welcome.client]
    newer.close()


async def test_whoever_looked_at_a_standby_has_its_number_when_that_leads(masters: Masters) -> None:
    """Not 0, which is the primary's own."""
    address = await masters.start(None)
    hello = fresh_hello(looks=True)
    channel = await opened(address, hello)
    with pytest.raises(NotLeader):
        await opened(address, fresh_hello())
    masters.servers[0].lead(engine_with(b"ours"))
    with pytest.raises(GrantRefused, match="another client"):
        expect(await channel.call(GrantRanges(GrantId(0, 1), struct.pack("<Q", 64)), now_seconds() + 20), Granted)
    (connection,) = masters.servers[0].connections.values()
    assert connection.client == client_number(b"ours", hello.client_key)
    channel.close()


def test_a_greeting_shows_neither_token_nor_key() -> None:
    hello = Hello(5, "s3cret", client_key=b"0123456789abcdef")
    assert "s3cret" not in repr(hello)
    assert "0123456789abcdef" not in repr(hello)
    assert b"s3cret" in encode(hello)
