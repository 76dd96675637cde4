"""The identity of this machine, so that processes on the same one can share memory and Unix sockets."""

from __future__ import annotations

from pathlib import Path


def this_host() -> str:
    """Identity of this machine: its kernel's boot id, or empty if there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        # Not Linux, or a sandbox without /proc: then nothing counts as local.
        return ""
