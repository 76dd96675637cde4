"""Proof that a process on this machine is dead: a lock that dies with it, and the means to make sure.

The kernel releases a lock only when the process that held it has left its memory for good, so a free lock proves that
the process no longer answers. Each epoch has a lock file of its own: a stopped leader that was deposed for its silence
still holds its own, and does not block the next one.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import weakref
from pathlib import Path
from typing import NamedTuple

from holdfast.ids import ProcessName
from holdfast.witness import can_see, started

WAL_WRITE_LOCK_BYTE = 120
"""The byte of the `-shm` file that SQLite locks while it writes in WAL mode."""


class LeaderLock:
    """An exclusive lock on a file, held until released or until the process is gone."""

    _held: weakref.WeakSet[LeaderLock] = weakref.WeakSet()

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            self._fd = None
            raise
        LeaderLock._held.add(self)

    def release(self) -> None:
        if self._fd is not None:
            self._path.unlink(missing_ok=True)
            self.drop()

    def drop(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @classmethod
    def drop_all(cls) -> None:
        """Drop all locks in a forked child: it is not the leader, and would keep the lock after the leader's death."""
        for lock in list(cls._held):
            lock.drop()


os.register_at_fork(after_in_child=LeaderLock.drop_all)


def is_free(path: Path) -> bool:
    """Whether the lock's holder is gone. A missing file proves nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


class _Lock(NamedTuple):
    pid: int
    inode: int
    first: int
    last: float


def _locks() -> list[_Lock]:
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:  # Some sandboxes do not have it.
        return []
    found = []
    for line in lines:
        words = line.split()
        if len(words) == 8 and words[3] == "WRITE":
            last = float("inf") if words[7] == "EOF" else int(words[7])
            found.append(_Lock(int(words[4]), int(words[5].rsplit(":", 1)[1]), int(words[6]), last))
    return found


def writer_of(database: Path) -> int | None:
    """The process that holds the database's write lock, according to the kernel; None if unknown.

    SQLite's lock file itself cannot be asked: closing it would release this process's own locks on it.
    """
    try:
        inode = os.stat(f"{database}-shm").st_ino
    except FileNotFoundError:
        return None
    for lock in _locks():
        if lock.inode == inode and lock.first <= WAL_WRITE_LOCK_BYTE <= lock.last:
            return lock.pid
    return None


def kill_for_sure(process: ProcessName, wait_s: float) -> bool:
    """Kill this very process; True once it is gone. False if this process cannot be sure which one it is."""
    if not can_see(process) or process.pid in (0, os.getpid()):
        return False
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        # Checked after opening: from here on the descriptor refers to this process, even if its pid is reused.
        if started(process.pid) != process.started:
            return True
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(wait_s * 1000))
    except ProcessLookupError:
        return True
    except PermissionError:  # It belongs to another user: nothing can be done here.
        return False
    finally:
        os.close(pidfd)
