"""Who is connected, as each identity is shown it, and the end of a client by the operator's word."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from holdfast.errors import BadValue, ClientRevoked, HoldfastError, NotAllowed, UnknownClient
from holdfast.identity.identities import Entry, Identities, Identity, hash_of
from holdfast.identity.roles import Role, with_included
from holdfast.instant import now_ms, now_seconds
from holdfast.master.server import RpcServer
from holdfast.master.status.clients import Clients, handle_of
from holdfast.messages.of_masters import ClientInfo, ClientList, EndClient, ListClients
from holdfast.messages.requests import Done, Exists, Hello, Presence, Welcome
from holdfast.transport.async_channel import AsyncChannel
from holdfast.wire.codec import expect
from holdfast.wire.mac import client_number
from tests.master.access.test_permissions import leading


def key_of(client: int) -> bytes:
    return client.to_bytes(16, "little")


def handle(client: int) -> str:
    """Of the client with this key."""
    return handle_of(client_number(b"secret", key_of(client)))


def entry(name: str, role: Role, tenant: str = "") -> Entry:
    return Entry(Identity(name, with_included([role]), tenant), (hash_of(f"token of {name}"),))


IDENTITIES = Identities(
    [
        entry("trainer", Role.WRITER),
        entry("red", Role.READER, "red"),
        entry("boss", Role.OPERATOR),
        entry(handle(5), Role.READER),
    ]
)


class Office:
    """A server that leads, with its clients."""

    def __init__(self, identities: Identities | None) -> None:
        self.server: RpcServer = leading(identities)
        self.clients = Clients(self.server)
        self.address = ""

    async def open(self, client: int, name: str = "", looks: bool = False, local: bool = False) -> AsyncChannel:
        hello = Hello(client, f"token of {name}" if name else "", looks=looks, client_key=key_of(client))
        channel = await AsyncChannel.open(self.address, hello, now_seconds() + 20)
        if not local:
            return channel
        assert isinstance(channel.welcome, Welcome)
        return await AsyncChannel.open(f"unix:@{channel.welcome.local}", hello, now_seconds() + 20)

    async def listed(self, channel: AsyncChannel, tenant: str | None = None) -> dict[str, ClientInfo]:
        found = expect(await channel.call(ListClients(tenant), now_seconds() + 20), ClientList)
        assert found.total == len(found.clients)
        return {one.handle: one for one in found.clients}


async def ask(channel: AsyncChannel, times: int = 1) -> None:
    for _ in range(times):
        expect(await channel.call(Exists(["one"]), now_seconds() + 20), Presence)


async def end(channel: AsyncChannel, who: str) -> int:
    return expect(await channel.call(EndClient(who), now_seconds() + 20), Done).count


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    office = Office(IDENTITIES)
    host, port = await office.server.start("127.0.0.1", 0)
    office.address = f"{host}:{port}"
    yield office
    await office.server.stop()


async def test_a_client_is_listed_once_with_all_of_its_connections(office: Office) -> None:
    channels = [await office.open(6, "trainer") for _ in range(3)]
    boss = await office.open(7, "boss", looks=True)
    found = (await office.listed(boss))[handle(6)]
    assert (found.name, found.tenant, found.kind, found.connections) == ("trainer", "", "client", 3)
    assert found.address.startswith("127.0.0.1:")
    assert (await office.listed(boss))[handle(7)].kind == "viewer"
    for channel in (*channels, boss):
        channel.close()


async def test_requests_and_their_bytes_are_counted_between_two_looks(office: Office) -> None:
    busy, boss = await office.open(6, "trainer"), await office.open(7, "boss")
    await ask(busy, 5)
    clients: list[ClientList] = []
    office.clients.list(None, clients.append)  # type: ignore[arg-type]
    await ask(busy, 20)
    await office.listed(boss)
    first = clients[0].clients[0]
    assert first.handle == handle(6), "the busiest is first"
    assert first.requests_per_second > 0
    assert first.bytes_per_second > 4 * first.requests_per_second
    assert (await office.listed(boss))[handle(6)].requests_per_second == 0
    for channel in (busy, boss):
        channel.close()


async def test_a_tenant_is_shown_its_own_clients_whatever_it_asks_for(office: Office) -> None:
    """I20"""
    red, trainer, boss = await office.open(5, "red"), await office.open(6, "trainer"), await office.open(7, "boss")
    assert set(await office.listed(red)) == set(await office.listed(red, "")) == {handle(5)}
    assert set(await office.listed(trainer, "red")) == {handle(6), handle(7)}
    assert set(await office.listed(boss)) == {handle(5), handle(6), handle(7)}
    assert set(await office.listed(boss, "red")) == {handle(5)}
    with pytest.raises(NotAllowed):
        await end(trainer, handle(5))
    for channel in (red, trainer, boss):
        channel.close()


async def test_a_revoked_client_is_gone_and_may_not_come_back(office: Office) -> None:
    gone, stays, boss = await office.open(6, "trainer"), await office.open(8, "trainer"), await office.open(7, "boss")
    assert await end(boss, handle(6)) == 1
    with pytest.raises(HoldfastError):
        await ask(gone)
    with pytest.raises(ClientRevoked, match="operator has revoked"):
        await office.open(6, "trainer")
    await ask(stays)
    for channel in (stays, boss):
        channel.close()


async def test_a_later_primary_parts_from_a_revoked_client_that_looked_at_it_as_a_standby(office: Office) -> None:
    """It greeted before it had a number here."""
    engine = office.server.engine
    assert engine is not None
    engine.revoke([client_number(b"secret", key_of(6))], now_ms())
    office.server.engine = None
    looks, other = await office.open(6, "trainer", looks=True), await office.open(8, "trainer", looks=True)
    office.server.lead(engine)
    with pytest.raises(HoldfastError):
        await ask(looks)
    with pytest.raises(ClientRevoked):
        await office.open(6, "trainer")
    await ask(other)
    other.close()


async def test_all_clients_of_an_identity_are_revoked_by_its_name(office: Office) -> None:
    gone = [await office.open(number, "trainer") for number in (6, 8, 9)]
    boss = await office.open(7, "boss")
    assert await end(boss, "trainer") == 3
    for channel in gone:
        with pytest.raises(HoldfastError):
            await ask(channel)
    await ask(boss)
    assert await end(boss, "boss") == 1, "the answer leaves before its connection is closed"
    with pytest.raises(HoldfastError):
        await ask(boss)


async def test_who_is_nobody_or_two_is_refused(office: Office) -> None:
    red, double, boss = await office.open(5, "red"), await office.open(6, handle(5)), await office.open(7, "boss")
    for who in ("nobody", "", handle(99)):
        with pytest.raises(UnknownClient):
            await end(boss, who)
    with pytest.raises(BadValue, match="handle of a client and the name"):
        await end(boss, handle(5))
    for channel in (red, double):
        await ask(channel)
        channel.close()
    boss.close()


async def test_a_process_of_this_machine_is_named() -> None:
    office = Office(None)
    host, port = await office.server.start("127.0.0.1", 0)
    office.address = f"{host}:{port}"
    channel = await office.open(6, local=True)
    try:
        found = (await office.listed(channel))[handle(6)]
        assert (found.address, found.pid) == ("local", os.getpid())
    finally:
        channel.close()
        await office.server.stop()
