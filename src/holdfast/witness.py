"""Proof that another process on this machine has ended, from what the kernel shows of it.

A process is named by pid, start time and machine (`ProcessName`). Only a process on the same machine can tell whether
it lives: pid and start time are meaningful only within one boot, one pid namespace (other pids) and one time namespace
(other start times). A stopped process lives: it may be continued, and answer. So does one that called exec, which keeps
pid and start time. One that has exited but was not yet waited for by its parent runs no code any longer. The simulator
selects whose view is used with `see_through`.
"""

from __future__ import annotations

import errno
import os
import select
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.ids import ProcessName


class Seen(NamedTuple):
    """The process that has a pid now."""

    started: int
    """0 if the kernel does not show it, for instance because it is another user's (hidepid)."""
    exited: bool
    """None of its threads runs any longer."""


class Sight(Protocol):
    """The processes of one machine, as one of them sees them."""

    def this_process(self) -> ProcessName: ...

    def see(self, pid: int) -> Seen | None:
        """None if no process has that pid."""
        ...


class KernelSight:
    def this_process(self) -> ProcessName:
        return ProcessName(os.getpid(), started("self") or 0, _machine())

    def see(self, pid: int) -> Seen | None:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        except OSError as error:
            return self._see_without(pid, error)
        try:
            # Read after opening: from here on the descriptor refers to one process, even if its pid is reused.
            start = started(pid) or 0
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            return Seen(start, exited=bool(poll.poll(0)))
        finally:
            os.close(pidfd)

    def _see_without(self, pid: int, error: OSError) -> Seen | None:
        """For a pid that is a thread's (EINVAL), or where process descriptors are not allowed."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass  # Another user's process: it exists.
        thread_only = error.errno == errno.EINVAL
        return Seen(started(pid) or 0, exited=thread_only)


KERNEL: Sight = KernelSight()
_sight: Sight = KERNEL


def see_through(sight: Sight) -> None:
    """Use this view of other processes from now on."""
    global _sight
    _sight = sight


def this_process() -> ProcessName:
    return _sight.this_process()


def can_see(process: ProcessName) -> bool:
    """Can this process tell whether that one lives?"""
    return bool(process.machine) and process.machine == _sight.this_process().machine


def is_gone(process: ProcessName) -> bool:
    """True if it has certainly ended. False if it lives, or cannot be seen from here."""
    if not can_see(process):
        return False
    seen = _sight.see(process.pid)
    if seen is None or seen.exited:
        return True
    return seen.started not in (0, process.started)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _machine() -> str:
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return ""  # A /proc of another namespace: its start times belong to other pids.
        names = [boot_id(), os.readlink("/proc/self/ns/pid")]
        if os.path.lexists("/proc/self/ns/time"):
            names.append(os.readlink("/proc/self/ns/time"))
    except OSError:  # Not Linux, or a sandbox that shows nothing.
        return ""
    return " ".join(names)


def started(pid: int | str) -> int | None:
    """Clock ticks from boot to its start; None if the kernel shows no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name, in parentheses, may itself contain spaces and parentheses.
    return int(text[text.rindex(")") + 2 :].split()[19])
