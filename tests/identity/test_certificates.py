"""Certificates of an authority of one's own: whom they convince of what, and that no file is lost for them."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

from holdfast.errors import BadValue
from holdfast.identity import certificates
from holdfast.identity.certificates import CertificateNotMade, NewCertificate, make_authority, sign
from holdfast.transport.tls import client_context, names_in, server_context
from tests.waiting import run_together


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "certificates"
    make_authority(folder, "ours", 30)
    sign(folder, NewCertificate("server", ["127.0.0.1", "localhost", "::1", "*.nodes.example"], is_server=True))
    sign(folder, NewCertificate("app"))
    return folder


def meet(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> tuple[object, str]:
    """What the server saw of the client, and why either refused the other."""
    ours, theirs = socket.socketpair()
    seen: list[object] = []
    refused: list[str] = []

    def serve() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True) as stream:
                stream.recv(1)
                seen.append(stream.getpeercert())
        except OSError as error:
            refused.append(str(error))

    def dial() -> None:
        try:
            with client.wrap_socket(ours, server_hostname=host) as stream:
                stream.send(b"x")
        except OSError as error:
            refused.append(str(error))

    run_together([threading.Thread(target=serve), threading.Thread(target=dial)], 60)
    return seen[0] if seen else None, " ".join(refused)


def presented(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.pem", folder / f"{name}.key"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "7.nodes.example"])
def test_a_server_is_believed_at_its_hosts_and_knows_its_client_by_name(folder: Path, host: str) -> None:
    server = server_context(*presented(folder, "server"), folder / "ca.pem", asks_clients=True)
    seen, refused = meet(server, client_context(folder / "ca.pem", *presented(folder, "app")), host)
    assert refused == ""
    assert names_in(seen) == ["app"]  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["127.0.0.2", "elsewhere"])
def test_a_server_is_not_believed_elsewhere(folder: Path, host: str) -> None:
    server = server_context(*presented(folder, "server"), None, asks_clients=False)
    assert "certificate verify failed" in meet(server, client_context(folder / "ca.pem", None, None), host)[1]


def test_the_certificate_of_a_client_cannot_stand_for_a_server(folder: Path) -> None:
    """Not even with the name of the host switched off: its use is wrong."""
    posing = server_context(*presented(folder, "app"), None, asks_clients=False)
    believing = client_context(folder / "ca.pem", None, None)
    believing.check_hostname = False
    assert "certificate verify failed" in meet(posing, believing, "127.0.0.1")[1]


def test_masters_and_nodes_are_clients_of_each_other(folder: Path) -> None:
    server = server_context(*presented(folder, "server"), folder / "ca.pem", asks_clients=True)
    seen, refused = meet(server, client_context(folder / "ca.pem", *presented(folder, "server")), "localhost")
    assert (refused, names_in(seen)) == ("", ["localhost", "*.nodes.example", "server"])  # type: ignore[arg-type]


def test_a_signed_certificate_can_sign_nothing(folder: Path, tmp_path: Path) -> None:
    for kind, name in (("pem", "server"), ("key", "server")):
        (tmp_path / f"ca.{kind}").write_bytes((folder / f"{name}.{kind}").read_bytes())
    sign(tmp_path, NewCertificate("forged", ["127.0.0.1"], is_server=True))
    posing = server_context(*presented(tmp_path, "forged"), None, asks_clients=False)
    chain = tmp_path / "chain.pem"
    chain.write_bytes((tmp_path / "forged.pem").read_bytes() + (tmp_path / "ca.pem").read_bytes())
    posing.load_cert_chain(chain, tmp_path / "forged.key")
    assert "certificate verify failed" in meet(posing, client_context(folder / "ca.pem", None, None), "127.0.0.1")[1]


def test_keys_are_for_their_user_alone_and_nothing_else_is_left(folder: Path) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {f"{name}.{kind}": 0o600 if kind == "key" else 0o644
                     for name in ("ca", "server", "app") for kind in ("pem", "key")}  # fmt: skip
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_files_that_exist_stay_unless_that_is_insisted_on(tmp_path: Path) -> None:
    make_authority(tmp_path, "ours", 30)
    sign(tmp_path, NewCertificate("app"))
    before = contents(tmp_path)
    for again in (lambda: make_authority(tmp_path, "ours", 30), lambda: sign(tmp_path, NewCertificate("app"))):
        with pytest.raises(CertificateNotMade, match="exists already"):
            again()
    (tmp_path / "half.key").write_text("the only copy")
    with pytest.raises(CertificateNotMade, match=r"half\.key exists already"):
        sign(tmp_path, NewCertificate("half"))
    (tmp_path / "half.key").unlink()
    assert contents(tmp_path) == before
    sign(tmp_path, NewCertificate("app"), force=True)
    after = contents(tmp_path)
    assert {name for name in before if after[name] != before[name]} == {"app.pem", "app.key"}


def test_a_file_that_comes_meanwhile_stays_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_authority(tmp_path, "ours", 30)
    link = os.link

    def link_second(source: Path, target: Path) -> None:
        if target.name == "app.pem":
            target.write_text("another's")
        link(source, target)

    monkeypatch.setattr(certificates.os, "link", link_second)
    with pytest.raises(CertificateNotMade, match="exists already"):
        sign(tmp_path, NewCertificate("app"))
    assert (tmp_path / "app.pem").read_text() == "another's"
    assert not (tmp_path / "app.key").exists()


@pytest.mark.parametrize(
    "wanted",
    [
        NewCertificate("ca"),
        NewCertificate(""),
        NewCertificate("a/b"),
        NewCertificate("a\nCN = b"),
        NewCertificate("x", ["10.0.0.1:7070"], is_server=True),
        NewCertificate("x", ["a b"], is_server=True),
        NewCertificate("x", ["a\nbasicConstraints = CA:TRUE"], is_server=True),
        NewCertificate("x", ["a" * 254], is_server=True),
        NewCertificate("x", days=0),
        NewCertificate("x", days=36_501),
    ],
)
def test_what_makes_no_certificate_writes_nothing(folder: Path, wanted: NewCertificate) -> None:
    before = contents(folder)
    with pytest.raises(BadValue, match=r"[Nn]othing was written"):
        sign(folder, wanted)
    assert contents(folder) == before


def test_without_an_authority_or_openssl_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CertificateNotMade, match=r"ca\.pem is missing.*certificates authority"):
        sign(tmp_path, NewCertificate("app"))
    (tmp_path / "ca.pem").write_text("no certificate")
    (tmp_path / "ca.key").write_text("no key")
    with pytest.raises(CertificateNotMade, match="openssl x509 failed"):
        sign(tmp_path, NewCertificate("app"))
    assert sorted(contents(tmp_path)) == ["ca.key", "ca.pem"]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CertificateNotMade, match="apt-get install openssl"):
        make_authority(tmp_path / "new", "ours", 30)
    assert contents(tmp_path / "new") == {}
