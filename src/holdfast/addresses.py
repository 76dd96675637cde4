"""Addresses as people write them: `host:port`, `[::1]:7070`. Nothing else takes them apart or puts them together."""

from __future__ import annotations

from holdfast.errors import BadValue

DEFAULT_PORT = 7070
"""The port of a master whose address names none."""


def split_address(address: str, default_port: int | None = None) -> tuple[str, int]:
    """Host and port. With a default the port may be missing, and an IPv6 host without a port needs no brackets."""
    if address.startswith("["):
        host, closed, rest = address[1:].partition("]")
        if not closed or rest[:1] not in ("", ":"):
            raise _bad(address, "an IPv6 host stands in brackets, like [::1]:7070")
        port = rest[1:]
    elif address.count(":") > 1:
        # A colon before a port would look like any of its colons.
        if default_port is None:
            raise _bad(address, "an IPv6 host stands in brackets, like [::1]:7070")
        host, port = address, ""
    else:
        host, _, port = address.partition(":")
    if not host or any(mark.isspace() or mark in ",/[]" for mark in host):
        why = "the host is missing or has a character that none can have"
        raise _bad(address, f"{why}; write it like 127.0.0.1:7070 or [::1]:7070")
    if not port:
        if default_port is None:
            raise _bad(address, "write it like 127.0.0.1:7070 or [::1]:7070, with a port")
        return host, default_port
    if not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise _bad(address, "the port must be a number up to 65535")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bad(address: str, why: str) -> BadValue:
    return BadValue(f"{address!r} is not an address: {why}")
