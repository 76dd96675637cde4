"""Contexts that follow the files of a certificate: new ones are taken, half ones and wrong ones are not."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import BadValue
from holdfast.identity.certificates import NewCertificate, make_authority, sign
from holdfast.transport import tls
from holdfast.transport.certificate_files import CertificateFiles, take_identity
from tests.certificates import certified


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return certified(tmp_path / "certificates")


@pytest.fixture
def files(folder: Path) -> Iterator[CertificateFiles]:
    made = take_identity(folder / "server.pem", folder / "server.key", folder / "ca.pem", False)
    assert made is not None
    yield made
    tls.speak_as(None)


def contexts(files: CertificateFiles) -> list[ssl.SSLContext | None]:
    return [files.server(), files.http(), tls.dialing()]


def renew(folder: Path) -> None:
    sign(folder, NewCertificate("server", ["127.0.0.1"], is_server=True), force=True)


def test_a_new_certificate_gives_new_contexts_for_all_that_is_said(files: CertificateFiles, folder: Path) -> None:
    before = contexts(files)
    files.look()
    assert contexts(files) == before
    renew(folder)
    files.look()
    assert contexts(files) == before, "it may be half written: it must stand for a look"
    files.look()
    after = contexts(files)
    assert not set(map(id, before)) & set(map(id, after))
    files.look()
    assert contexts(files) == after


def test_a_new_authority_is_trusted_too(files: CertificateFiles, folder: Path, tmp_path: Path) -> None:
    make_authority(tmp_path / "other", "theirs", 30)
    both = (folder / "ca.pem").read_bytes() + (tmp_path / "other" / "ca.pem").read_bytes()
    (folder / "ca.pem").write_bytes(both)
    for _ in range(2):
        files.look()
    dialing = tls.dialing()
    assert dialing is not None
    assert dialing.cert_store_stats()["x509_ca"] == 2


@pytest.mark.parametrize("name", ["server.pem", "server.key", "ca.pem"])
def test_what_cannot_be_used_changes_nothing_and_is_told_once(
    files: CertificateFiles, folder: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, good = contexts(files), (folder / name).read_bytes()
    for spoiled in (b"", good[:40], None):
        caplog.clear()
        (folder / name).write_bytes(spoiled) if spoiled is not None else (folder / name).unlink()
        with caplog.at_level(logging.INFO, "holdfast.tls"):
            for _ in range(4):
                files.look()
        assert contexts(files) == before
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "the former one stays in use" in caplog.text
    (folder / name).write_bytes(good)
    for _ in range(2):
        files.look()
    assert contexts(files) != before


def test_a_key_of_another_certificate_is_not_used(files: CertificateFiles, folder: Path) -> None:
    before, old = contexts(files), (folder / "server.key").read_bytes()
    renew(folder)
    (folder / "server.key").write_bytes(old)
    for _ in range(3):
        files.look()
    assert contexts(files) == before


def test_a_process_does_not_begin_with_files_that_cannot_be_used(folder: Path) -> None:
    (folder / "server.pem").write_bytes(b"")
    with pytest.raises(BadValue, match=r"server\.pem"):
        take_identity(folder / "server.pem", folder / "server.key", folder / "ca.pem", False)
    assert tls.dialing() is None
