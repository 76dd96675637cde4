"""A master's identities follow their file, and connections end with the identity that they belong to (I20)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError, NotAuthorized
from holdfast.identity.identities import hash_of
from holdfast.identity.identities_file import IdentitiesFile
from holdfast.instant import calendar_seconds, now_seconds
from holdfast.master.access.identity_upkeep import IdentityUpkeep
from holdfast.master.server import RpcServer
from holdfast.messages.requests import Exists, Hello, Presence
from holdfast.transport.async_channel import AsyncChannel
from tests.identity.test_identities_file import entry, written
from tests.master.access.test_permissions import leading

TWO = entry("trainer", token="old") + entry("router", token="other", more="not_after = 2099-01-01")


class House:
    """A server whose identities come from a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = IdentitiesFile(written(path, TWO))
        self.server: RpcServer = leading(self.file.identities)
        self.upkeep = IdentityUpkeep(self.file, self.server)
        self.address = ""

    async def look(self, now: float | None = None) -> None:
        """As often as a change takes to count."""
        for _ in range(2):
            await self.upkeep.look(calendar_seconds() if now is None else now)

    async def open(self, token: str, client: int = 5) -> AsyncChannel:
        return await AsyncChannel.open(
            self.address, Hello(client, token, client_key=client.to_bytes(16, "little")), now_seconds() + 20
        )


async def ask(channel: AsyncChannel) -> object:
    return await channel.call(Exists(["one"]), now_seconds() + 20)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path / "ids")
    host, port = await house.server.start("127.0.0.1", 0)
    house.address = f"{host}:{port}"
    yield house
    await house.server.stop()


async def test_a_withdrawn_identity_loses_its_connections_and_the_others_go_on(house: House) -> None:
    gone, stays = await house.open("old"), await house.open("other", 6)
    written(house.path, entry("router", token="other", more="not_after = 2099-01-01"))
    await house.look()
    with pytest.raises(HoldfastError):
        await ask(gone)
    assert isinstance(await ask(stays), Presence)
    with pytest.raises(NotAuthorized):
        await house.open("old")
    stays.close()


async def test_a_token_is_rotated_without_a_broken_connection(house: House) -> None:
    old = await house.open("old")
    both = TWO + entry("trainer", token="new")
    written(house.path, both)
    await house.look()
    assert isinstance(await ask(old), Presence)
    new = await house.open("new", 6)
    written(house.path, both.replace(hash_of("old"), hash_of("never given")))
    await house.look()
    assert isinstance(await ask(new), Presence)
    with pytest.raises(HoldfastError):
        await ask(old)
    new.close()


async def test_changed_roles_count_at_once_by_a_new_connection(house: House) -> None:
    channel = await house.open("old")
    written(house.path, entry("trainer", roles='["node"]', token="old"))
    await house.look()
    with pytest.raises(HoldfastError):
        await ask(channel)
    channel = await house.open("old")
    assert getattr(await ask(channel), "code", "") == "not_allowed"
    channel.close()


async def test_an_identity_that_expires_loses_its_connections(house: House) -> None:
    ends, stays = await house.open("other"), await house.open("old", 6)
    at = house.file.identities.next_end(calendar_seconds())
    await house.look(at - 1)
    assert isinstance(await ask(ends), Presence)
    await house.look(at)
    with pytest.raises(HoldfastError):
        await ask(ends)
    assert isinstance(await ask(stays), Presence)
    stays.close()


async def test_a_wrong_new_file_costs_nobody_the_connection(house: House) -> None:
    channel = await house.open("old")
    written(house.path, entry("trainer", roles='["king"]', token="old"))
    await house.look()
    assert "roles must be" in house.server.identities.fault
    assert isinstance(await ask(channel), Presence)
    assert isinstance(await ask(await house.open("other", 6)), Presence)
    written(house.path, TWO)
    await house.look()
    assert house.server.identities.fault == ""
    channel.close()
