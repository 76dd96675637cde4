"""Addresses as people write them: `host:port`, `[::1]:7070`, and lists of them.

An address can also name the coordination store that knows the primary (`etcd://`, `zookeeper://`, `sqlite://`). Those
are recognised here so that they get a clear error where only `host:port` is accepted.
"""

from __future__ import annotations

import socket
import ssl

from holdfast.errors import BadValue
from holdfast.transport.tls import Stream, dialing, dialled

DEFAULT_PORT = 7070
LOCAL = "unix:@"
"""The prefix of an abstract Unix socket's address."""
_LOOKED_UP = ("etcd", "zookeeper", "sqlite", "memory")


def host_and_port(address: str, default_port: int | None = DEFAULT_PORT) -> tuple[str, int]:
    """One address as (host, port). An IPv6 host is written in brackets when a port follows."""
    text = address.strip()
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise BadValue(f"{address!r} is no address: an IPv6 host is written like [::1]:7070")
        port_text = rest[1:]
    elif text.count(":") > 1:
        # A bare IPv6 host: a colon before a port would look like any of its colons.
        host, port_text = text, ""
    else:
        host, _, port_text = text.partition(":")
    if not host:
        raise BadValue(f"{address!r} is no address: write it like host:7070")
    if not port_text:
        if default_port is None:
            raise BadValue(f"{address!r} names no port: write it like host:7070")
        return host, default_port
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65_535:
        raise BadValue(f"{address!r} is no address: the port must be a number up to 65535")
    return host, int(port_text)


def connected(address: str, timeout: float, tls: ssl.SSLContext | None = None) -> Stream:
    """A blocking stream to a master, over TCP or its Unix socket; OSError if it does not answer."""
    if not address.startswith(LOCAL):
        host, port = host_and_port(address)
        made = socket.create_connection((host, port), timeout=timeout)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = tls or dialing()
        if context is not None:
            return dialled(made, context, host, timeout)
        made.settimeout(None)
        return made
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(timeout)
        made.connect("\0" + address.removeprefix(LOCAL))
        made.settimeout(None)
    except BaseException:
        made.close()
        raise
    return made


def joined(host: str, port: int) -> str:
    """The text of one address; the inverse of host_and_port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def master_addresses(address: str) -> list[str]:
    """The masters that an address names, in order; each as `host:port`."""
    if not isinstance(address, str):
        raise TypeError(f"an address is a str such as '127.0.0.1:7070', not {type(address).__name__}")
    scheme, found, _ = address.partition("://")
    if found:
        if scheme in _LOOKED_UP:
            raise BadValue(
                f"{scheme}:// says where a master is looked up; give the address of one here, like host:7070"
            )
        raise BadValue(f"{address!r} is no address: give host:port, or several with commas between them")
    parts = [part for part in (piece.strip() for piece in address.split(",")) if part]
    if not parts:
        raise BadValue("the address is empty: give host:port, or several with commas between them")
    return [joined(*host_and_port(part)) for part in parts]
