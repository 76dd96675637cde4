"""A certificate stands for a token over RPC, without being asked of everybody (ADR 45)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.errors import NotAuthorized, Unreachable
from holdfast.identity.identities import Entry, Identities, Identity, hash_of
from holdfast.identity.roles import Role, with_included
from holdfast.instant import now_seconds
from holdfast.master.server import RpcServer
from holdfast.messages.hello import fresh_hello
from holdfast.messages.requests import Exists, Presence, Welcome
from holdfast.transport.async_channel import AsyncChannel
from holdfast.transport.certificate_files import CertificateFiles
from holdfast.transport.tls import speak_as
from tests.certificates import certified, dialing
from tests.master.access.test_permissions import leading

READER = Identity("app", with_included([Role.READER]))
IDENTITIES = Identities([Entry(READER, (hash_of("its token"),), ("app",))])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certified(tmp_path_factory.mktemp("certificates"), "app", "unlisted")


@pytest.fixture
async def address(folder: Path) -> AsyncIterator[str]:
    files = CertificateFiles(folder / "server.pem", folder / "server.key", folder / "ca.pem", False, True)
    speak_as(None)
    server: RpcServer = leading(IDENTITIES)
    host, port = await server.start("127.0.0.1", 0, files.server)
    yield f"{host}:{port}"
    await server.stop()


async def welcomed(address: str, folder: Path, name: str, token: str = "") -> Welcome:
    channel = await AsyncChannel.open(address, fresh_hello(token), now_seconds() + 60, tls=dialing(folder, name))
    assert isinstance(await channel.call(Exists(["k"]), now_seconds() + 60), Presence)
    channel.close()
    return channel.welcome


async def test_some_show_a_certificate_and_others_a_token(address: str, folder: Path) -> None:
    """Who showed a certificate is not sent to the Unix socket, where it could show none."""
    assert (await welcomed(address, folder, "app")).local == ""
    for name in ("", "app", "unlisted"):
        assert (await welcomed(address, folder, name, "its token")).local != ""


@pytest.mark.parametrize(("name", "token"), [("", ""), ("unlisted", ""), ("app", "a wrong one")])
async def test_who_shows_neither_is_not_let_in(address: str, folder: Path, name: str, token: str) -> None:
    """A wrong token is not made good by a certificate."""
    with pytest.raises(NotAuthorized):
        await welcomed(address, folder, name, token)


async def test_a_certificate_of_another_authority_is_nobodys(address: str, folder: Path, tmp_path: Path) -> None:
    theirs = certified(tmp_path / "theirs", "app")
    context = dialing(folder)
    context.load_cert_chain(theirs / "app.pem", theirs / "app.key")
    with pytest.raises(Unreachable):
        await AsyncChannel.open(address, fresh_hello("its token"), now_seconds() + 60, tls=context)
