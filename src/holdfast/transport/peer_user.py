"""The user at the other end of a Unix socket, as the kernel knows it: nobody can claim to be another one."""

from __future__ import annotations

import os
import socket
import struct

_CREDENTIALS = struct.Struct("@iII")
"""pid, uid and gid, as SO_PEERCRED gives them."""
ROOT = 0


def process_of(connected: socket.socket) -> int:
    """The id of the process that connected; 0 if it is in another namespace and unknown in this one."""
    given = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(given)[0]
    return pid


def is_own_user(connected: socket.socket) -> bool:
    """Did a process of this process's own user, or of root, connect? Abstract sockets have no file mode to see to it.

    The user counts that the process was when it connected. One of another user namespace, unknown in this one, is
    somebody else."""
    given = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(given)
    return uid in (ROOT, os.geteuid())
