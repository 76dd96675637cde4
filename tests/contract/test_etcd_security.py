"""etcd with users, passwords and TLS: what the URL says is what is used, and a wrong one is named."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.coordination.backends import open_coordination
from holdfast.coordination.etcd.backend import EtcdCoordination
from holdfast.coordination.interface import CoordinationLost, Leader, Term
from holdfast.coordination.leader_lookup import find_leader
from holdfast.errors import BadValue, NotAuthorized
from tests.contract import servers
from tests.contract.servers import Server
from tests.contract.stories import append_all, read_log, soon
from tests.ports import free_ports


@pytest_asyncio.fixture
async def guarded_etcd(tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.guarded_etcd(tmp_path / "guarded", "p&ss word") as server:
        yield server


def address_of(server: Server) -> str:
    return f"etcd://127.0.0.1:{server.port}/c"


def with_password(server: Server) -> str:
    return f"{address_of(server)}?user=root&password=p%26ss%20word"


@pytest_asyncio.fixture
async def expired(guarded_etcd: Server) -> AsyncIterator[tuple[EtcdCoordination, Term]]:
    """A leader with one batch in the log, whose token has just run out."""
    coordination = await open_coordination(with_password(guarded_etcd))
    assert isinstance(coordination, EtcdCoordination)
    try:
        term = await soon(coordination.campaign("one:7070"))
        await append_all(term, 1, [b"a"])
        coordination.channel._token = "this one ran out"
        yield coordination, term
    finally:
        await coordination.close()


async def test_user_and_password_are_used_and_a_token_that_ran_out_is_renewed(
    guarded_etcd: Server, expired: tuple[EtcdCoordination, Term]
) -> None:
    coordination, term = expired
    await append_all(term, 2, [b"b"])
    assert await read_log(coordination, 0, 2) == [(1, b"a"), (2, b"b")]
    assert await asyncio.to_thread(find_leader, with_password(guarded_etcd), 5.0) == Leader(1, "one:7070")
    where = address_of(guarded_etcd)
    for wrong in (where, f"{where}?user=root&password=guessed"):
        with pytest.raises(NotAuthorized):
            await open_coordination(wrong)
        with pytest.raises(NotAuthorized):
            await asyncio.to_thread(find_leader, wrong, 5.0)


async def test_requests_that_meet_the_end_of_a_token_together_all_go_on(
    expired: tuple[EtcdCoordination, Term],
) -> None:
    coordination, _ = expired
    found = await soon(asyncio.gather(*(read_log(coordination, 0, 1) for _ in range(8))))
    assert found == [[(1, b"a")]] * 8


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for this machine that is its own authority."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=holdfast"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return cert, key


@pytest.fixture
def tls_etcd(tmp_path: Path, certificate: tuple[Path, Path]) -> Iterator[Server]:
    cert, key = certificate
    client, peer, metrics = free_ports(3)
    where = f"https://127.0.0.1:{client}"
    peers = f"http://127.0.0.1:{peer}"
    command = [
        *("etcd", "--name", "one", "--data-dir", str(tmp_path / "data"), "--initial-cluster", f"one={peers}"),
        *("--listen-client-urls", where, "--advertise-client-urls", where),
        *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
        *("--listen-metrics-urls", f"http://127.0.0.1:{metrics}"),
        *("--cert-file", str(cert), "--key-file", str(key), "--trusted-ca-file", str(cert), "--client-cert-auth"),
    ]
    server = Server(command, tmp_path, metrics, (b"GET /health HTTP/1.0\r\n\r\n", b"true"))
    try:
        server.wait_until_it_serves()
        server.port = client
        yield server
    finally:
        server.end()


async def test_tls_is_spoken_and_both_sides_are_known_by_their_certificates(
    tls_etcd: Server, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    where = f"etcd://127.0.0.1:{tls_etcd.port}/c"
    url = f"{where}?ca={cert}&cert={cert}&key={key}"
    coordination = await open_coordination(url)
    try:
        term = await soon(coordination.campaign("one:7070"))
        await append_all(term, 1, [b"a"])
        assert await asyncio.to_thread(find_leader, url, 5.0) == Leader(1, "one:7070")
        for wrong in (where, f"{where}?ca={cert}"):
            with pytest.raises(CoordinationLost):
                await open_coordination(wrong, leader_ttl_ms=1500)
        with pytest.raises(BadValue, match="cannot read ca="):
            await open_coordination(f"{where}?ca={cert}.missing")
    finally:
        await coordination.close()


async def test_the_password_of_etcd_comes_from_a_file_and_counts_from_the_next_login_on(
    guarded_etcd: Server, tmp_path: Path
) -> None:
    path = tmp_path / "password"
    path.touch(mode=0o600)
    path.write_text("p&ss word\n")
    url = f"{address_of(guarded_etcd)}?user=root&password_file={path}"
    coordination = await open_coordination(url)
    try:
        term = await soon(coordination.campaign("one:7070"))
        assert find_leader(url, 10) == Leader(term.epoch, "one:7070")
        path.write_text("another")
        with pytest.raises(NotAuthorized) as told:
            find_leader(url, 10)
        assert "another" not in str(told.value)
    finally:
        await coordination.close()
