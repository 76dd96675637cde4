"""The certificate, key and authority of a process, and contexts made of them, which follow their files.

A certificate ends after a year or so, and a node that had to be restarted for a new one would lose its memory. So the
files are looked at once a second. What is in them counts for connections that begin from then on; those that are open
stay. A context that connections are made of is never changed, which OpenSSL forbids while other threads use it: another
one takes its place. Files that cannot be used, or that are still being written, change nothing.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from holdfast.errors import BadValue
from holdfast.transport.tls import client_context, http_context, server_context, speak_as

LOOK_SECONDS = 1.0

log = logging.getLogger("holdfast.tls")

ContextSource: TypeAlias = Callable[[], ssl.SSLContext]
"""Gives the context for the next connection."""

Stamp = tuple[int, int, int, int]


class CertificateFiles:
    """What a master or a node presents and trusts now. BadValue at the beginning if the files cannot be used."""

    def __init__(self, cert: Path, key: Path | None, ca: Path | None, asks_clients: bool, knows_clients: bool) -> None:
        self._cert, self._key, self._ca = cert, key, ca
        self._asks_clients = asks_clients
        self._knows_clients = knows_clients
        self._used = self._seen = self._stamps()
        self._read()

    def _read(self) -> None:
        server = server_context(self._cert, self._key, self._ca, self._asks_clients, self._knows_clients)
        http = http_context(self._cert, self._key, self._ca)
        speak_as(client_context(self._ca, self._cert, self._key))
        self._server, self._http = server, http

    def server(self) -> ssl.SSLContext:
        """For RPC and for bytes."""
        return self._server

    def http(self) -> ssl.SSLContext:
        return self._http

    def look(self) -> None:
        """Use what is in the files now, if that is new and has been the same since the last look."""
        before, self._seen = self._seen, self._stamps()
        if self._seen != before or self._seen == self._used:
            return
        self._used = self._seen
        try:
            self._read()
        except BadValue as error:
            log.error("the new certificate cannot be used; the former one stays in use: %s", error)
        else:
            log.info("the certificate %s was read again; new connections use it", self._cert)

    async def follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def _stamps(self) -> list[Stamp]:
        """What tells one content of the files from the next; zeros for one that is missing."""
        found = []
        for path in (self._cert, self._key, self._ca):
            try:
                seen = path.stat() if path is not None else None
            except OSError:
                seen = None
            found.append((seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns) if seen else (0, 0, 0, 0))
        return found


def take_identity(
    cert: Path | None, key: Path | None, ca: Path | None, asks_clients: bool, knows_clients: bool = False
) -> CertificateFiles | None:
    """Dial with this identity from now on. None: no certificate, no TLS."""
    if cert is None:
        if key or ca or asks_clients:
            raise BadValue("TLS needs a certificate to present (tls_cert); a key or an authority alone does nothing")
        return None
    return CertificateFiles(cert, key, ca, asks_clients, knows_clients)
