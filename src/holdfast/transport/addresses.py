"""Masters' addresses: lists of them, and connections to them.

An address can also name the coordination store that knows the primary (`etcd://`, `zookeeper://`, `sqlite://`). Those
are recognised here so that they get a clear error where only `host:port` is accepted.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from holdfast.addresses import DEFAULT_PORT, join_address, split_address
from holdfast.errors import BadValue
from holdfast.transport.tls import Stream, dialing, dialled

if TYPE_CHECKING:
    import ssl

LOCAL = "unix:@"
"""The prefix of an abstract Unix socket's address."""
_LOOKED_UP = ("etcd", "zookeeper", "sqlite", "memory")


def connected(address: str, timeout: float, tls: ssl.SSLContext | None = None) -> Stream:
    """A blocking stream to a master, over TCP or its Unix socket; OSError if it does not answer."""
    if not address.startswith(LOCAL):
        host, port = split_address(address, DEFAULT_PORT)
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
        raise BadValue(f"{address!r} is not an address: give host:port, or several with commas between them")
    parts = [part for part in (piece.strip() for piece in address.split(",")) if part]
    if not parts:
        raise BadValue("the address is empty: give host:port, or several with commas between them")
    return [join_address(*split_address(part, DEFAULT_PORT)) for part in parts]
