"""An authority of one's own, and the certificates that it signs, made by the `openssl` program (ADR 52).

The life of a certificate:

1. A key (P-256) is drawn in a directory that nobody else can enter, beside the place where it will lie.
2. The authority signs what is asked for: names and addresses for a server, the right to be a client only for a client,
   so that the certificate of an application cannot stand for a master.
3. Key and certificate get their names, the key first and readable by its user alone. Files that exist stay, unless
   that is insisted on.

Python's own library uses certificates and makes none.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from holdfast.entropy import fresh_bytes
from holdfast.errors import BadValue, Refused
from holdfast.identity.identities_file import NAME

AUTHORITY = "ca"
"""The name of the authority's two files."""
SERIAL_BYTES = 16
MOST_DAYS = 36_500
HOST = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*")
MOST_HOST = 253
OPENSSL_SECONDS = 60.0
GIVEN = "-new -key new.key -config configuration -sha256"

CONFIGURATION = """
[req]
prompt = no
distinguished_name = subject
[subject]
CN = {name}
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[signed]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = {usage}
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


class CertificateNotMade(Refused):
    """No certificate was made, and no file was changed."""


@dataclass(frozen=True, slots=True)
class NewCertificate:
    name: str
    """The common name, and the name of its files."""
    hosts: Sequence[str] = ()
    """Names and addresses as others dial them."""
    is_server: bool = False
    """Masters and nodes: they are clients of each other, too."""
    days: int = 365

    def configuration(self) -> str:
        check(self.name, self.days)
        usage = "serverAuth, clientAuth" if self.is_server else "clientAuth"
        text = CONFIGURATION.format(name=self.name, usage=usage)
        if self.hosts:
            text += "subjectAltName = @hosts\n[hosts]\n"
        return text + "".join(f"{_kind(host)}.{number} = {host}\n" for number, host in enumerate(self.hosts))


def check(name: str, days: int) -> None:
    if not NAME.fullmatch(name) or name == AUTHORITY:
        raise BadValue(
            f"{name!r} is no name for a certificate: up to 63 letters, digits, dots, dashes and underscores, and not "
            f"{AUTHORITY!r}, which is the authority's; nothing was written"
        )
    if not 0 < days <= MOST_DAYS:
        raise BadValue(f"a certificate is for 1 to {MOST_DAYS:,} days, not {days:,}; nothing was written")


def _kind(host: str) -> str:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return "IP"
    if len(host) > MOST_HOST or not HOST.fullmatch(host):
        raise BadValue(f"{host!r} is no address and no host name; give it without a port. Nothing was written")
    return "DNS"


def make_authority(directory: Path, name: str, days: int, force: bool = False) -> list[Path]:
    """A new authority. The files that were written: certificate and key."""
    check(name, days)
    with _Workshop(directory, AUTHORITY, force) as workshop:
        workshop.draw_key(CONFIGURATION.format(name=name, usage="clientAuth"))
        workshop.run(f"req -x509 {GIVEN} -extensions authority -days {days} -set_serial {_serial()} -out new.pem")
        return workshop.deliver()


def sign(directory: Path, wanted: NewCertificate, force: bool = False) -> list[Path]:
    """A certificate of the directory's authority. The files that were written: certificate and key."""
    text = wanted.configuration()
    ca, ca_key = _files(directory, AUTHORITY)
    for needed in (ca, ca_key):
        if not needed.exists():
            raise CertificateNotMade(
                f"{needed} is missing, so that nobody can sign; nothing was written. Make an authority first "
                "(holdfast certificates authority), or say where it is (--directory)"
            )
    with _Workshop(directory, wanted.name, force) as workshop:
        workshop.draw_key(text)
        workshop.run(f"req {GIVEN} -out request")
        settings = f"-extfile configuration -extensions signed -days {wanted.days} -set_serial {_serial()}"
        workshop.run(
            f"x509 -req -in request -sha256 {settings} -out new.pem", "-CA", ca.resolve(), "-CAkey", ca_key.resolve()
        )
        return workshop.deliver()


def _files(directory: Path, name: str) -> tuple[Path, Path]:
    return directory / f"{name}.pem", directory / f"{name}.key"


def _serial() -> str:
    """Random, so that no counter must be kept; positive, and of no more bytes than the standard allows."""
    return f"0x{int.from_bytes(fresh_bytes(SERIAL_BYTES)) | 1:x}"


class _Workshop:
    """A directory inside the target's for files that are not complete."""

    def __init__(self, directory: Path, name: str, force: bool) -> None:
        self._directory = directory
        self._wanted = _files(directory, name)
        self._force = force

    def __enter__(self) -> Self:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._force:
            self._refuse_existing()
        self._temporary = tempfile.TemporaryDirectory(prefix=".new-", dir=self._directory)
        self._folder = Path(self._temporary.name)
        self._cert, self._key = _files(self._folder, "new")
        return self

    def __exit__(self, *_: object) -> None:
        self._temporary.cleanup()

    def _refuse_existing(self) -> None:
        for path in self._wanted:
            if path.exists() or path.is_symlink():
                raise CertificateNotMade(f"{path} exists already; nothing was written. Insist with --force")

    def draw_key(self, configuration: str) -> None:
        (self._folder / "configuration").write_text(configuration)
        self.run("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out new.key")
        self._key.chmod(0o600)

    def run(self, command: str, *more: object) -> None:
        """Run openssl in this directory, with these words and paths."""
        arguments = [*command.split(), *map(str, more)]
        try:
            done = subprocess.run(
                ["openssl", *arguments],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=OPENSSL_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            raise CertificateNotMade(
                "the program openssl is not installed here; nothing was written. On Debian: apt-get install openssl"
            ) from None
        except subprocess.TimeoutExpired:
            raise CertificateNotMade(f"openssl {arguments[0]} did not end; nothing was written") from None
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.strip()] or ["it did not say why"]
            raise CertificateNotMade(f"openssl {arguments[0]} failed: {said[-1]}; nothing was written")

    def deliver(self) -> list[Path]:
        """Give the files their names; without force, only if nobody else has used them meanwhile."""
        self._cert.chmod(0o644)
        cert, key = self._wanted
        if self._force:
            self._key.replace(key)
            self._cert.replace(cert)
            return [cert, key]
        try:
            os.link(self._key, key)
            try:
                os.link(self._cert, cert)
            except FileExistsError:
                key.unlink()
                raise
        except FileExistsError:
            self._refuse_existing()
            raise
        return [cert, key]
