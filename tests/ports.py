"""Ports for those that cannot take port 0, and ports at which nobody listens.

They lie below those that the kernel gives out by itself: a port that is free when it is chosen is not given to somebody
else's connection or listener a moment later.
"""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

LOWEST = 15_000
OWN_CHOICE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            try:
                held.append(socket.create_server(("127.0.0.1", _some_port())))
            except OSError:
                continue  # It is somebody's.
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def _some_port() -> int:
    highest = int(OWN_CHOICE.read_text().split()[0])
    # Where the kernel's own choice leaves no room below, it is the best there is.
    return LOWEST + secrets.randbelow(highest - LOWEST) if highest > LOWEST + 1_000 else 0
