"""ZooKeeper with users, access lists and TLS: nodes are for their cluster's user alone, and a wrong user is told so."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from holdfast.coordination.backends import open_coordination
from holdfast.coordination.interface import CoordinationLost, Leader
from holdfast.coordination.leader_lookup import find_leader
from holdfast.errors import NotAuthorized
from tests.contract.servers import Server, start_zookeeper
from tests.contract.stories import append_all, read_log, soon
from tests.ports import free_ports

PASSWORD = "p&ss:word"


def password_file(folder: Path) -> Path:
    path = folder / "password"
    path.touch(mode=0o600)
    path.write_text(PASSWORD + "\n")
    return path


def url_of(server: Server, cluster: str, folder: Path, user: str = "masters", more: str = "") -> str:
    return f"zookeeper://127.0.0.1:{server.port}/{cluster}?user={user}&password_file={password_file(folder)}{more}"


async def lead(url: str) -> None:
    """A term, a batch, a published value, and the leader found by a client."""
    coordination = await open_coordination(url)
    try:
        term = await soon(coordination.campaign("one:7070"))
        last = await coordination.last_index()
        await append_all(term, last + 1, [b"a"])
        await coordination.publish("masters/x", b"one:7070", 60_000)
        assert (await read_log(coordination, last, last + 1))[-1] == (last + 1, b"a")
        assert find_leader(url, 10) == Leader(term.epoch, "one:7070")
    finally:
        await coordination.close()


def nodes_under(client: KazooClient, path: str) -> Iterator[str]:
    yield path
    for child in client.get_children(path):
        yield from nodes_under(client, f"{path}/{child}")


async def test_every_node_of_a_cluster_with_a_user_is_for_that_user_alone(
    zookeeper_server: Server, tmp_path: Path
) -> None:
    url = url_of(zookeeper_server, "guarded", tmp_path)
    coordination = await open_coordination(url)
    stranger = KazooClient(f"127.0.0.1:{zookeeper_server.port}")
    owner = KazooClient(f"127.0.0.1:{zookeeper_server.port}", auth_data=[("digest", f"masters:{PASSWORD}")])
    try:
        term = await soon(coordination.campaign("one:7070"))
        await append_all(term, 1, [b"a"])
        await coordination.publish("masters/x", b"one:7070", 60_000)
        owner.start(20)
        found = list(nodes_under(owner, "/holdfast/guarded"))
        assert {"/holdfast/guarded/leader", "/holdfast/guarded/epoch", "/holdfast/guarded/tail"} <= {*found}
        assert any(path.startswith("/holdfast/guarded/log/") for path in found)
        for path in found:
            (acl,) = owner.get_acls(path)[0]
            assert (acl.id.scheme, acl.id.id.partition(":")[0], acl.acl_list) == ("digest", "masters", ["ALL"]), path
        stranger.start(20)
        for path in found:
            with pytest.raises(NoAuthError):
                stranger.get(path)
            with pytest.raises(NoAuthError):
                stranger.set(path, b"forged")
    finally:
        for client in (stranger, owner):
            client.stop()
            client.close()
        await coordination.close()


@pytest.mark.parametrize("user", ["", "user=masters&password=wrong", "user=others&password=other"])
async def test_who_is_not_the_user_of_the_cluster_is_told_so(
    zookeeper_server: Server, tmp_path: Path, user: str
) -> None:
    wrong = f"zookeeper://127.0.0.1:{zookeeper_server.port}/asked?{user}"
    coordination = await open_coordination(url_of(zookeeper_server, "asked", tmp_path))
    try:
        await soon(coordination.campaign("one:7070"))
        with pytest.raises(NotAuthorized, match="refuses this user") as told:
            await open_coordination(wrong)
        assert "wrong" not in str(told.value)
        with pytest.raises(NotAuthorized, match="getAcl /holdfast/asked"):
            find_leader(wrong, 10)
    finally:
        await coordination.close()


async def test_clusters_of_different_users_share_a_zookeeper(zookeeper_server: Server, tmp_path: Path) -> None:
    await lead(url_of(zookeeper_server, "first", tmp_path))
    await lead(url_of(zookeeper_server, "second", tmp_path, user="others"))
    await lead(f"zookeeper://127.0.0.1:{zookeeper_server.port}/open")


async def test_nodes_that_were_made_without_a_user_are_told_of(
    zookeeper_server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await lead(f"zookeeper://127.0.0.1:{zookeeper_server.port}/older")
    with caplog.at_level(logging.WARNING):
        await lead(url_of(zookeeper_server, "older", tmp_path))
    assert "setAcl -R /holdfast/older" in caplog.text
    assert PASSWORD not in caplog.text


@contextmanager
def serving(folder: Path, config: str, *java: str) -> Iterator[Server]:
    with start_zookeeper(folder, more=config, java=java) as server:
        yield server


async def test_a_user_of_sasl_owns_its_nodes(tmp_path: Path) -> None:
    pytest.importorskip("puresasl")
    folder = tmp_path / "sasl"
    folder.mkdir()
    (folder / "jaas.conf").write_text(
        f'Server {{\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n  user_masters="{PASSWORD}";\n}};\n'
    )
    provider = "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n"
    with serving(folder, provider, f"-Djava.security.auth.login.config={folder / 'jaas.conf'}") as server:
        await lead(url_of(server, "c", tmp_path, more="&auth=sasl"))
        with pytest.raises(NotAuthorized):
            await open_coordination(f"zookeeper://127.0.0.1:{server.port}/c")
        with pytest.raises((NotAuthorized, CoordinationLost)):
            await open_coordination(f"zookeeper://127.0.0.1:{server.port}/c?user=masters&password=wrong&auth=sasl")


@pytest.fixture
def signed(tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    """Makes a certificate and key, signed by one authority, `ca.pem`."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True)

    subject = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-x509"]
    openssl("req", *subject, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")

    def sign(name: str) -> tuple[Path, Path]:
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", "csr")
        (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
        authority = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
        openssl("x509", "-req", "-in", "csr", *authority, "-out", f"{name}.pem")
        return tmp_path / f"{name}.pem", tmp_path / f"{name}.key"

    return sign


async def test_zookeeper_over_tls_with_certificates_on_both_sides(
    tmp_path: Path, signed: Callable[[str], tuple[Path, Path]]
) -> None:
    cert, key = signed("server")
    client_cert, client_key = signed("client")
    (tmp_path / "server-both.pem").write_bytes(cert.read_bytes() + key.read_bytes())
    (secure,) = free_ports(1)
    stores = f"ssl.keyStore.location={tmp_path}/server-both.pem\nssl.trustStore.location={tmp_path}/ca.pem\n"
    factory = "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
    place = f"secureClientPort={secure}\nsecureClientPortAddress=127.0.0.1\n"
    with serving(tmp_path / "tls", stores + factory + place):
        files = f"ca={tmp_path}/ca.pem&cert={client_cert}&key={client_key}"
        await lead(f"zookeeper://127.0.0.1:{secure}/c?{files}&user=masters&password_file={password_file(tmp_path)}")
        with pytest.raises(CoordinationLost):
            await open_coordination(f"zookeeper://127.0.0.1:{secure}/c?ca={tmp_path}/ca.pem")
        other_ca, _ = signed("somebody-else")
        with pytest.raises(CoordinationLost):
            await open_coordination(
                f"zookeeper://127.0.0.1:{secure}/c?ca={other_ca}&cert={client_cert}&key={client_key}"
            )
