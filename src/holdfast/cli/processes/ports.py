"""Which ports a cluster on one machine takes, and how the processes there are reached."""

from __future__ import annotations

import socket

from holdfast.addresses import join_address, split_address
from holdfast.errors import Refused
from holdfast.settings import flag_of

ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where a process that listens everywhere is reached from its own machine."""
PORTS_TRIED = 1_000


def check_port_is_free(field: str, address: str) -> None:
    host, port = split_address(address)
    fault = bind_fault(host, port)
    if fault is not None:
        raise Refused(
            f"port {port} on {host} cannot be used: {fault}. Nothing was started; "
            f"is holdfast already running? Choose another port with {flag_of(field)}"
        )


def next_free_port(host: str, first: int, taken: set[int]) -> int:
    for port in range(first, min(first + PORTS_TRIED, 65_536)):
        if port not in taken and bind_fault(host, port) is None:
            return port
    raise Refused(f"no port from {first} on is free on {host}; choose another place with --listen")


def further_places(first: str, count: int, skip: int, taken: set[int]) -> list[str]:
    """Addresses with the next free ports after `first`, which join `taken`; any port where that one has any."""
    host, port = split_address(first)
    places = []
    for _ in range(count):
        chosen = next_free_port(host, port + skip, taken) if port else 0
        taken.add(chosen)
        places.append(join_address(host, chosen))
    return places


def bind_fault(host: str, port: int) -> str | None:
    """Why nobody can listen there, or None."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen(1)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def reachable(address: str) -> str:
    host, port = split_address(address)
    return join_address(ANYWHERE.get(host, host), port)
