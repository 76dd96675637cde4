"""Certificates for tests that need TLS: an authority, a server on this machine, and clients by name."""

from __future__ import annotations

import ssl
from pathlib import Path

from holdfast.identity.certificates import NewCertificate, make_authority, sign
from holdfast.transport.certificate_files import ContextSource
from holdfast.transport.tls import client_context, server_context

HALF_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(20)
"""The beginning of a ClientHello of 200 bytes."""


def certified(folder: Path, *clients: str) -> Path:
    make_authority(folder, "ours", 30)
    sign(folder, NewCertificate("server", ["127.0.0.1", "localhost"], is_server=True))
    for name in clients:
        sign(folder, NewCertificate(name))
    return folder


def serving(folder: Path) -> ContextSource:
    context = server_context(folder / "server.pem", folder / "server.key", folder / "ca.pem", asks_clients=False)
    return lambda: context


def dialing(folder: Path, name: str = "") -> ssl.SSLContext:
    shown = (folder / f"{name}.pem", folder / f"{name}.key") if name else (None, None)
    return client_context(folder / "ca.pem", *shown)
