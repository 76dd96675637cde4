"""TLS between hosts: RPC and data, blocking and asyncio, by certificates of openssl's; and who is turned away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from holdfast.addresses import split_address
from holdfast.transport.certificate_files import take_identity
from holdfast.transport.tls import client_context
from tests.certificates import HALF_HELLO
from tests.e2e.rig import Rig, raw_connection
from tests.waiting import run_together, wait_until

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
CROWD = 150
"""At each port: more than may be strangers at the data port (64), and more than HTTP has places (128)."""


def openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def make_authority(folder: Path, name: str) -> Path:
    openssl("req", "-x509", *KEY, "-nodes", "-days", 2, "-subj", f"/CN={name}", "-keyout",
            folder / f"{name}.key", "-out", folder / f"{name}.pem")  # fmt: skip
    return folder / f"{name}.pem"


def sign(folder: Path, authority: str, name: str, host: str) -> tuple[Path, Path]:
    """A certificate for this host, and its key."""
    key, asked, cert, names = (folder / f"{name}.{kind}" for kind in ("key", "csr", "pem", "names"))
    names.write_text(f"subjectAltName=IP:{host}\n")
    openssl("req", *KEY, "-nodes", "-subj", f"/CN={name}", "-keyout", key, "-out", asked)
    openssl("x509", "-req", "-in", asked, "-CA", folder / f"{authority}.pem", "-CAkey", folder / f"{authority}.key",
            "-CAcreateserial", "-days", 2, "-extfile", names, "-out", cert)  # fmt: skip
    return cert, key


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    make_authority(made, "ours")
    make_authority(made, "theirs")
    sign(made, "ours", "server", "127.0.0.1")
    sign(made, "ours", "client", "127.0.0.1")
    sign(made, "theirs", "stranger", "127.0.0.1")
    return made


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Rig]:
    with pytest.MonkeyPatch.context() as patch:
        # As an operator would, for masters and nodes alike.
        patch.setenv("HOLDFAST_TLS_CERT", str(folder / "server.pem"))
        patch.setenv("HOLDFAST_TLS_KEY", str(folder / "server.key"))
        patch.setenv("HOLDFAST_TLS_CA", str(folder / "ours.pem"))
        patch.setenv("HOLDFAST_TLS_ASK_CLIENTS", "true")
        with Rig("64MiB", masters=2, coordination="sqlite") as rig:
            yield rig


@pytest.fixture
def ours(folder: Path) -> ssl.SSLContext:
    return client_context(folder / "ours.pem", folder / "client.pem", folder / "client.key")


@pytest.mark.parametrize("shared_memory", [True, False])
def test_objects_go_there_and_back(cluster: Rig, ours: ssl.SSLContext, shared_memory: bool) -> None:
    large = os.urandom(5 << 20)
    with cluster.connect(tls=ours, shared_memory=shared_memory) as cache:
        assert cache.put(f"large {shared_memory}", large)
        assert cache.put_many({f"{shared_memory} {number}": bytes([number]) * 1000 for number in range(100)}) == 100
    with cluster.connect(tls=ours, shared_memory=shared_memory) as cache:
        assert cache.get(f"large {shared_memory}") == large
        found = cache.get_many([f"{shared_memory} {number}" for number in range(100)])
        assert [value[0] for value in found.values()] == list(range(100))
        into = bytearray(len(large))
        assert cache.get_into(f"large {shared_memory}", into) == len(large)
        assert into == large


def test_many_threads_share_one_encrypted_connection(cluster: Rig, ours: ssl.SSLContext) -> None:
    """I10: one reads while others write, and each gets its own answer."""
    wrong: list[object] = []
    with cluster.connect(tls=ours, shared_memory=False) as cache:

        def work(who: int) -> None:
            for number in range(30):
                key = f"thread/{who}/{number}"
                value = f"{who} {number} ".encode() * 200
                if not cache.put(key, value) or cache.get(key) != value or not all(cache.exists_many([key] * 300)):
                    wrong.append(key)

        threads = [threading.Thread(target=work, args=(who,)) for who in range(6)]
        run_together(threads, 120)
    assert not wrong


async def test_asyncio_speaks_it_too(cluster: Rig, ours: ssl.SSLContext) -> None:
    async with holdfast.connect_async(cluster.address, tls=ours, shared_memory=False) as cache:
        await asyncio.gather(*(cache.put(f"async/{number}", b"x" * 100_000) for number in range(20)))
        assert await cache.get("async/7") == b"x" * 100_000


def status_of(where: str, context: ssl.SSLContext) -> int:
    try:
        with urllib.request.urlopen(where, timeout=30, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_http_is_encrypted_and_asks_for_the_same_certificates(cluster: Rig, folder: Path) -> None:
    http = f"https://{cluster.masters['master-0'][1]['http']}"
    nobody = client_context(folder / "ours.pem", None, None)
    known = client_context(folder / "ours.pem", folder / "client.pem", folder / "client.key")
    assert status_of(f"{http}/healthz", nobody) == 200
    assert status_of(f"{http}/metrics", nobody) == 401
    assert status_of(f"{http}/metrics", known) == 200
    with pytest.raises(OSError, match=r"refused|reset|closed|disconnected|EOF|status line"):
        urllib.request.urlopen(http.replace("https", "http") + "/healthz", timeout=30)


def test_a_primary_that_dies_is_followed_by_one_that_is_verified_as_well(cluster: Rig, ours: ssl.SSLContext) -> None:
    with cluster.connect(tls=ours) as cache:
        cache.put("before", b"kept")
        leader = cache.status().name
        cluster.kill(cluster.masters[leader][0])
        assert cache.get("before") == b"kept"
        assert cache.put("after", b"stored")
        # The one that was started again speaks TLS, too, and can take over.
        again = cluster.start_master(leader)["http"]
        assert status_of(f"https://{again}/readyz", ours) in (200, 503)
        other = cache.status().name
        assert other != leader
        cluster.kill(cluster.masters[other][0])
        assert cache.get("before") == b"kept"
        assert cache.status().name == leader
    cluster.start_master(other)


@pytest.mark.parametrize("name", ["", "stranger"])
def test_whoever_shows_no_certificate_of_ours_is_turned_away(cluster: Rig, folder: Path, name: str) -> None:
    cert, key = (folder / f"{name}.pem", folder / f"{name}.key") if name else (None, None)
    context = client_context(folder / "ours.pem", cert, key)
    with pytest.raises(errors.Unreachable):
        cluster.connect(tls=context, timeout=3)


def test_a_master_with_anothers_certificate_is_not_believed(cluster: Rig, folder: Path) -> None:
    context = client_context(folder / "theirs.pem", folder / "client.pem", folder / "client.key")
    with pytest.raises(errors.Unreachable, match="certificate verify failed"):
        cluster.connect(tls=context, timeout=3)


def test_a_client_with_an_authority_trusts_no_other(folder: Path) -> None:
    """Not those of the system, any of which can be talked into a certificate."""
    assert client_context(folder / "ours.pem", None, None).cert_store_stats()["x509_ca"] == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(folder / "theirs.pem"))
        patch.setenv("SSL_CERT_DIR", str(folder / "nowhere"))
        assert client_context(None, None, None).cert_store_stats()["x509_ca"] == 1


def test_a_client_without_tls_gets_no_answer_and_the_master_lives(cluster: Rig, ours: ssl.SSLContext) -> None:
    """I10, and bad input harms nobody."""
    with pytest.raises(errors.Unreachable):
        holdfast.connect(cluster.address, timeout=2)
    with raw_connection(cluster.masters["master-0"][1]["address"]) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while raw.recv(4096):
            pass
    with cluster.connect(tls=ours) as cache:
        assert cache.status().role == "primary"


def test_what_cannot_be_used_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.BadValue, match=r"nowhere\.pem"):
        client_context(tmp_path / "nowhere.pem", None, None)
    with pytest.raises(errors.BadValue, match="cannot be used"):
        take_identity(folder / "server.pem", folder / "client.key", None, False)
    with pytest.raises(errors.BadValue, match="tls_cert"):
        take_identity(None, None, folder / "ours.pem", False)
    with pytest.raises(TypeError, match="SSLContext"):
        holdfast.connect("127.0.0.1:1", tls=True)  # type: ignore[arg-type]


def serial_at(place: str, context: ssl.SSLContext) -> str:
    """The certificate that is shown there to new connections."""
    plain = socket.create_connection(split_address(place), timeout=60)
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as stream:
        shown = stream.getpeercert()
        assert shown is not None
        return str(shown["serialNumber"])


def test_a_new_certificate_is_taken_without_a_restart(cluster: Rig, folder: Path, ours: ssl.SSLContext) -> None:
    """Nobody's connection ends, and the node keeps its memory."""
    with cluster.connect(tls=ours, shared_memory=False) as cache:
        cache.put("kept", b"as it was")
        [node] = cache.nodes().nodes
        places = [place for _, facts in cluster.masters.values() for place in (facts["address"], facts["http"])]
        places.append(node.data_address)
        [old] = {serial_at(place, ours) for place in places}
        sign(folder, "ours", "server", "127.0.0.1")
        wait_until(lambda: old not in {serial_at(place, ours) for place in places}, 60, "all show the new one")
        assert cache.get("kept") == b"as it was"
        with cluster.connect(tls=ours, shared_memory=False) as other:
            assert other.get("kept") == b"as it was"
            assert other.nodes().nodes[0].boot == node.boot


@pytest.fixture
def held() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def test_a_crowd_in_handshakes_keeps_nobody_out_and_goes(
    cluster: Rig, ours: ssl.SSLContext, held: contextlib.ExitStack
) -> None:
    """I10, I17: at the masters' RPC ports, at the data port of the node and at HTTP, all at once."""
    large = os.urandom(1 << 20)
    with cluster.connect(tls=ours) as cache:
        [node] = cache.nodes().nodes
    places = [place for _, facts in cluster.masters.values() for place in (facts["address"], facts["http"])]
    crowd = []
    for place in [*places, node.data_address]:
        for number in range(CROWD):
            crowd.append(held.enter_context(socket.create_connection(split_address(place), timeout=60)))
            with contextlib.suppress(OSError):  # It may have been displaced already.
                crowd[-1].sendall(HALF_HELLO[: len(HALF_HELLO) * (number % 2)])
    with cluster.connect(tls=ours, shared_memory=False) as cache:
        assert cache.put("beside a crowd", large)
        assert cache.get("beside a crowd") == large
    for _, facts in cluster.masters.values():
        wait_until(lambda http=facts["http"]: status_of(f"https://{http}/healthz", ours) == 200, 60, "a probe")
    for one in crowd:
        with contextlib.suppress(ConnectionError):
            while one.recv(4096):
                pass
    with cluster.connect(tls=ours, shared_memory=False) as cache:
        assert cache.get("beside a crowd") == large
