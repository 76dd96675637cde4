"""TLS for the connections between hosts: who presents which certificate, and a stream that threads may share.

A process has one identity, so the certificates that it presents and trusts when it dials are the same for all of its
connections (`speak_as`, `certificate_files`); a client library shares its process with others, so it gets its context
per connection. Connections within a machine, over a Unix socket, are never encrypted.

The library for it is imported when it is first used: it takes longer than many a command.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.errors import BadValue
from holdfast.instant import now_seconds

if TYPE_CHECKING:
    import ssl

WRITE_BYTES = 64 << 10
"""Bytes encrypted at a time, so that a write makes some progress before it must wait."""

_dialing: ssl.SSLContext | None = None


def speak_as(context: ssl.SSLContext | None) -> None:
    """Make this the default context with which this process dials masters and nodes."""
    global _dialing
    _dialing = context


def dialing() -> ssl.SSLContext | None:
    return _dialing


def client_context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """A context that verifies the peer by this authority alone (or by the system's, if none is given), and presents a
    certificate if given."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is not None:
        _load(context, ca)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if cert is not None:
        _present(context, cert, key)
    return context


def server_context(
    cert: Path, key: Path | None, ca: Path | None, asks_clients: bool, knows_clients: bool = False
) -> ssl.SSLContext:
    """A context that presents this certificate. With `asks_clients`, clients need one that the authority signed; with
    `knows_clients` they may show one, and need not: others show a token."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _present(context, cert, key)
    if asks_clients:
        if ca is None:
            raise BadValue("asking clients for certificates needs the authority that signed them (tls_ca)")
        _load(context, ca)
        context.verify_mode = ssl.CERT_REQUIRED
    elif knows_clients and ca is not None:
        _load(context, ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def http_context(cert: Path, key: Path | None, ca: Path | None) -> ssl.SSLContext:
    """A context for HTTP with the same certificate. Clients may show one, and need not: probes have none."""
    return server_context(cert, key, ca, asks_clients=False, knows_clients=True)


def _load(context: ssl.SSLContext, ca: Path) -> None:
    try:
        context.load_verify_locations(cafile=ca)
    except OSError as error:  # ssl.SSLError is one.
        raise BadValue(f"the certificates of the authority cannot be read from {ca} ({error})") from None


def _present(context: ssl.SSLContext, cert: Path, key: Path | None) -> None:
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:  # ssl.SSLError is one.
        raise BadValue(f"the certificate {cert} with the key {key or cert} cannot be used ({error})") from None


def names_in(certificate: Mapping[str, Any] | None) -> list[str]:
    """The names of a peer's verified certificate (`getpeercert`): its DNS names and URIs, then its common name."""
    if not certificate:
        return []
    alternatives = [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")]
    subject = [value for names in certificate.get("subject", ()) for kind, value in names if kind == "commonName"]
    return list(dict.fromkeys([*alternatives, *map(str, subject)]))


def dialled(stream: socket.socket, context: ssl.SSLContext, host: str, timeout: float) -> TlsStream:
    """The encrypted stream of a connected socket, with the peer verified; OSError (ssl.SSLError is one) if it cannot
    be."""
    stream.settimeout(timeout)
    return TlsStream(context.wrap_socket(stream, server_hostname=host))


def accepted(stream: socket.socket, context: ssl.SSLContext) -> TlsStream:
    """The encrypted stream of an accepted socket, before its handshake."""
    return TlsStream(context.wrap_socket(stream, server_side=True, do_handshake_on_connect=False))


class TlsStream:
    """An encrypted stream that behaves like a blocking socket with `SO_RCVTIMEO` and `SO_SNDTIMEO`.

    One thread may read while another writes, which the library's own sockets do not allow: each step runs under a lock
    and never blocks; threads wait outside of it.
    """

    def __init__(self, stream: ssl.SSLSocket) -> None:
        import ssl

        self._wants_read, self._wants_write = ssl.SSLWantReadError, ssl.SSLWantWriteError
        stream.setblocking(False)
        self._stream = stream
        self._lock = threading.Lock()
        self._waits = {socket.SO_RCVTIMEO: 0.0, socket.SO_SNDTIMEO: 0.0}
        """Seconds; 0: for ever."""

    def shake_hands(self, until: float) -> None:
        """Finish the handshake; OSError if it fails or takes longer. `shutdown` by another thread ends it."""

        def step() -> int:
            if now_seconds() >= until:  # Not one byte after the other, for ever.
                raise TimeoutError("the handshake took too long")
            self._stream.do_handshake()
            return 0

        self._repeat(step, until)

    def recv_into(self, target: memoryview, count: int = 0, flags: int = 0) -> int:
        """Some bytes; 0 at the end. BlockingIOError: none came in time."""
        return self._when_ready(lambda: self._stream.recv_into(target, count or None), socket.SO_RCVTIMEO, flags)

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:
        """How many bytes were sent. BlockingIOError: none in time; then only the same bytes may be sent next."""
        piece = memoryview(data)[:WRITE_BYTES]
        return self._when_ready(lambda: self._stream.send(piece), socket.SO_SNDTIMEO, flags)

    def _when_ready(self, act: Callable[[], int], option: int, flags: int) -> int:
        return self._repeat(act, self._until(option), flags)

    def _repeat(self, act: Callable[[], int], until: float, flags: int = 0) -> int:
        """Do one step, again when it can go on; to receive or send something TLS may have to do the other first."""
        while True:
            with self._lock:
                try:
                    return act()
                except self._wants_read:
                    event = select.POLLIN
                except self._wants_write:
                    event = select.POLLOUT
            self._wait(event, until, flags)

    def sendall(self, data: bytes | memoryview, flags: int = 0) -> None:
        left = memoryview(data)
        while left.nbytes:
            left = left[self.send(left, flags) :]

    def pending(self) -> bool:
        """Are there bytes that were already read from the kernel?"""
        with self._lock:
            return self._stream.pending() > 0

    def _until(self, option: int) -> float:
        seconds = self._waits[option]
        return now_seconds() + seconds if seconds else 0.0

    def _wait(self, event: int, until: float, flags: int) -> None:
        if flags & socket.MSG_DONTWAIT:
            raise BlockingIOError("nothing is there yet")
        left_ms = max(0.0, until - now_seconds()) * 1000 if until else None
        poll = select.poll()
        poll.register(self._stream, event)
        if not poll.poll(left_ms):
            raise BlockingIOError("nothing moved in time")

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        if level == socket.SOL_SOCKET and option in self._waits and isinstance(value, bytes):
            seconds, micros = struct.unpack("@ll", value)
            self._waits[option] = seconds + micros / 1e6
        else:
            self._stream.setsockopt(level, option, value)

    def settimeout(self, seconds: float | None) -> None:
        """Does nothing: `setsockopt` sets the timeouts, and the stream below never blocks."""

    def fileno(self) -> int:
        return self._stream.fileno()

    def shutdown(self, how: int) -> None:
        # Not the encrypted stream's own shutdown, after which a thread in the middle of a call would send in the clear.
        socket.socket.shutdown(self._stream, how)

    def close(self) -> None:
        self._stream.close()


Stream: TypeAlias = socket.socket | TlsStream
"""A stream of bytes between hosts."""


def readable(stream: Stream, left: float) -> bool:
    """Is there something to receive within this many seconds?"""
    if isinstance(stream, TlsStream) and stream.pending():
        return True
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLIN)
    return bool(poll.poll(max(0.0, left) * 1000))
