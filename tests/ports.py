"""Ports for those that cannot take port 0, and ports at which nobody listens.

They lie below those that the kernel gives out by itself, and each process of a test run has a share of its own: a port
that is free when it is chosen is not somebody else's a moment later.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
from pathlib import Path

LOWEST = 15_000
OWN_CHOICE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_numbers = itertools.count(secrets.randbelow(LOWEST))


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
    """The next one of this process's own share, so that it is nobody else's before whoever it is for listens there."""
    highest = int(OWN_CHOICE.read_text().split()[0])
    if highest <= LOWEST + 1_000:
        return 0  # The kernel's own choice leaves no room below it, and is the best there is.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    share = (highest - LOWEST) // workers
    return LOWEST + worker * share + next(_numbers) % share
